// What ral devices do not hold: sparse, quantised and nested tensors. torch makes their shells without asking; the first
// operator on one is refused in words.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace ral {

namespace {

enum class Unheld : std::uint8_t { kSparse, kQuantised, kNested };

template <Unheld what>
void refuse(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  (void)keys;
  (void)stack;
  constexpr const char* kinds[] = {"a sparse", "a quantised", "a nested"};
  TORCH_CHECK_NOT_IMPLEMENTED(false, toString(handle.operator_name()), " on ", kinds[static_cast<int>(what)],
                              " tensor: ral devices hold strided tensors only; keep it on the CPU, or make it strided");
}

// Without nested tensors TransformerEncoder takes its way with padding.
bool nested_tensor_from_mask_left_aligned(const at::Tensor& tensor, const at::Tensor& mask) {
  (void)tensor;
  (void)mask;
  return false;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<Unheld::kSparse>>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<Unheld::kSparse>>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<Unheld::kQuantised>>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<Unheld::kNested>>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_mask_left_aligned", &nested_tensor_from_mask_left_aligned);
}

}  // namespace ral
