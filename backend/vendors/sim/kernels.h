// What the kernels of `sim` share: reading a call, walking tensors by their strides.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "ral_plugin.h"

#define RAL_KERNEL extern "C" __attribute__((visibility("default"))) int

// The accelerator model computes as wide as the machine can. Levels, not the names of processors: a name is taken only
// on a processor of that very make. RAL_ONE_LEVEL leaves all but the plain code out, so that it can be tested too.
#if defined(__x86_64__) && !defined(RAL_ONE_LEVEL)
#define RAL_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define RAL_WIDE
#endif

namespace ral::sim {

using Index = std::int64_t;

inline int decline(const ral_call* call, const char* reason) {
  std::snprintf(call->reason, call->reason_size, "%s", reason);
  return RAL_DECLINED;
}

inline int fail(const ral_call* call, const char* reason) {
  std::snprintf(call->reason, call->reason_size, "%s", reason);
  return RAL_FAILED;
}

inline bool is_tensor(const ral_value& value) { return value.tag == RAL_TENSOR; }
inline bool is_number(const ral_value& value) { return value.tag == RAL_INT || value.tag == RAL_DOUBLE; }
inline bool wanted(const ral_tensor& tensor) { return tensor.ndim >= 0; }

inline double number(const ral_value& value, double otherwise = 0.0) {
  return value.tag == RAL_INT ? static_cast<double>(value.as.i) : value.tag == RAL_DOUBLE ? value.as.d : otherwise;
}
inline Index integer(const ral_value& value, Index otherwise = 0) {
  return value.tag == RAL_INT ? value.as.i : value.tag == RAL_DOUBLE ? static_cast<Index>(value.as.d) : otherwise;
}
// Arguments after the last one that the call has are as if they were not given.
inline const ral_value& argument(const ral_call* call, int i) {
  static constexpr ral_value none = {RAL_NONE, 0, {0}};
  return i < call->arg_count ? call->args[i] : none;
}
inline const ral_tensor& tensor(const ral_call* call, int i) { return *call->args[i].as.tensors; }

inline Index numel(const ral_tensor& t) {
  Index count = 1;
  for (int d = 0; d < t.ndim; ++d) {
    count *= t.sizes[d];
  }
  return count;
}

inline bool contiguous(const ral_tensor& t) {
  Index expected = 1;
  for (int d = t.ndim; d-- > 0;) {
    if (t.sizes[d] != 1 && t.strides[d] != expected) {
      return false;
    }
    expected *= t.sizes[d];
  }
  return true;
}

inline bool same_sizes(const ral_tensor& a, const ral_tensor& b) {
  return a.ndim == b.ndim && std::equal(a.sizes, a.sizes + a.ndim, b.sizes);
}

inline Index wrapped(Index dim, int ndim) { return dim < 0 ? dim + ndim : dim; }

// One number for both dimensions of an image, or one for each; `otherwise` where the list is empty.
inline bool read_pair(const ral_value& value, const Index* otherwise, Index* pair) {
  if (value.tag != RAL_INTS || value.count > 2 || (value.count == 0 && otherwise == nullptr)) {
    return false;
  }
  for (int i = 0; i < 2; ++i) {
    pair[i] = value.count == 0 ? otherwise[i] : value.as.ints[std::min(i, value.count - 1)];
  }
  return true;
}

inline int item_size(int dtype) {
  switch (dtype) {
    case RAL_UINT8:
    case RAL_INT8:
    case RAL_BOOL:
      return 1;
    case RAL_INT16:
    case RAL_FLOAT16:
    case RAL_BFLOAT16:
      return 2;
    case RAL_INT32:
    case RAL_FLOAT32:
      return 4;
    case RAL_INT64:
    case RAL_FLOAT64:
      return 8;
    default:
      return 0;
  }
}

inline float* floats(const ral_tensor& t) { return static_cast<float*>(t.data); }
inline const std::uint8_t* bytes(const ral_tensor& t) { return static_cast<const std::uint8_t*>(t.data); }
inline const std::int64_t* longs(const ral_tensor& t) { return static_cast<const std::int64_t*>(t.data); }

// A loop nest over N tensors of one shape, dimensions merged where all of them allow it. Calls body(count, pointers'
// offsets, inner strides), all counted in elements, once an innermost run.
template <std::size_t N>
class Loops {
 public:
  explicit Loops(int ndim, const Index* sizes) : sizes_(sizes, sizes + ndim) {}

