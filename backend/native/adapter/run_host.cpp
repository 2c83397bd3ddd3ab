// ATen's CPU kernels in place on a device's memory: the `host` vendor's native library, and views on every vendor.
#include "alias.h"
#include "generator.h"
#include "router.h"

namespace ral {

namespace {

Stack take_arguments(const Operator& op, Stack& stack) {
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.argument_count());
  Stack arguments(std::make_move_iterator(first), std::make_move_iterator(stack.end()));
  stack.erase(first, stack.end());
  return arguments;
}

// The CPU call's arguments: aliases instead of tensors, the device's random numbers, the CPU instead of the device.
Stack aliased(const Operator& op, Device& device, Aliases& aliases, const Stack& arguments) {
  Stack call = arguments;
  const auto alias = [&](const at::Tensor& tensor) {
    return tensor.device().type() == kRal ? aliases.to_cpu(tensor) : tensor;
  };
  for (const ArgSpec& spec : op.arguments()) {
    c10::IValue& value = call[spec.position];
    if (spec.kind == ArgKind::kTensor) {
      if (value.isTensor() && value.toTensor().defined()) {
        value = alias(value.toTensor());
      }
    } else if (spec.kind == ArgKind::kGenerator) {
      const at::Generator given = value.isGenerator() ? value.toGenerator() : at::Generator();
      value = cpu_generator_of(given.defined() ? given : device.default_generator());
    } else if (spec.kind == ArgKind::kDevice) {
      value = value.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : value;
    } else {
      value = with_tensors(spec, value, alias);
    }
  }
  op.adapt_arguments(call);
  return call;
}

// ATen's CPU kernel on aliases. What the operator writes in place stays reachable through `kept`: the call takes its
// arguments off its stack.
class InPlaceWork : public Work {
 public:
  InPlaceWork(const Operator& op, Device& device, Stack arguments, Stack call, const events::Launch& launch)
      : Work{WorkKind::kCompute, launch.name()},
        op_(&op),
        device_(&device),
        arguments_(std::move(arguments)),
        call_(std::move(call)),
        kept_(op.outputs().empty() ? Stack() : call_),
        started_(launch) {}

  void run() {
    const AllocateOn here(*device_);
    const std::uint64_t start = started_.active() ? events::now() : 0;
    op_->cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call_);
    if (started_.active()) {
      const std::uint64_t end = events::now();
      started_.work(trace::Kind::kKernel, start, end, bytes(), op_->name().id(), device_->vendor_name().id());
    }
  }

  Stack& arguments() { return arguments_; }
  Stack& results() { return call_; }
  const Stack& kept() const { return kept_; }

 private:
  // As bytes_of_arguments, but what the kernel resized has its new size.
  std::int64_t bytes() const {
    std::int64_t bytes = bytes_of_arguments(*op_, arguments_.data());
    for_each_written(*op_, arguments_, kept_, [&](const at::Tensor& original, const at::Tensor& changed) {
      bytes += bytes_of(changed) - bytes_of(original);
    });
    for (std::size_t i = 0; i < call_.size(); ++i) {
      if (op_->return_argument(i) >= 0) {
        continue;
      }
      if (call_[i].isTensor()) {
        bytes += bytes_of(call_[i].toTensor());
      } else if (call_[i].isTensorList()) {
        for (const at::Tensor& tensor : call_[i].toTensorList()) {
          bytes += bytes_of(tensor);
        }
      }
    }
    return bytes;
  }

  const Operator* op_;
  Device* device_;
  Stack arguments_;
  Stack call_;
  Stack kept_;
  events::Started started_;
};

}  // namespace

void run_view(const Operator& op, Device& device, Stack& stack) {
  Stack arguments = take_arguments(op, stack);
  Aliases aliases(device);
  Stack call = aliased(op, device, aliases, arguments);
  op.cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call);
  put_results(op, stack, std::move(arguments), std::move(call), [&](const at::Tensor& result) {
    TORCH_CHECK(!result.defined() || result.layout() == c10::kStrided, op.name().text(),
                " makes a tensor that is not strided, which ral devices do not hold");
    return aliases.to_device(result);
  });
}

void run_in_place(const Operator& op, Device& device, Stack& stack, const events::Launch& launch) {
  Stack arguments = take_arguments(op, stack);
  Aliases aliases(device);
  Stack call = aliased(op, device, aliases, arguments);
  InPlaceWork done =
      device.stream(kComputeStream).submit(InPlaceWork(op, device, std::move(arguments), std::move(call), launch));
  if (!op.outputs().empty()) {
    for_each_written(op, done.arguments(), done.kept(),
                     [&](const at::Tensor& original, const at::Tensor& changed) { aliases.follow(original, changed); });
  }
  put_results(op, stack, std::move(done.arguments()), std::move(done.results()),
              [&](const at::Tensor& result) { return aliases.to_device(result); });
  forget_lent();
}

}  // namespace ral
