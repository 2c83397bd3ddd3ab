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
  const bool writes = !op.outputs().empty();
  Stack kept = writes ? call : Stack();  // the call takes its arguments off its stack
  device.stream(kComputeStream).submit(WorkKind::kCompute, launch.name(), [&] {
    const AllocateOn here(device);
    const std::uint64_t start = launch.active() ? events::now() : 0;
    op.cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call);
    if (launch.active()) {
      launch.work(trace::Kind::kKernel, start, events::now(), -1, op.name().id(), device.vendor_name().id());
    }
  });
  if (writes) {
    for_each_written(op, arguments, kept,
                     [&](const at::Tensor& original, const at::Tensor& changed) { aliases.follow(original, changed); });
  }
  put_results(op, stack, std::move(arguments), std::move(call),
              [&](const at::Tensor& result) { return aliases.to_device(result); });
  forget_lent();
}

}  // namespace ral
