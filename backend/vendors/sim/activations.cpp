// Activation functions and their gradients, element by element.
#include <cmath>

#include "chunks.h"

namespace ral::sim {

namespace {

CHUNK1(tanh_chunk, fast_tanh(a))
CHUNK1(sigmoid_chunk, fast_sigmoid(a))
CHUNK1(silu_chunk, a* fast_sigmoid(a))
CHUNK1(gelu_chunk, 0.5f * a * (1.0f + fast_erf(a * 0.70710678f)))
CHUNK1(gelu_tanh_chunk, 0.5f * a * (1.0f + fast_tanh(0.79788456f * (a + 0.044715f * a * a * a))))
CHUNK2(threshold_backward_chunk, b <= numbers[0] ? 0.0f : a)
CHUNK2(tanh_backward_chunk, a * (1.0f - b * b))
CHUNK2(sigmoid_backward_chunk, a * b * (1.0f - b))

float gelu_slope(float x) {
  return 0.5f * (1.0f + fast_erf(x * 0.70710678f)) + x * 0.39894228f * fast_exp(-0.5f * x * x);
}

float gelu_tanh_slope(float x) {
  const float t = fast_tanh(0.79788456f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
}

float silu_slope(float x) {
  const float s = fast_sigmoid(x);
  return s * (1.0f + x * (1.0f - s));
}

CHUNK2(gelu_backward_chunk, a* gelu_slope(b))
CHUNK2(gelu_tanh_backward_chunk, a* gelu_tanh_slope(b))
CHUNK2(silu_backward_chunk, a* silu_slope(b))

// numbers: what the operator is called with, in its order
CHUNK1(threshold_chunk, a <= numbers[0] ? numbers[1] : a)
CHUNK1(hardtanh_chunk, a<numbers[0] ? numbers[0] : a> numbers[1] ? numbers[1] : a)
CHUNK1(leaky_relu_chunk, a > 0 ? a : a * numbers[0])
CHUNK1(elu_chunk, a > 0 ? a * numbers[1] : expm1_of(a * numbers[2]) * numbers[0] * numbers[1])
CHUNK1(softplus_chunk, a* numbers[0] > numbers[1] ? a : log1p_exp(a * numbers[0]) / numbers[0])
CHUNK1(hardswish_chunk, a* clamped(a + 3.0f, 6.0f) / 6.0f)
CHUNK1(hardsigmoid_chunk, clamped(a + 3.0f, 6.0f) / 6.0f)

// a: the gradient, b: the input
CHUNK2(hardtanh_backward_chunk, b <= numbers[0] || b >= numbers[1] ? 0.0f : a)
CHUNK2(leaky_relu_backward_chunk, b > 0 ? a : a * numbers[0])
CHUNK2(elu_backward_chunk, b > 0 ? a * numbers[1] : a * numbers[2] * numbers[0] * numbers[1] * fast_exp(b * numbers[2]))
CHUNK2(elu_backward_of_result_chunk, b > 0 ? a * numbers[1] : a * numbers[2] * (b + numbers[0] * numbers[1]))
CHUNK2(softplus_backward_chunk, b* numbers[0] > numbers[1] ? a : a * fast_sigmoid(b * numbers[0]))
CHUNK1(log_sigmoid_chunk, (a < 0 ? a : 0.0f) - log1p_exp(a < 0 ? a : -a))
CHUNK1(exp_minus_abs_chunk, fast_exp(a < 0 ? a : -a))
CHUNK2(log_sigmoid_backward_chunk, a* fast_sigmoid(-b))
// b: the mask
CHUNK2(dropout_backward_chunk, a * b * numbers[0])

// The plain numbers of a call, from argument `first` on.
template <std::size_t N>
std::array<float, N> numbers_from(const ral_call* call, int first, const std::array<double, N>& otherwise) {
  std::array<float, N> result;
  for (std::size_t n = 0; n < N; ++n) {
    result[n] = static_cast<float>(number(argument(call, first + static_cast<int>(n)), otherwise[n]));
  }
  return result;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

UNARY(tanh)
UNARY(sigmoid)
UNARY(silu)
BINARY(tanh_backward)
BINARY(sigmoid_backward)
BINARY(silu_backward)

// (self, approximate)
RAL_KERNEL ral_sim_gelu(const ral_call* call) {
  return apply<1>(call, is_text(argument(call, 1), "tanh") ? gelu_tanh_chunk : gelu_chunk);
}

// (grad, self, approximate)
RAL_KERNEL ral_sim_gelu_backward(const ral_call* call) {
  return apply<2>(call, is_text(argument(call, 2), "tanh") ? gelu_tanh_backward_chunk : gelu_backward_chunk);
}

// (grad, self, threshold)
RAL_KERNEL ral_sim_threshold_backward(const ral_call* call) {
  const auto threshold = static_cast<float>(number(argument(call, 2)));
  return apply<2>(call, threshold_backward_chunk, &threshold);
}
UNARY(hardswish)
UNARY(hardsigmoid)

#define WITH_NUMBERS(operands, name, ...)                                       \
  RAL_KERNEL ral_sim_##name(const ral_call* call) {                             \
    const auto numbers = numbers_from(call, operands, std::array{__VA_ARGS__}); \
    return apply<operands>(call, name##_chunk, numbers.data());                 \
  }

WITH_NUMBERS(1, threshold, 0.0, 0.0)
WITH_NUMBERS(1, hardtanh, -1.0, 1.0)
WITH_NUMBERS(1, leaky_relu, 0.01)
WITH_NUMBERS(1, elu, 1.0, 1.0, 1.0)
WITH_NUMBERS(1, softplus, 1.0, 20.0)
WITH_NUMBERS(2, hardtanh_backward, -1.0, 1.0)
WITH_NUMBERS(2, leaky_relu_backward, 0.01)
WITH_NUMBERS(2, softplus_backward, 1.0, 20.0)
WITH_NUMBERS(2, dropout_backward, 1.0)

// (self) → output, exp(-|self|)
RAL_KERNEL ral_sim_log_sigmoid(const ral_call* call) {
  ral_call second = *call;
  second.outputs = call->outputs + 1;
  const int status = apply<1>(&second, exp_minus_abs_chunk);
  return status == RAL_OK ? apply<1>(call, log_sigmoid_chunk) : status;
}

// (grad_output, self, buffer)
RAL_KERNEL ral_sim_log_sigmoid_backward(const ral_call* call) { return apply<2>(call, log_sigmoid_backward_chunk); }

// (grad_output, alpha, scale, input_scale, is_result, self_or_result)
RAL_KERNEL ral_sim_elu_backward(const ral_call* call) {
  const auto numbers = numbers_from(call, 1, std::array{1.0, 1.0, 1.0});
  const ral_value operands[2] = {argument(call, 0), argument(call, 5)};
  ral_call both = *call;
  both.args = operands;
  both.arg_count = 2;
  const bool of_result = integer(argument(call, 4)) != 0;
  return apply<2>(&both, of_result ? elu_backward_of_result_chunk : elu_backward_chunk, numbers.data());
}
