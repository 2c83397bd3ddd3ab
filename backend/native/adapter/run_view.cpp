// Operators that only look at memory differently: no work for a device, so no event.
#include "alias.h"
#include "run.h"

namespace ral {

void run_view(const Operator& op, Device& device, Stack& stack) {
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.argument_count());
  Stack call(first, stack.end());
  Aliases aliases(device);
  for (const ArgSpec& spec : op.arguments()) {
    call[spec.position] = with_tensors(spec, call[spec.position], [&](const at::Tensor& tensor) {
      return tensor.device().type() == kRal ? aliases.to_cpu(tensor) : tensor;
    });
  }
  op.cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call);
  const auto to_device = [&](const at::Tensor& result) {
    if (result.defined()) {
      check_holdable(op, result);
    }
    return aliases.to_device(result);
  };
  for (c10::IValue& result : call) {
    if (result.isTensor()) {
      result = to_device(result.toTensor());
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : result.toTensorList()) {
        list.push_back(to_device(tensor));
      }
      result = std::move(list);
    }
  }
  put_results(op, stack, std::move(call));
}

}  // namespace ral
