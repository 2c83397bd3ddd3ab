// Blocks of both matrices are packed as floats, so that the inner loop reads memory in order whatever the strides and
// the dtype. A tile of C, kRows x kColumns, is held in registers.
#include "gemm.h"

#include <algorithm>
#include <type_traits>

#include "lanes.h"

namespace ral::sim {

namespace {

constexpr Index kRows = 6;
constexpr Index kVector = 16;
constexpr Index kColumns = 2 * kVector;
// Depth of one packed block. A panel of B stays in the first-level cache; sums of 256 products of int8 are exact in
// float32.
constexpr Index kDepth = 256;
constexpr Index kBlockRows = 192;
constexpr Index kBlockColumns = 512;

using Vector = float __attribute__((vector_size(kVector * sizeof(float)), aligned(4), may_alias));

// kRows rows of A: where they begin, and the steps to the next row and to the next column.
struct Rows {
  const float* data;
  Index row_stride;
  Index column_stride;
};

// b: `depth` rows of kColumns numbers, of which kVectors times kVector are multiplied; tile: kRows x kColumns.
template <Index kVectors>
__attribute__((always_inline)) inline void multiply_vectors(Index depth, const Rows& a, const float* b, float* tile) {
  Vector sum[kRows][kVectors] = {};
  const float* column = a.data;
  for (Index k = 0; k < depth; ++k) {
    const auto* row = reinterpret_cast<const Vector*>(b + k * kColumns);
#pragma GCC unroll 6
    for (Index i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (Index v = 0; v < kVectors; ++v) {
        sum[i][v] += column[i * a.row_stride] * row[v];
      }
    }
    column += a.column_stride;
  }
#pragma GCC unroll 6
  for (Index i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (Index v = 0; v < kVectors; ++v) {
      reinterpret_cast<Vector*>(tile + i * kColumns)[v] = sum[i][v];
    }
  }
}

// As many sums at once as the machine has registers for; of a narrow tile the first half only.
#if defined(__x86_64__) && !defined(RAL_ONE_LEVEL)
__attribute__((target("arch=x86-64-v4"))) void multiply_tile(Index depth, const Rows& a, const float* b, Index width,
                                                             float* tile) {
  if (width > kVector) {
    multiply_vectors<2>(depth, a, b, tile);
  } else {
    multiply_vectors<1>(depth, a, b, tile);
  }
}
__attribute__((target("arch=x86-64-v3"))) void multiply_tile(Index depth, const Rows& a, const float* b, Index width,
                                                             float* tile) {
  for (Index column = 0; column < width; column += kVector) {
    multiply_vectors<1>(depth, a, b + column, tile + column);
  }
}
__attribute__((target("default")))
#endif
void multiply_tile(Index depth, const Rows& a, const float* b, Index width, float* tile) {
  for (Index column = 0; column < width; column += kVector) {
    multiply_vectors<1>(depth, a, b + column, tile + column);
  }
}

using Four = float __attribute__((vector_size(16), aligned(4), may_alias));
using FourPlaces = std::int32_t __attribute__((vector_size(16)));

// Four numbers of four lines each, turned: to[k * width + line] = from[line * stride + k].
RAL_INLINE void turn_four(const float* from, Index stride, float* to, Index width) {
  const Four& a = *reinterpret_cast<const Four*>(from);
  const Four& b = *reinterpret_cast<const Four*>(from + stride);
  const Four& c = *reinterpret_cast<const Four*>(from + 2 * stride);
  const Four& d = *reinterpret_cast<const Four*>(from + 3 * stride);
  constexpr FourPlaces low = {0, 4, 1, 5};
  constexpr FourPlaces high = {2, 6, 3, 7};
  constexpr FourPlaces firsts = {0, 1, 4, 5};
  constexpr FourPlaces lasts = {2, 3, 6, 7};
  const Four ab_low = __builtin_shuffle(a, b, low);
  const Four ab_high = __builtin_shuffle(a, b, high);
  const Four cd_low = __builtin_shuffle(c, d, low);
  const Four cd_high = __builtin_shuffle(c, d, high);
  *reinterpret_cast<Four*>(to) = __builtin_shuffle(ab_low, cd_low, firsts);
  *reinterpret_cast<Four*>(to + width) = __builtin_shuffle(ab_low, cd_low, lasts);
  *reinterpret_cast<Four*>(to + 2 * width) = __builtin_shuffle(ab_high, cd_high, firsts);
  *reinterpret_cast<Four*>(to + 3 * width) = __builtin_shuffle(ab_high, cd_high, lasts);
}

// Packs whole fours of lines that lie along the depth; returns how many lines.
template <Index kWidth>
RAL_INLINE Index pack_fours(const float* from, Index line_stride, Index lines, Index depth, float* to) {
  const Index whole = lines / 4 * 4;
  for (Index k = 0; k + 4 <= depth; k += 4) {
    for (Index line = 0; line < whole; line += 4) {
      turn_four(from + line * line_stride + k, line_stride, to + k * kWidth + line, kWidth);
    }
  }
  for (Index k = depth / 4 * 4; k < depth; ++k) {
    for (Index line = 0; line < whole; ++line) {
      to[k * kWidth + line] = from[line * line_stride + k];
    }
  }
  return whole;
}

// `lines` lines of `depth` numbers become columns of a panel that is kWidth wide, the rest of it zeros.
template <Index kWidth, class T>
RAL_WIDE void pack_panel(const T* from, Index line_stride, Index depth_stride, Index lines, Index depth, float* to) {
  if (lines == kWidth && line_stride == 1) {
    for (Index k = 0; k < depth; ++k) {
      for (Index line = 0; line < kWidth; ++line) {
        to[k * kWidth + line] = to_float(from[k * depth_stride + line]);
      }
    }
    return;
  }
  if (lines < kWidth) {
    std::fill(to, to + depth * kWidth, 0.0f);
  }
  Index first = 0;
  if constexpr (std::is_same_v<T, float>) {
    first = depth_stride == 1 ? pack_fours<kWidth>(from, line_stride, lines, depth, to) : 0;
  }
  // A few lines at a time, so that each cache line of the panel is written while it is near.
  for (Index begin = 0; begin < depth; begin += 16) {
    const Index end = std::min(depth, begin + 16);
    for (Index line = first; line < lines; ++line) {
      const T* source = from + line * line_stride;
      for (Index k = begin; k < end; ++k) {
        to[k * kWidth + line] = to_float(source[k * depth_stride]);
      }
    }
  }
}

template <Index kWidth>
void pack(int dtype, const void* data, Index offset, Index line_stride, Index depth_stride, Index lines, Index depth,
          float* to) {
  with_element(dtype, [&](auto element) {
    const auto* from = static_cast<const decltype(element)*>(data) + offset;
    for (Index line = 0; line < lines; line += kWidth) {
      pack_panel<kWidth>(from + line * line_stride, line_stride, depth_stride, std::min(kWidth, lines - line), depth,
                         to + line * depth);
    }
  });
}

// The part of a tile that lies in C, added to what is there or in its place.
template <class Sum>
RAL_WIDE void put_tile(const float* tile, float alpha, Index height, Index width, const Destination<Sum>& c, bool add) {
  for (Index i = 0; i < height; ++i) {
    Sum* to = c.data + i * c.row_stride;
    const float* from = tile + i * kColumns;
    if (c.column_stride == 1 && add) {
#pragma GCC ivdep
      for (Index j = 0; j < width; ++j) {
        to[j] += static_cast<Sum>(alpha * from[j]);
      }
    } else if (c.column_stride == 1) {
#pragma GCC ivdep
      for (Index j = 0; j < width; ++j) {
        to[j] = static_cast<Sum>(alpha * from[j]);
      }
    } else {
      for (Index j = 0; j < width; ++j) {
        to[j * c.column_stride] = (add ? to[j * c.column_stride] : Sum{0}) + static_cast<Sum>(alpha * from[j]);
      }
    }
  }
}

// The rows of A that a block takes: its own memory, or packed where that is no float32 or has too few rows for a panel.
class RowPanels {
 public:
  RowPanels(const Matrix& a, Index row, Index rows, Index from, Index depth, float* packed)
      : a_(a), offset_(row * a.row_stride + from * a.column_stride), depth_(depth), packed_(packed) {
    whole_ = a.dtype == RAL_FLOAT32 ? rows / kRows * kRows : 0;
    pack<kRows>(a.dtype, a.data, offset_ + whole_ * a.row_stride, a.row_stride, a.column_stride, rows - whole_, depth,
                packed);
  }
  Rows at(Index i) const {
    if (i < whole_) {
      return {static_cast<const float*>(a_.data) + offset_ + i * a_.row_stride, a_.row_stride, a_.column_stride};
    }
    return {packed_ + (i - whole_) * depth_, 1, kRows};
  }

