// Arithmetic element by element in float32; add and its like also in integers.
#include <cmath>

#include "chunks.h"

namespace ral::sim {

namespace {

CHUNK1(neg_chunk, -a)
CHUNK1(abs_chunk, a < 0 ? -a : a + 0.0f)
CHUNK1(exp_chunk, fast_exp(a))
CHUNK1(sqrt_chunk, __builtin_sqrtf(a))
CHUNK1(rsqrt_chunk, 1.0f / __builtin_sqrtf(a))
CHUNK1(reciprocal_chunk, 1.0f / a)

CHUNK1(relu_chunk, a < 0 ? 0.0f : a)

CHUNK1(log_chunk, fast_log(a))
CHUNK1(sin_chunk, std::sin(a))
CHUNK1(cos_chunk, std::cos(a))
CHUNK1(floor_chunk, std::floor(a))
CHUNK1(ceil_chunk, std::ceil(a))
CHUNK1(sign_chunk, a > 0 ? 1.0f : a < 0 ? -1.0f : 0.0f)
CHUNK1(erf_chunk, fast_erf(a))
CHUNK1(log1p_chunk, std::log1p(a))
CHUNK1(expm1_chunk, std::expm1(a))
CHUNK1(square_chunk, a* a)
CHUNK1(cube_chunk, a * a * a)
CHUNK1(copy_chunk, a)
CHUNK1(clamp_chunk, a<numbers[0] ? numbers[0] : a> numbers[1] ? numbers[1] : a)

CHUNK2(add_chunk, a + b)
CHUNK2(add_scaled_chunk, a + numbers[0] * b)
CHUNK2(mul_chunk, a* b)
CHUNK2(div_chunk, a / b)
CHUNK2(pow_chunk, std::pow(a, b))
CHUNK2(maximum_chunk, a != a || a > b ? a : b)
CHUNK2(minimum_chunk, a != a || a < b ? a : b)

CHUNK3(addcmul_chunk, a + value * b * c)
CHUNK3(addcdiv_chunk, a + value * (b / c))
CHUNK3(lerp_chunk, c<0.5f && c> - 0.5f ? a + c * (b - a) : b - (b - a) * (1.0f - c))

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

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
UNARY(floor)
UNARY(ceil)
UNARY(sign)
UNARY(erf)
UNARY(log1p)
UNARY(expm1)
UNARY(log)
UNARY(sin)
UNARY(cos)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(reciprocal)

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
