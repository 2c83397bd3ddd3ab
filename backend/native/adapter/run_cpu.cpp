// The end of the chain: PyTorch's CPU kernel, with the arguments copied to the host and the results copied back.
// Each copy is a transfer of its own, each copy to the host a forced sync; all of it lies inside one `fallback` event.
#include <ATen/EmptyTensor.h>

#include "alias.h"
#include "copy.h"
#include "generator.h"
#include "hooks.h"
#include "router.h"

namespace ral {

namespace {

const events::Name& copy_name() {
  static const events::Name name("aten::_copy_from");
  return name;
}

// Copies on the host of the tensors of one call; a tensor that appears twice is copied once, so that in place stays in
// place.
class HostCopies {
 public:
  explicit HostCopies(Device& device) : device_(device) {}

  at::Tensor to_host(const at::Tensor& tensor, bool content_matters) {
    if (tensor.device().type() != kRal) {
      return tensor;
    }
    for (const Pair& pair : pairs_) {
      if (pair.device.is_same(tensor)) {
        return pair.host;
      }
    }
    touch(tensor);
    at::Tensor host;
    if (content_matters) {
      bytes_ += static_cast<std::int64_t>(tensor.nbytes());
      host = fetch(tensor, copy_name(), SyncReason::kForced);
    } else {
      host = at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    pairs_.push_back({tensor, host});
    return host;
  }

  // Takes what the kernel wrote back to the device, with a new size where the kernel resized it.
  void write_back(const at::Tensor& tensor, const at::Tensor& host) {
    if (tensor.sizes() != host.sizes()) {
      tensor.resize_(host.sizes());
    }
    bytes_ += static_cast<std::int64_t>(host.nbytes());
    copy(host, tensor, copy_name(), SyncReason::kNone);
  }

  at::Tensor to_device(const at::Tensor& host) {
    if (!host.defined() || host.device().type() == kRal) {
      return host;
    }
    const c10::Device label = device_.torch_device();
    const std::size_t bytes = host.is_non_overlapping_and_dense()
                                  ? at::detail::computeStorageNbytes(host.sizes(), host.strides(), host.itemsize())
                                  : at::detail::computeStorageNbytesContiguous(host.sizes(), host.itemsize());
    static c10::Allocator* const allocator = c10::GetAllocator(kRal);
    c10::Storage storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                                 allocate_on(device_, bytes, label), allocator, true);
    at::Tensor tensor = make_tensor(std::move(storage), host.dtype(), {0}, {1}, 0);
    if (host.is_non_overlapping_and_dense()) {
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
    } else {
      tensor.unsafeGetTensorImpl()->set_sizes_contiguous(host.sizes());
    }
    bytes_ += static_cast<std::int64_t>(host.nbytes());
    copy(host, tensor, copy_name(), SyncReason::kNone);
    return tensor;
  }

  std::int64_t bytes() const { return bytes_; }

 private:
  struct Pair {
    at::Tensor device;
    at::Tensor host;
  };

  static void touch(const at::Tensor& tensor) {
    if (Block* block = block_of(tensor.storage().data_ptr())) {
      block->uses.fetch_add(1, std::memory_order_relaxed);
    }
  }

  Device& device_;
  c10::SmallVector<Pair, 6> pairs_;
  std::int64_t bytes_ = 0;
};

Stack host_arguments(const Operator& op, Device& device, HostCopies& copies, const Stack& arguments) {
  Stack call = arguments;
  // out= comes last: a tensor that is also read (in place, through out=) has its content fetched by then.
  for (const bool out : {false, true}) {
    for (const ArgSpec& spec : op.arguments()) {
      c10::IValue& value = call[spec.position];
      if (spec.out != out) {
        continue;
      }
      if (spec.kind == ArgKind::kGenerator) {
        const at::Generator given = value.isGenerator() ? value.toGenerator() : at::Generator();
        value = cpu_generator_of(given.defined() ? given : device.default_generator());
      } else if (spec.kind == ArgKind::kDevice) {
        value = value.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : value;
      } else {
        value = with_tensors(spec, value, [&](const at::Tensor& tensor) { return copies.to_host(tensor, !out); });
      }
    }
  }
  op.adapt_arguments(call);
  return call;
}

}  // namespace

void run_on_cpu(const Operator& op, Device& device, Stack& stack, const events::Launch& launch,
                const events::Name& reasons) {
  const std::uint64_t start = launch.active() ? events::now() : 0;
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.argument_count());
  Stack arguments(std::make_move_iterator(first), std::make_move_iterator(stack.end()));
  stack.erase(first, stack.end());
  HostCopies copies(device);
  Stack call = host_arguments(op, device, copies, arguments);
  Stack kept = call;  // the call takes its arguments off its stack
  op.cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call);
  for_each_written(op, arguments, kept,
                   [&](const at::Tensor& original, const at::Tensor& host) { copies.write_back(original, host); });
  put_results(op, stack, std::move(arguments), std::move(call),
              [&](const at::Tensor& result) { return copies.to_device(result); });
  if (launch.active()) {
    launch.work(trace::Kind::kFallback, start, events::now(), copies.bytes(), op.name().id(), reasons.id());
  }
}

}  // namespace ral
