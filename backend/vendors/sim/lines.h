// Work along one dimension: each line of it, gathered where it is not contiguous.
#pragma once

#include "kernels.h"

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

// One line as contiguous floats: the tensor's own memory, or gathered into `buffer`.
inline const float* line(const float* data, Index offset, Index stride, Index count, std::vector<float>& buffer) {
  if (stride == 1) {
    return data + offset;
  }
  buffer.resize(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) {
    buffer[static_cast<std::size_t>(i)] = data[offset + i * stride];
  }
  return buffer.data();
}

}  // namespace ral::sim
