#include "layout_rules.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/zero_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <exception>

#include "results.h"

namespace ral {

namespace {

at::Tensor meta_tensor(const at::Tensor& like, c10::Storage storage) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::Meta), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

// The call's aliases, with other memory behind them: those that share a storage share one again.
class StandIns {
 public:
  StandIns(const Call& call, bool meta) : call_(call) {
    const CallAliases aliases(call);
    std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> known;
    for (std::size_t i = 0; i < aliases.size(); ++i) {
      const at::Tensor& alias = aliases.tensor(i);
      if (call.tensors()[i].where != TensorDesc::Where::kDevice) {
        tensors_.push_back(alias);
        continue;
      }
      const std::size_t same = first_same(aliases, i);
      if (same < i) {
        tensors_.push_back(tensors_[same]);
        continue;
      }
      const c10::StorageImpl* storage = alias.storage().unsafeGetStorageImpl();
      auto found = std::find_if(known.begin(), known.end(), [&](const auto& k) { return k.first == storage; });
      if (found == known.end()) {
        found = known.emplace(known.end(), storage, meta ? meta_storage(alias) : zeros(alias));
      }
      const c10::Storage& stand_in = found->second;
      tensors_.push_back(
          meta ? meta_tensor(alias, stand_in)
               : cpu_tensor(stand_in, alias.scalar_type(), alias.sizes(), alias.strides(), alias.storage_offset()));
    }
  }

  Outcome run(c10::DispatchKey key) const {
    const CallAliases shape(call_);
    Outcome outcome;
    outcome.results = shape.stack(tensors_);
    if (key == c10::DispatchKey::Meta) {
      for (const ArgSpec& spec : call_.op().arguments()) {
        c10::IValue& value = outcome.results[spec.position];
        if (spec.kind == ArgKind::kDevice && value.isDevice()) {
          value = c10::Device(c10::kMeta);
        } else if (spec.kind == ArgKind::kGenerator) {
          value = c10::IValue();
        }
      }
    }
    call_.op().cpu_handle().redispatchBoxed(c10::DispatchKeySet(key), &outcome.results);
    outcome.arguments.assign(tensors_.begin(), tensors_.end());
    return outcome;
  }

 private:
  static std::size_t first_same(const CallAliases& aliases, std::size_t index) {
    std::size_t found = 0;
    while (!aliases.tensor(found).is_same(aliases.tensor(index))) {
      ++found;
    }
    return found;
  }
  static c10::Storage meta_storage(const at::Tensor& alias) {
    return c10::Storage(c10::Storage::use_byte_size_t(), alias.storage().nbytes(), c10::DataPtr(nullptr, c10::kMeta),
                        c10::GetAllocator(c10::kMeta), /*resizable=*/true);
  }
  static c10::Storage zeros(const at::Tensor& alias) {
    at::Tensor memory = at::detail::empty_cpu({static_cast<std::int64_t>(alias.storage().nbytes())}, c10::kByte);
    memory.zero_();
    return memory.storage();
  }

  const Call& call_;
  c10::SmallVector<at::Tensor, 5> tensors_;
};

// The CPU kernel is exact and quick on little memory; many Meta kernels are Python's, which is slow to begin with.
constexpr std::int64_t kQuickBytes = std::int64_t{1} << 20;

Learnt learn_on_stand_ins(const Call& call, c10::DispatchKey key) {
  const StandIns stand_ins(call, key == c10::DispatchKey::Meta);
  return learn(call, stand_ins.run(key));
}

bool overlaps_itself(const at::Tensor& tensor) {
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 8> steps;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) {
      steps.emplace_back(tensor.stride(d), tensor.size(d));
    }
  }
  // Steps of growing size, each beyond what the smaller ones reach: no element is met twice.
  std::sort(steps.begin(), steps.end());
  std::int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) {
      return true;
    }
    reach += stride * (size - 1);
  }
  return false;
}

bool same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

std::optional<Layout> layout_without_running(const Call& call) {
  if (call.depends_on_data()) {
    return std::nullopt;
  }
  const c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  const bool draws = call.op().draws_random_numbers();
  const bool cpu_first = !draws && call.bytes() <= kQuickBytes;
  Learnt learnt;
  try {
    learnt = learn_on_stand_ins(call, cpu_first ? c10::DispatchKey::CPU : c10::DispatchKey::Meta);
  } catch (const std::exception&) {
    if (draws) {
      throw;
    }
    // No Meta kernel, numbers that zeros are not good enough for, or arguments that do not fit: then the CPU kernel says
    // so, in the words that users know.
    const std::exception_ptr first = std::current_exception();
    try {
      learnt = learn_on_stand_ins(call, cpu_first ? c10::DispatchKey::Meta : c10::DispatchKey::CPU);
    } catch (const std::exception&) {
      if (cpu_first) {
        std::rethrow_exception(first);
      }
      throw;
    }
  }
  return learnt.complete ? std::optional<Layout>(std::move(learnt.layout)) : std::nullopt;
}

void refuse_as_the_cpu_does(const Call& call) {
  const c10::impl::ExcludeDispatchKeyGuard plain(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  StandIns(call, /*meta=*/false).run(c10::DispatchKey::CPU);
}

bool writes_into_what_it_reads(const Call& call) {
  const CallAliases aliases(call);
  bool found = false;
  call.for_each_argument([&](const ArgSpec& spec, std::size_t first, std::size_t count) {
    for (std::size_t i = first; spec.written && i < first + count; ++i) {
      const at::Tensor& output = aliases.tensor(i);
      if (!output.defined() || output.numel() == 0) {
        continue;
      }
      found = found || (!output.is_contiguous() && overlaps_itself(output));
      for (std::size_t j = 0; !found && j < aliases.size(); ++j) {
        const at::Tensor& input = aliases.tensor(j);
        found = j != i && input.defined() && call.tensors()[j].data == call.tensors()[i].data &&
                !same_view(input, output) && at::get_overlap_status(input, output) != at::MemOverlapStatus::No;
      }
    }
  });
  return found;
}

}  // namespace ral
