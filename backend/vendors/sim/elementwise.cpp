// Operators that compute element by element in float32; add and its like also in integers.
#include "elementwise.h"

#include <cmath>

#include "fastmath.h"

namespace ral::sim {

namespace {

// a, b, c: the operands' elements; numbers[i]: what the operator takes as plain numbers.
#define CHUNK1(name, expression)                                                              \
  RAL_WIDE void name(const float* const* in, float* out, Index count, const float* numbers) { \
    (void)numbers;                                                                            \
    const float* pa = in[0];                                                                  \
    _Pragma("GCC ivdep") for (Index i = 0; i < count; ++i) {                                  \
      const float a = pa[i];                                                                  \
      out[i] = (expression);                                                                  \
    }                                                                                         \
  }
#define CHUNK2(name, expression)                                                              \
  RAL_WIDE void name(const float* const* in, float* out, Index count, const float* numbers) { \
    (void)numbers;                                                                            \
    const float* pa = in[0];                                                                  \
    const float* pb = in[1];                                                                  \
    _Pragma("GCC ivdep") for (Index i = 0; i < count; ++i) {                                  \
      const float a = pa[i];                                                                  \
      const float b = pb[i];                                                                  \
      out[i] = (expression);                                                                  \
    }                                                                                         \
  }
#define CHUNK3(name, expression)                                                              \
  RAL_WIDE void name(const float* const* in, float* out, Index count, const float* numbers) { \
    const float* pa = in[0];                                                                  \
    const float* pb = in[1];                                                                  \
    const float* pc = in[2];                                                                  \
    const float value = numbers[0];                                                           \
    (void)value;                                                                              \
    _Pragma("GCC ivdep") for (Index i = 0; i < count; ++i) {                                  \
      const float a = pa[i];                                                                  \
      const float b = pb[i];                                                                  \
      const float c = pc[i];                                                                  \
      out[i] = (expression);                                                                  \
    }                                                                                         \
  }

CHUNK1(neg_chunk, -a)
CHUNK1(abs_chunk, a < 0 ? -a : a + 0.0f)
CHUNK1(exp_chunk, fast_exp(a))
CHUNK1(sqrt_chunk, __builtin_sqrtf(a))
CHUNK1(rsqrt_chunk, 1.0f / __builtin_sqrtf(a))
CHUNK1(reciprocal_chunk, 1.0f / a)
CHUNK1(tanh_chunk, fast_tanh(a))
CHUNK1(sigmoid_chunk, fast_sigmoid(a))
CHUNK1(relu_chunk, a < 0 ? 0.0f : a)
CHUNK1(silu_chunk, a* fast_sigmoid(a))
CHUNK1(log_chunk, fast_log(a))
CHUNK1(sin_chunk, std::sin(a))
CHUNK1(cos_chunk, std::cos(a))
CHUNK1(square_chunk, a* a)
CHUNK1(cube_chunk, a * a * a)
CHUNK1(copy_chunk, a)
CHUNK1(clamp_chunk, a<numbers[0] ? numbers[0] : a> numbers[1] ? numbers[1] : a)
CHUNK1(gelu_chunk, 0.5f * a * (1.0f + fast_erf(a * 0.70710678f)))
CHUNK1(gelu_tanh_chunk, 0.5f * a * (1.0f + fast_tanh(0.79788456f * (a + 0.044715f * a * a * a))))

CHUNK2(add_chunk, a + b)
CHUNK2(add_scaled_chunk, a + numbers[0] * b)
CHUNK2(mul_chunk, a* b)
CHUNK2(div_chunk, a / b)
CHUNK2(pow_chunk, std::pow(a, b))
CHUNK2(maximum_chunk, a != a || a > b ? a : b)
CHUNK2(minimum_chunk, a != a || a < b ? a : b)
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

CHUNK3(addcmul_chunk, a + value * b * c)
CHUNK3(addcdiv_chunk, a + value * (b / c))
CHUNK3(lerp_chunk, c<0.5f && c> - 0.5f ? a + c * (b - a) : b - (b - a) * (1.0f - c))

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

#define UNARY(name) \
  RAL_KERNEL ral_sim_##name(const ral_call* call) { return apply<1>(call, name##_chunk); }
#define BINARY(name) \
  RAL_KERNEL ral_sim_##name(const ral_call* call) { return apply<2>(call, name##_chunk); }
#define WITH_INTEGERS(operands, name, op)                                                                        \
  RAL_KERNEL ral_sim_##name(const ral_call* call) {                                                              \
    return has_integer_output(call) ? apply_integers(call, IntegerOp::op) : apply<operands>(call, name##_chunk); \
  }

WITH_INTEGERS(1, neg, kNeg)
WITH_INTEGERS(1, abs, kAbs)
WITH_INTEGERS(1, relu, kRelu)
WITH_INTEGERS(2, mul, kMul)
WITH_INTEGERS(2, maximum, kMaximum)
WITH_INTEGERS(2, minimum, kMinimum)

UNARY(exp)
UNARY(log)
UNARY(sin)
UNARY(cos)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(reciprocal)
UNARY(tanh)
UNARY(sigmoid)
UNARY(silu)
BINARY(tanh_backward)
BINARY(sigmoid_backward)
BINARY(silu_backward)

// (self, other, alpha)
RAL_KERNEL ral_sim_add(const ral_call* call) {
  if (has_integer_output(call)) {
    return apply_integers(call, number(argument(call, 2), 1.0) == 1.0 ? IntegerOp::kAdd : IntegerOp::kAddScaled);
  }
  const auto alpha = static_cast<float>(number(argument(call, 2), 1.0));
  return apply<2>(call, alpha == 1.0f ? add_chunk : add_scaled_chunk, &alpha);
}

RAL_KERNEL ral_sim_sub(const ral_call* call) {
  if (has_integer_output(call)) {
    return apply_integers(call, number(argument(call, 2), 1.0) == 1.0 ? IntegerOp::kSub : IntegerOp::kSubScaled);
  }
  const auto alpha = static_cast<float>(-number(argument(call, 2), 1.0));
  return apply<2>(call, add_scaled_chunk, &alpha);
}

// (self, other, rounding_mode)
RAL_KERNEL ral_sim_div(const ral_call* call) {
  if (argument(call, 2).tag != RAL_NONE) {
    return decline(call, "rounding");
  }
  return apply<2>(call, div_chunk);
}

// (self, exponent)
RAL_KERNEL ral_sim_pow(const ral_call* call) {
  const ral_value& exponent = argument(call, 1);
  if (is_number(exponent) && is_tensor(call->args[0])) {
    const double power = number(exponent);
    if (power == 2.0 || power == 3.0 || power == 1.0 || power == 0.5 || power == -0.5 || power == -1.0) {
      return apply<1>(call, power == 2.0    ? square_chunk
                            : power == 3.0  ? cube_chunk
                            : power == 1.0  ? copy_chunk
                            : power == 0.5  ? sqrt_chunk
                            : power == -0.5 ? rsqrt_chunk
                                            : reciprocal_chunk);
    }
  }
  return apply<2>(call, pow_chunk);
}

// (self, min, max)
RAL_KERNEL ral_sim_clamp(const ral_call* call) {
  if (is_tensor(argument(call, 1)) || is_tensor(argument(call, 2))) {
    return decline(call, "limits that are tensors");
  }
  if (has_integer_output(call)) {
    return apply_integers(call, IntegerOp::kClamp);
  }
  const float limits[2] = {static_cast<float>(number(argument(call, 1), -INFINITY)),
                           static_cast<float>(number(argument(call, 2), INFINITY))};
  if (limits[0] != limits[0] || limits[1] != limits[1] || limits[0] > limits[1]) {
    return decline(call, "limits that are not in order");
  }
  return apply<1>(call, clamp_chunk, limits);
}

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

// (self, tensor1, tensor2, value)
RAL_KERNEL ral_sim_addcmul(const ral_call* call) {
  const auto value = static_cast<float>(number(argument(call, 3), 1.0));
  return apply<3>(call, addcmul_chunk, &value);
}

RAL_KERNEL ral_sim_addcdiv(const ral_call* call) {
  const auto value = static_cast<float>(number(argument(call, 3), 1.0));
  return apply<3>(call, addcdiv_chunk, &value);
}

// (self, end, weight)
RAL_KERNEL ral_sim_lerp(const ral_call* call) {
  const float unused = 0;
  return apply<3>(call, lerp_chunk, &unused);
}
