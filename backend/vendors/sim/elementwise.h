// Element by element, with broadcasting, in chunks: operands that are not contiguous, or of another dtype than is
// computed in, are gathered first, so that each operator is one plain loop.
#pragma once

#include <limits>
#include <type_traits>

#include "element.h"

namespace ral::sim {

constexpr Index kChunk = 512;

// chunk(inputs, output, count, numbers): C is the type computed in, Out the result's. `numbers`: what the operator takes
// as plain numbers.
template <class C, class Out = C>
using Chunk = void (*)(const C* const* in, Out* out, Index count, const C* numbers);

template <class C>
constexpr int dtype_of() {
  return std::is_same_v<C, float>          ? RAL_FLOAT32
         : std::is_same_v<C, std::int8_t>  ? RAL_INT8
         : std::is_same_v<C, std::uint8_t> ? RAL_UINT8
         : std::is_same_v<C, std::int16_t> ? RAL_INT16
         : std::is_same_v<C, std::int32_t> ? RAL_INT32
                                           : RAL_INT64;
}

// Whether a kernel that computes in C reads this dtype. bool lies in memory as uint8 does.
template <class C>
bool reads(int dtype) {
  if constexpr (std::is_same_v<C, float>) {
    return is_computed(dtype);
  }
  return dtype == dtype_of<C>() || (std::is_same_v<C, std::uint8_t> && dtype == RAL_BOOL);
}

// A plain number as C; false: it has none.
template <class C>
bool as_number(const ral_value& value, C* result) {
  if constexpr (std::is_same_v<C, float>) {
    *result = static_cast<float>(number(value));
    return true;
  } else {
    const Index i = integer(value);
    *result = static_cast<C>(i);
    return value.tag == RAL_INT && i >= std::numeric_limits<C>::min() && i <= std::numeric_limits<C>::max();
  }
}

// Where one operand's numbers come from: a tensor's memory, or one number.
template <class C>
struct Operand {
  const std::uint8_t* data = nullptr;
  int dtype = 0;
  int size = 0;
  C value = 0;

  const C* gather(Index offset, Index stride, Index count, C* buffer) const {
    if (data == nullptr) {
      std::fill(buffer, buffer + count, value);
      return buffer;
    }
    const std::uint8_t* from = data + offset * size;
    const auto* same = reinterpret_cast<const C*>(from);
    if (std::is_same_v<C, float> && dtype != RAL_FLOAT32) {
      if constexpr (std::is_same_v<C, float>) {
        load_floats(dtype, from, stride, count, buffer);
      }
      return buffer;
    }
    if (stride == 1) {
      return same;
    }
    for (Index i = 0; i < count; ++i) {
      buffer[i] = same[i * stride];
    }
    return buffer;
  }
};

// Whether the first `operands` arguments broadcast to exactly the output's shape.
bool fills_output(const ral_call* call, int operands);

template <class C, std::size_t N>
bool take_operands(const ral_call* call, Loops<N + 1>& loops, std::array<Operand<C>, N>& operands) {
  for (std::size_t n = 0; n < N; ++n) {
    const ral_value& value = argument(call, static_cast<int>(n));
    if (is_number(value)) {
      if (!as_number(value, &operands[n].value)) {
        return false;
      }
      loops.add_number(n);
      continue;
    }
    if (!is_tensor(value) || !reads<C>(value.as.tensors->dtype) || !loops.add(n, *value.as.tensors)) {
      return false;
    }
    operands[n].data = bytes(*value.as.tensors);
    operands[n].dtype = value.as.tensors->dtype;
    operands[n].size = item_size(operands[n].dtype);
  }
  return true;
}

template <class Out>
void put(const Out* from, const ral_tensor& out, Index offset, Index stride, Index count) {
  auto* to = static_cast<std::uint8_t*>(out.data) + offset * item_size(out.dtype);
  if constexpr (std::is_same_v<Out, float>) {
    store_floats(out.dtype, from, to, stride, count);
  } else {
    for (Index i = 0; i < count; ++i) {
      reinterpret_cast<Out*>(to)[i * stride] = from[i];
    }
  }
}

// out = chunk(first N arguments). The output's dtype has been checked.
template <std::size_t N, class C, class Out>
int apply_as(const ral_call* call, Chunk<C, Out> chunk, const C* numbers) {
  const ral_tensor& out = call->outputs[0];
  Loops<N + 1> loops(out.ndim, out.sizes);
  std::array<Operand<C>, N> operands;
  loops.add(N, out);
  if (!fills_output(call, N) || !take_operands<C, N>(call, loops, operands)) {
    return decline(call, "operands whose dtypes or shapes do not fit");
  }
  loops.order_by(N);
  const bool direct = std::is_same_v<Out, float> ? out.dtype == RAL_FLOAT32 : true;
  loops.run([&](Index count, const std::array<Index, N + 1>& offsets, const std::array<Index, N + 1>& strides) {
    C buffers[N][kChunk];
    Out result[kChunk];
    for (Index begin = 0; begin < count; begin += kChunk) {
      const Index length = std::min(kChunk, count - begin);
      const C* in[N];
      for (std::size_t n = 0; n < N; ++n) {
        in[n] = operands[n].gather(offsets[n] + begin * strides[n], strides[n], length, buffers[n]);
      }
      const Index offset = offsets[N] + begin * strides[N];
      if (direct && strides[N] == 1) {
        chunk(in, static_cast<Out*>(out.data) + offset, length, numbers);
      } else {
        chunk(in, result, length, numbers);
        put(result, out, offset, strides[N], length);
      }
    }
  });
  return RAL_OK;
}

// A result narrower than float32 comes from operands of that same dtype, or of bool, which any dtype holds.
inline bool operands_are(const ral_call* call, int operands, int dtype) {
  for (int n = 0; n < operands; ++n) {
    if (is_tensor(argument(call, n)) && tensor(call, n).dtype != dtype && tensor(call, n).dtype != RAL_BOOL) {
      return false;
    }
  }
  return true;
}

// out = chunk(first N arguments), computed in float32.
template <std::size_t N>
int apply(const ral_call* call, Chunk<float> chunk, const float* numbers = nullptr) {
  const int dtype = call->outputs[0].dtype;
  if (!is_floating(dtype) || (dtype != RAL_FLOAT32 && !operands_are(call, N, dtype))) {
    return decline(call, "dtypes that are not computed in float32");
  }
  return apply_as<N, float, float>(call, chunk, numbers);
}

// The operators that integers have too; each wraps around.
enum class IntegerOp { kAdd, kSub, kAddScaled, kSubScaled, kMul, kNeg, kAbs, kMaximum, kMinimum, kClamp, kRelu };
int apply_integers(const ral_call* call, IntegerOp op);

inline bool has_integer_output(const ral_call* call) { return is_integer(call->outputs[0].dtype); }

// Calls body(T{}) with an element of the integer dtype. False: it is none.
template <class Body>
bool with_integer(int dtype, Body&& body) {
  switch (dtype) {
    case RAL_INT8:
      body(std::int8_t{});
      return true;
    case RAL_UINT8:
      body(std::uint8_t{});
      return true;
    case RAL_INT16:
      body(std::int16_t{});
      return true;
    case RAL_INT32:
      body(std::int32_t{});
      return true;
    case RAL_INT64:
      body(std::int64_t{});
      return true;
    default:
      return false;
  }
}

inline bool is_text(const ral_value& value, const char* text) {
  return value.tag == RAL_TEXT && std::strcmp(value.as.text, text) == 0;
}

}  // namespace ral::sim