  // Strides of operand `which`, which broadcasts: aligned at the last dimension, a size of 1 repeats. False: it does
  // not fit.
  bool add(std::size_t which, const ral_tensor& t) {
    const int lead = static_cast<int>(sizes_.size()) - t.ndim;
    strides_[which].assign(sizes_.size(), 0);
    if (lead < 0) {
      return false;
    }
    for (int d = 0; d < t.ndim; ++d) {
      const auto at = static_cast<std::size_t>(lead + d);
      if (t.sizes[d] != sizes_[at] && t.sizes[d] != 1) {
        return false;
      }
      strides_[which][at] = t.sizes[d] == 1 ? 0 : t.strides[d];
    }
    return true;
  }
  void add_number(std::size_t which) { strides_[which].assign(sizes_.size(), 0); }
  // Dimensions in the order of operand `which`'s memory, so that the innermost run goes along it. For bodies that do
  // not mind the order of the runs.
  void order_by(std::size_t which) {
    for (std::size_t d = 1; d < sizes_.size(); ++d) {
      for (std::size_t e = d; e > 0 && strides_[which][e - 1] < strides_[which][e]; --e) {
        std::swap(sizes_[e - 1], sizes_[e]);
        for (auto& strides : strides_) {
          std::swap(strides[e - 1], strides[e]);
        }
      }
    }
  }
  void set_strides(std::size_t which, std::vector<Index> strides) { strides_[which] = std::move(strides); }

  template <class Body>
  void run(Body&& body) {
    merge();
    for (const Index size : sizes_) {
      if (size == 0) {
        return;
      }
    }
    std::array<Index, N> offsets{};
    std::array<Index, N> inner{};
    if (sizes_.empty()) {
      body(Index{1}, offsets, inner);
      return;
    }
    const std::size_t last = sizes_.size() - 1;
    for (std::size_t n = 0; n < N; ++n) {
      inner[n] = strides_[n][last];
    }
    std::vector<Index> at(last, 0);
    for (;;) {
      body(sizes_[last], offsets, inner);
      std::size_t d = last;
      for (;;) {
        if (d-- == 0) {
          return;
        }
        for (std::size_t n = 0; n < N; ++n) {
          offsets[n] += strides_[n][d];
        }
        if (++at[d] < sizes_[d]) {
          break;
        }
        for (std::size_t n = 0; n < N; ++n) {
          offsets[n] -= strides_[n][d] * sizes_[d];
        }
        at[d] = 0;
      }
    }
  }

 private:
  void merge() {
    std::size_t kept = 0;
    for (std::size_t d = 0; d < sizes_.size(); ++d) {
      if (sizes_[d] == 1) {
        continue;
      }
      bool mergeable = kept > 0;
      for (std::size_t n = 0; n < N && mergeable; ++n) {
        mergeable = strides_[n][kept - 1] == strides_[n][d] * sizes_[d];
      }
      const std::size_t to = mergeable ? kept - 1 : kept++;
      sizes_[to] = mergeable ? sizes_[to] * sizes_[d] : sizes_[d];
      for (std::size_t n = 0; n < N; ++n) {
        strides_[n][to] = strides_[n][d];
      }
    }
    sizes_.resize(kept);
    for (auto& strides : strides_) {
      strides.resize(kept);
    }
  }

  std::vector<Index> sizes_;
  std::array<std::vector<Index>, N> strides_;
};

// Copies tensor to tensor of the same shape, by strides, items of `size` bytes.
void copy_strided(const ral_tensor& from, void* to, const Index* to_strides, int size);

}  // namespace ral::sim
