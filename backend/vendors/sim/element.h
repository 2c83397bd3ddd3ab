// Numbers of each dtype as float32 and back: what kernels that compute in float32 read and write.
#pragma once

#include <cmath>
#include <vector>

#include "kernels.h"

namespace ral::sim {

struct BFloat16 {
  std::uint16_t bits;
};
using Float16 = _Float16;

inline bool is_floating(int dtype) { return dtype == RAL_FLOAT32 || dtype == RAL_BFLOAT16 || dtype == RAL_FLOAT16; }
inline bool is_integer(int dtype) {
  return dtype == RAL_INT8 || dtype == RAL_UINT8 || dtype == RAL_INT16 || dtype == RAL_INT32 || dtype == RAL_INT64;
}

template <class T>
inline float to_float(T x) {
  return static_cast<float>(x);
}
template <>
inline float to_float(BFloat16 x) {
  const std::uint32_t wide = static_cast<std::uint32_t>(x.bits) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}

template <class T>
inline T from_float(float x) {
  return static_cast<T>(x);
}
// To nearest, ties to even; not a number stays one.
template <>
inline BFloat16 from_float(float x) {
  std::uint32_t wide;
  std::memcpy(&wide, &x, sizeof wide);
  const std::uint32_t rounded = (wide + 0x7FFFu + (wide >> 16 & 1u)) >> 16;
  return {static_cast<std::uint16_t>((wide & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded)};
}

// Calls body(T{}) with an element of the dtype. False: kernels do not compute with it.
template <class Body>
bool with_element(int dtype, Body&& body) {
  switch (dtype) {
    case RAL_FLOAT32:
      body(float{});
      return true;
    case RAL_BFLOAT16:
      body(BFloat16{});
      return true;
    case RAL_FLOAT16:
      body(Float16{});
      return true;
    case RAL_INT8:
      body(std::int8_t{});
      return true;
    case RAL_BOOL:
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

inline bool is_computed(int dtype) {
  return with_element(dtype, [](auto) {});
}

// `count` elements from `data`, `stride` apart, as floats; and back, to a dtype that is floating.
void load_floats(int dtype, const void* data, Index stride, Index count, float* to);
void store_floats(int dtype, const float* from, void* data, Index stride, Index count);

// A tensor's numbers as contiguous floats: its own memory where it is that already, else a copy.
class FloatsIn {
 public:
  explicit FloatsIn(const ral_tensor& t);
  const float* data() const { return data_; }
  const float* operator+(Index offset) const { return data_ + offset; }
  float operator[](Index i) const { return data_[i]; }

 private:
  std::vector<float> copy_;
  const float* data_;
};

// Contiguous floats that become the tensor's numbers with commit(), or are its own memory.
class FloatsOut {
 public:
  explicit FloatsOut(const ral_tensor& t);
  float* data() { return data_; }
  void commit() const;

 private:
  ral_tensor tensor_;
  std::vector<float> copy_;
  float* data_;
};

}  // namespace ral::sim
