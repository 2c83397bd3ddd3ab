// Work along one dimension: each line of it, gathered where it is not contiguous.
#pragma once

#include "element.h"

namespace ral::sim {

// Calls body(offsets) for each line along `dim` of N tensors that have the same sizes.
template <std::size_t N, class Body>
void for_each_line(const std::array<const ral_tensor*, N>& tensors, int dim, Body&& body) {
  const ral_tensor& first = *tensors[0];
  std::vector<Index> sizes;
  std::array<std::vector<Index>, N> strides;
  for (int d = 0; d < first.ndim; ++d) {
    if (d != dim) {
      sizes.push_back(first.sizes[d]);
      for (std::size_t n = 0; n < N; ++n) {
        strides[n].push_back(tensors[n]->strides[d]);
      }
    }
  }
  Loops<N> loops(static_cast<int>(sizes.size()), sizes.data());
  for (std::size_t n = 0; n < N; ++n) {
    loops.set_strides(n, std::move(strides[n]));
  }
  loops.run([&](Index count, std::array<Index, N> offsets, const std::array<Index, N>& inner) {
    for (Index i = 0; i < count; ++i) {
      body(offsets);
      for (std::size_t n = 0; n < N; ++n) {
        offsets[n] += inner[n];
      }
    }
  });
}

inline bool is_line_of_floats(const ral_tensor& t, int dim) {
  return t.dtype == RAL_FLOAT32 && (t.strides[dim] == 1 || t.sizes[dim] == 1);
}

// The line along `dim` as contiguous floats: the tensor's own memory, or gathered into `buffer`.
inline const float* line(const ral_tensor& t, Index offset, int dim, std::vector<float>& buffer) {
  if (is_line_of_floats(t, dim)) {
    return floats(t) + offset;
  }
  buffer.resize(static_cast<std::size_t>(t.sizes[dim]));
  load_floats(t.dtype, bytes(t) + offset * item_size(t.dtype), t.strides[dim], t.sizes[dim], buffer.data());
  return buffer.data();
}

// Where to write the line's floats: its own memory or `buffer`; write_line() takes them from there.
inline float* line_to_write(const ral_tensor& t, Index offset, int dim, std::vector<float>& buffer) {
  if (is_line_of_floats(t, dim)) {
    return floats(t) + offset;
  }
  buffer.resize(static_cast<std::size_t>(t.sizes[dim]));
  return buffer.data();
}

inline void write_line(const ral_tensor& t, Index offset, int dim, const float* from) {
  if (!is_line_of_floats(t, dim)) {
    store_floats(t.dtype, from, static_cast<std::uint8_t*>(t.data) + offset * item_size(t.dtype), t.strides[dim],
                 t.sizes[dim]);
  }
}

}  // namespace ral::sim
