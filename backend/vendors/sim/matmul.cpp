// Matrix products: blocks of both matrices are packed, so that the inner loop reads memory in order whatever the
// strides.
//
//   C[M,N] = alpha * A[M,K] * B[K,N] + beta * C0      a tile of C: kRows x kColumns, held in registers
#include <algorithm>

#include "kernels.h"

namespace ral::sim {

namespace {

constexpr Index kRows = 6;
constexpr Index kColumns = 16;
constexpr Index kDepth = 256;     // of one packed block: both panels stay in the first-level cache
constexpr Index kBlockRows = 96;  // packed A: 96 x 256 floats
constexpr Index kBlockColumns = 1024;

struct Matrix {
  const float* data;
  Index row_stride;
  Index column_stride;
};

using Vector = float __attribute__((vector_size(64), aligned(4)));

// a: kDepth columns of kRows numbers; b: kDepth rows of kColumns numbers; tile: kRows x kColumns.
RAL_WIDE void multiply_tile(Index depth, const float* a, const float* b, float* tile) {
  Vector sum[kRows];
  std::memset(sum, 0, sizeof sum);
  for (Index k = 0; k < depth; ++k) {
    Vector row;
    std::memcpy(&row, b + k * kColumns, sizeof row);
    const float* column = a + k * kRows;
    for (Index i = 0; i < kRows; ++i) {
      sum[i] += column[i] * row;
    }
  }
  std::memcpy(tile, sum, sizeof sum);
}

void pack_a(const Matrix& a, Index row, Index rows, Index from, Index depth, float* to) {
  for (Index i = 0; i < rows; i += kRows) {
    const Index height = std::min(kRows, rows - i);
    for (Index k = 0; k < depth; ++k) {
      const float* column = a.data + (row + i) * a.row_stride + (from + k) * a.column_stride;
      for (Index r = 0; r < kRows; ++r) {
        *to++ = r < height ? column[r * a.row_stride] : 0.0f;
      }
    }
  }
}

void pack_b(const Matrix& b, Index from, Index depth, Index column, Index columns, float* to) {
  for (Index j = 0; j < columns; j += kColumns) {
    const Index width = std::min(kColumns, columns - j);
    for (Index k = 0; k < depth; ++k) {
      const float* row = b.data + (from + k) * b.row_stride + (column + j) * b.column_stride;
      for (Index c = 0; c < kColumns; ++c) {
        *to++ = c < width ? row[c * b.column_stride] : 0.0f;
      }
    }
  }
}

struct Destination {
  float* data;
  Index row_stride;
  Index column_stride;
};

void add_tile(const float* tile, float alpha, Index height, Index width, const Destination& c, Index row,
              Index column) {
  for (Index i = 0; i < height; ++i) {
    float* to = c.data + (row + i) * c.row_stride + column * c.column_stride;
    const float* from = tile + i * kColumns;
    for (Index j = 0; j < width; ++j) {
      to[j * c.column_stride] += alpha * from[j];
    }
  }
}

// C += alpha * A * B
void multiply(Index m, Index n, Index k, float alpha, const Matrix& a, const Matrix& b, const Destination& c) {
  thread_local std::vector<float> packed_a(kBlockRows * kDepth);
  thread_local std::vector<float> packed_b(kBlockColumns * kDepth);
  alignas(64) float tile[kRows * kColumns];
  for (Index column = 0; column < n; column += kBlockColumns) {
    const Index columns = std::min(kBlockColumns, n - column);
    for (Index from = 0; from < k; from += kDepth) {
      const Index depth = std::min(kDepth, k - from);
      pack_b(b, from, depth, column, columns, packed_b.data());
      for (Index row = 0; row < m; row += kBlockRows) {
        const Index rows = std::min(kBlockRows, m - row);
        pack_a(a, row, rows, from, depth, packed_a.data());
        for (Index j = 0; j < columns; j += kColumns) {
          for (Index i = 0; i < rows; i += kRows) {
            multiply_tile(depth, packed_a.data() + i * depth, packed_b.data() + j * depth, tile);
            add_tile(tile, alpha, std::min(kRows, rows - i), std::min(kColumns, columns - j), c, row + i, column + j);
          }
        }
      }
    }
  }
}

Matrix matrix(const ral_tensor& t, Index batch = 0) {
  const Index offset = t.ndim == 3 ? batch * t.strides[0] : 0;
  return {floats(t) + offset, t.strides[t.ndim - 2], t.strides[t.ndim - 1]};
}

// Sets `out` to beta times `start` (broadcast), or to zero.
bool begin(const ral_tensor& out, const ral_tensor* start, float beta) {
  Loops<2> loops(out.ndim, out.sizes);
  loops.add(0, out);
  if (start == nullptr || beta == 0.0f) {
    loops.add_number(1);
    loops.run([&](Index count, const auto& offsets, const auto& strides) {
      float* to = floats(out) + offsets[0];
      for (Index i = 0; i < count; ++i) {
        to[i * strides[0]] = 0.0f;
      }
    });
    return true;
  }
  if (!loops.add(1, *start)) {
    return false;
  }
  loops.run([&](Index count, const auto& offsets, const auto& strides) {
    float* to = floats(out) + offsets[0];
    const float* from = floats(*start) + offsets[1];
    for (Index i = 0; i < count; ++i) {
      to[i * strides[0]] = beta * from[i * strides[1]];
    }
  });
  return true;
}

int product(const ral_call* call, const ral_tensor& a, const ral_tensor& b, const ral_tensor* start, float beta,
            float alpha) {
  const ral_tensor& out = call->outputs[0];
  const int rank = out.ndim;
  const bool fits = a.ndim == rank && b.ndim == rank && (rank == 2 || rank == 3) &&
                    (rank == 2 || (a.sizes[0] == b.sizes[0] && out.sizes[0] == a.sizes[0])) &&
                    a.sizes[rank - 1] == b.sizes[rank - 2] && out.sizes[rank - 2] == a.sizes[rank - 2] &&
                    out.sizes[rank - 1] == b.sizes[rank - 1];
  if (!fits || (numel(out) != 0 && (out.data == a.data || out.data == b.data))) {
    return decline(call, "shapes that do not fit, or an output that is also an operand");
  }
  if (!begin(out, start, beta)) {
    return decline(call, "a summand that does not broadcast");
  }
  const Index m = a.sizes[rank - 2];
  const Index n = b.sizes[rank - 1];
  const Index k = a.sizes[rank - 1];
  for (Index batch = 0; batch < (rank == 3 ? out.sizes[0] : 1); ++batch) {
    const Index offset = rank == 3 ? batch * out.strides[0] : 0;
    multiply(m, n, k, alpha, matrix(a, batch), matrix(b, batch),
             {floats(out) + offset, out.strides[rank - 2], out.strides[rank - 1]});
  }
  return RAL_OK;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (self, mat2)
RAL_KERNEL ral_sim_mm(const ral_call* call) { return product(call, tensor(call, 0), tensor(call, 1), nullptr, 0, 1); }

RAL_KERNEL ral_sim_bmm(const ral_call* call) { return product(call, tensor(call, 0), tensor(call, 1), nullptr, 0, 1); }

// (self, mat1, mat2, beta, alpha)
RAL_KERNEL ral_sim_addmm(const ral_call* call) {
  if (!is_tensor(call->args[0])) {
    return decline(call, "a summand that is a number");
  }
  return product(call, tensor(call, 1), tensor(call, 2), &tensor(call, 0),
                 static_cast<float>(number(argument(call, 3), 1)), static_cast<float>(number(argument(call, 4), 1)));
}

RAL_KERNEL ral_sim_baddbmm(const ral_call* call) { return ral_sim_addmm(call); }
