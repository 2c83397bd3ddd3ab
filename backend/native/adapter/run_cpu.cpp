// The end of the chain: PyTorch's CPU kernel, with the arguments copied to the host and the results copied back.
// Each copy is a transfer of its own, each copy to the host a forced sync; all of it lies inside one `fallback` event.
#include <ATen/EmptyTensor.h>

#include "alias.h"
#include "copy.h"
#include "generator.h"
#include "run.h"

namespace ral {

namespace {

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
    device_.touch(tensor.storage());
    at::Tensor host;
    if (content_matters) {
      ++fetched_;
      bytes_ += static_cast<std::int64_t>(tensor.nbytes());
      host = fetch(tensor, copy_from_name(), SyncReason::kForced);
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
      if (host.is_non_overlapping_and_dense()) {
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), tensor.storage_offset());
      }
    }
    bytes_ += static_cast<std::int64_t>(host.nbytes());
    copy(host, tensor, copy_from_name(), SyncReason::kNone);
  }

  at::Tensor to_device(const Operator& op, const at::Tensor& host) {
    if (!host.defined() || host.device().type() == kRal) {
      return host;
    }
    check_holdable(op, host);
    bytes_ += static_cast<std::int64_t>(host.nbytes());
    return upload(device_, host, SyncReason::kNone);
  }

  std::int64_t bytes() const { return bytes_; }
  std::uint64_t fetched() const { return fetched_; }

 private:
  struct Pair {
    at::Tensor device;
    at::Tensor host;
  };

  Device& device_;
  c10::SmallVector<Pair, 6> pairs_;
  std::int64_t bytes_ = 0;
  std::uint64_t fetched_ = 0;
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

// Calls `visit(original, changed)` for each tensor that the operator writes: as the program gave it, and as the call that
// ran in its place has left it. Only those on our devices.
template <class Visitor>
void for_each_written(const Operator& op, const Stack& arguments, const Stack& call, Visitor&& visit) {
  for (const ArgSpec& spec : op.arguments()) {
    if (!spec.written) {
      continue;
    }
    std::vector<at::Tensor> originals;
    for_each_tensor(spec, arguments[spec.position], [&](const at::Tensor& tensor) { originals.push_back(tensor); });
    std::size_t next = 0;
    for_each_tensor(spec, call[spec.position], [&](const at::Tensor& changed) {
      if (const at::Tensor& original = originals[next++]; original.device().type() == kRal) {
        visit(original, changed);
      }
    });
  }
}

Stack results_of(const Operator& op, const Stack& arguments, Stack&& made, HostCopies& copies) {
  Stack results;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const int position = op.return_argument(i);
    if (position >= 0) {
      results.push_back(arguments[static_cast<std::size_t>(position)]);
    } else if (made[i].isTensor()) {
      results.emplace_back(copies.to_device(op, made[i].toTensor()));
    } else if (made[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : made[i].toTensorList()) {
        list.push_back(copies.to_device(op, tensor));
      }
      results.emplace_back(std::move(list));
    } else {
      results.push_back(std::move(made[i]));
    }
  }
  return results;
}

}  // namespace

void run_on_cpu(const Operator& op, Device& device, Stack& stack, const events::Launch& launch,
                const Decision& decision, const events::Name& reasons) {
  const std::uint64_t start_ns = trace::monotonic_ns();
  const std::uint64_t start = launch.active() ? events::now() : 0;
  const Stack arguments(stack.end() - static_cast<std::ptrdiff_t>(op.argument_count()), stack.end());
  HostCopies copies(device);
  Stack call = host_arguments(op, device, copies, arguments);
  Stack kept = call;  // the call takes its arguments off its stack
  op.cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call);
  for_each_written(op, arguments, kept,
                   [&](const at::Tensor& original, const at::Tensor& host) { copies.write_back(original, host); });
  put_results(op, stack, results_of(op, arguments, std::move(call), copies));
  if (launch.active()) {
    launch.work(trace::Kind::kFallback, start, events::now(), copies.bytes(), op.name().id(), reasons.id());
  }
  decision.fallbacks.fetch_add(1, std::memory_order_relaxed);
  decision.bytes_copied.fetch_add(static_cast<std::uint64_t>(copies.bytes()), std::memory_order_relaxed);
  decision.syncs_forced.fetch_add(copies.fetched(), std::memory_order_relaxed);
  decision.fallback_ns.fetch_add(trace::monotonic_ns() - start_ns, std::memory_order_relaxed);
}

}  // namespace ral
