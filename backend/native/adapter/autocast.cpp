// torch.autocast("ral"): torch's own lists of operators, with boxed kernels. The typed ones of ATen/autocast_mode.h are a template for each of some
// 150 operators, which took a quarter of the adapter's build.
#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>
#include <string>

namespace ral {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
using at::autocast::cached_cast;

c10::IValue cast(const c10::IValue& value, at::ScalarType type) {
  if (value.isTensor() && value.toTensor().defined()) {
    return cached_cast(type, value.toTensor(), kDevice);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorList()) {
      tensors.push_back(cached_cast(type, tensor, kDevice));
    }
    return tensors;
  }
  return value;
}

// Autocast is off beneath, so that the operator's own calls are left alone.
void call_beneath(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  op.callBoxed(stack);
}

void call_with(const c10::OperatorHandle& op, torch::jit::Stack* stack, at::ScalarType type) {
  const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  for (auto argument = stack->end() - count; argument != stack->end(); ++argument) {
    *argument = cast(*argument, type);
  }
  call_beneath(op, stack);
}

void lower_precision(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  call_with(op, stack, at::autocast::get_autocast_dtype(kDevice));
}

void in_float32(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  call_with(op, stack, at::kFloat);
}

// The operator takes a dtype: it is told float32 where the caller said nothing.
void float32_by_argument(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  if (values[0].isTensor() && at::autocast::is_eligible(values[0].toTensor(), kDevice)) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() == "dtype" && values[i].isNone()) {
        (*stack)[stack->size() - arguments.size() + i] = at::kFloat;
      }
    }
  }
  call_beneath(op, stack);
}

// The widest of the arguments' floating types.
void promoted(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  at::ScalarType type = at::autocast::get_autocast_dtype(kDevice);
  for (const c10::IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      type = at::autocast::prioritize(type, argument.toTensor(), kDevice);
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorList()) {
        type = at::autocast::prioritize(type, tensor, kDevice);
      }
    }
  }
  call_with(op, stack, type);
}

// The lists give `op` or `op, overload`.
std::string qualified(std::string name) {
  if (const auto comma = name.find(','); comma != std::string::npos) {
    name = name.substr(0, comma) + "." + name.substr(name.find_first_not_of(' ', comma + 1));
  }
  return "aten::" + name;
}

#define RAL_TEXT(...) #__VA_ARGS__,
#define RAL_SECOND(FUNCTION, NAME, ...) NAME,
constexpr std::array kLowerPrecision = {AT_FORALL_LOWER_PRECISION_FP(RAL_TEXT)};
constexpr std::array kFloat32 = {AT_FORALL_FP32(RAL_TEXT) AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(RAL_SECOND)};
constexpr std::array kFloat32ByArgument = {AT_FORALL_FP32_SET_OPT_DTYPE(RAL_TEXT)};
constexpr std::array kPromoted = {AT_FORALL_PROMOTE(RAL_TEXT)};
#undef RAL_TEXT
#undef RAL_SECOND

template <auto Kernel, typename Names>
void route(torch::Library& library, const Names& names) {
  for (const char* name : names) {
    library.impl(qualified(name).c_str(), torch::CppFunction::makeFromBoxedFunction<Kernel>());
  }
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  route<&lower_precision>(m, kLowerPrecision);
  route<&in_float32>(m, kFloat32);
  route<&float32_by_argument>(m, kFloat32ByArgument);
  route<&promoted>(m, kPromoted);
}

}  // namespace
}  // namespace ral
