// Dropout with the device's own random numbers: the CPU's kernel takes them from the CPU's generator, which belongs to
// the program.
#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <tuple>

namespace ral {

namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  const at::TensorOptions flags = input.options().dtype(c10::kBool);
  if (!train.value_or(true)) {
    return {at::_ops::clone::call(input, std::nullopt), at::ones_like(input, flags)};
  }
  const double kept = 1 - p;
  at::Tensor mask = at::empty_like(input, flags);
  at::_ops::bernoulli__float::call(mask, kept, std::nullopt);
  at::Tensor output = at::_ops::mul_Tensor::call(input, mask);
  at::_ops::mul__Scalar::call(output, kept == 0 ? 0.0 : 1 / kept);
  return {std::move(output), std::move(mask)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("native_dropout", &native_dropout); }

}  // namespace ral
