// One operator as a loop over chunks of float32; elementwise.h calls it.
#pragma once

#include "elementwise.h"
#include "fastmath.h"

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

#define UNARY(name) \
  RAL_KERNEL ral_sim_##name(const ral_call* call) { return apply<1>(call, name##_chunk); }
#define BINARY(name) \
  RAL_KERNEL ral_sim_##name(const ral_call* call) { return apply<2>(call, name##_chunk); }
