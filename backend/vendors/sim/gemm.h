// C += alpha * A * B, whatever the strides: what matrix products and convolutions are made of.
#pragma once

#include "element.h"

namespace ral::sim {

// Elements of any dtype that is computed in float32; int8's products are exact in it.
struct Matrix {
  const void* data;
  int dtype;
  Index row_stride;
  Index column_stride;
};

// Sum is float, or int32 for int8.
template <class Sum>
struct Destination {
  Sum* data;
  Index row_stride;
  Index column_stride;
  bool fresh;  // what C holds is not read: C = alpha * A * B
};

// A is m x k, B is k x n. Where k is 0 nothing is written.
void multiply(Index m, Index n, Index k, float alpha, const Matrix& a, const Matrix& b, const Destination<float>& c);
void multiply(Index m, Index n, Index k, const Matrix& a, const Matrix& b, const Destination<std::int32_t>& c);

}  // namespace ral::sim
