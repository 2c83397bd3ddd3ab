// exp, log, tanh and erf without a call, so that loops over them become vector code. Within 2-3 ulp of float32.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace ral::sim {

inline float fast_exp(float x) {
  constexpr float kLow = -87.33654f;
  constexpr float kHigh = 88.72283f;
  const float clamped = x < kLow ? kLow : x > kHigh ? kHigh : x;
  // Rounding by adding and taking away a large number: no call, no mode.
  constexpr float kRound = 12582912.0f;
  const float n = (clamped * 1.44269504f + kRound) - kRound;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two halves: 2^128 alone would not be a number.
  const auto half = static_cast<std::int32_t>(n) >> 1;
  const std::int32_t first_bits = (half + 127) << 23;
  const std::int32_t second_bits = (static_cast<std::int32_t>(n) - half + 127) << 23;
  float first;
  float second;
  std::memcpy(&first, &first_bits, sizeof first);
  std::memcpy(&second, &second_bits, sizeof second);
  const float result = p * first * second;
  const float bounded = x < kLow ? 0.0f : x > kHigh ? INFINITY : result;
  return x != x ? x : bounded;
}

inline float fast_tanh(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = p * z * x + x;
  const float magnitude = x < 0 ? -x : x;
  const float large = 1.0f - 2.0f / (fast_exp(2.0f * magnitude) + 1.0f);
  return magnitude < 0.625f ? small : x < 0 ? -large : large;
}

inline float fast_erf(float x) {
  const float c = x < -4.0f ? -4.0f : x > 4.0f ? 4.0f : x;
  const float z = c * c;
  float p = -2.72614225801306e-10f;
  p = p * z + 2.77068142495902e-08f;
  p = p * z - 2.10102402082508e-06f;
  p = p * z - 5.69250639462346e-05f;
  p = p * z - 7.34990630326855e-04f;
  p = p * z - 2.95459980854025e-03f;
  p = p * z - 1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * z - 2.13374055278905e-04f;
  q = q * z - 1.68282697438203e-03f;
  q = q * z - 7.37332916720468e-03f;
  q = q * z - 1.42647390514189e-02f;
  return c * p / q;
}

// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); a polynomial for log(m).
inline float fast_log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;
  std::int32_t bits;
  std::memcpy(&bits, &scaled, sizeof bits);
  const std::int32_t shift = (bits - 0x3F3504F3) >> 23;
  const std::int32_t mantissa = bits - (shift << 23);
  float m;
  std::memcpy(&m, &mantissa, sizeof m);
  const float e = static_cast<float>(shift) - (tiny ? 23.0f : 0.0f);
  const float r = m - 1.0f;
  const float z = r * r;
  float p = 7.0376836292e-2f;
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const float result = r + (p * r * z + e * -2.12194440e-4f - 0.5f * z) + e * 0.693359375f;
  const float finite = x == INFINITY ? x : result;
  return x > 0 ? finite : x == 0 ? -INFINITY : NAN;
}

inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

// exp(x) - 1: near 0 by its series, which keeps all digits.
inline float expm1_of(float x) {
  const float series = x * (1.0f + x * (0.5f + x * (0.16666667f + x * (0.041666668f + x * 0.008333334f))));
  return x > -0.1f && x < 0.1f ? series : fast_exp(x) - 1.0f;
}

// log(1 + exp(x)). What 1 + exp(x) loses in rounding is added again.
inline float log1p_exp(float x) {
  const float e = fast_exp(x);
  const float sum = 1.0f + e;
  return x > 80.0f ? x : fast_log(sum) + (e - (sum - 1.0f)) / sum;
}

// x, but no less than 0 and no more than `high`.
inline float clamped(float x, float high) { return x < 0 ? 0.0f : x > high ? high : x; }

}  // namespace ral::sim