 private:
  const Matrix& a_;
  Index offset_;
  Index depth_;
  float* packed_;
  Index whole_;
};

template <class Sum>
void multiply_blocks(Index m, Index n, Index k, float alpha, const Matrix& a, const Matrix& b,
                     const Destination<Sum>& c) {
  thread_local std::vector<float> packed_a(kBlockRows * kDepth);
  thread_local std::vector<float> packed_b(kBlockColumns * kDepth);
  alignas(64) float tile[kRows * kColumns];
  for (Index column = 0; column < n; column += kBlockColumns) {
    const Index columns = std::min(kBlockColumns, n - column);
    for (Index from = 0; from < k; from += kDepth) {
      const Index depth = std::min(kDepth, k - from);
      const bool add = from > 0 || !c.fresh;
      pack<kColumns>(b.dtype, b.data, from * b.row_stride + column * b.column_stride, b.column_stride, b.row_stride,
                     columns, depth, packed_b.data());
      for (Index row = 0; row < m; row += kBlockRows) {
        const Index rows = std::min(kBlockRows, m - row);
        const RowPanels panels(a, row, rows, from, depth, packed_a.data());
        for (Index j = 0; j < columns; j += kColumns) {
          const Index width = std::min(kColumns, columns - j);
          for (Index i = 0; i < rows; i += kRows) {
            multiply_tile(depth, panels.at(i), packed_b.data() + j * depth, width, tile);
            Sum* to = c.data + (row + i) * c.row_stride + (column + j) * c.column_stride;
            put_tile<Sum>(tile, alpha, std::min(kRows, rows - i), width, {to, c.row_stride, c.column_stride, c.fresh},
                          add);
          }
        }
      }
    }
  }
}

// Rows of C in memory order: else the transposed product is computed.
template <class Sum>
void multiply_either_way(Index m, Index n, Index k, float alpha, const Matrix& a, const Matrix& b,
                         const Destination<Sum>& c) {
  if (c.column_stride != 1 && c.row_stride == 1) {
    multiply_blocks<Sum>(n, m, k, alpha, {b.data, b.dtype, b.column_stride, b.row_stride},
                         {a.data, a.dtype, a.column_stride, a.row_stride},
                         {c.data, c.column_stride, c.row_stride, c.fresh});
    return;
  }
  multiply_blocks(m, n, k, alpha, a, b, c);
}

}  // namespace

void multiply(Index m, Index n, Index k, float alpha, const Matrix& a, const Matrix& b, const Destination<float>& c) {
  multiply_either_way(m, n, k, alpha, a, b, c);
}

void multiply(Index m, Index n, Index k, const Matrix& a, const Matrix& b, const Destination<std::int32_t>& c) {
  multiply_either_way(m, n, k, 1.0f, a, b, c);
}

}  // namespace ral::sim
