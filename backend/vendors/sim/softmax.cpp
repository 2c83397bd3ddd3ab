// softmax and log_softmax along a dimension, and their gradients.
#include <algorithm>
#include <cmath>

#include "fastmath.h"
#include "lanes.h"
#include "lines.h"

namespace ral::sim {

namespace {

// exp(x - most) into `out`; returns their sum. A line without a number leads to not numbers, as it does in torch.
RAL_INLINE double exp_line(const float* x, float most, Index count, float* out) {
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    out[i] = fast_exp(x[i] - most);
  }
  return sum_of(out, count);
}

RAL_WIDE void softmax_line(const float* x, Index count, float* out) {
  const double sum = exp_line(x, largest_of(x, count), count, out);
  const auto scale = static_cast<float>(1.0 / sum);
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    out[i] *= scale;
  }
}

RAL_WIDE void log_softmax_line(const float* x, Index count, float* out) {
  thread_local std::vector<float> scratch;
  scratch.resize(std::max(scratch.size(), static_cast<std::size_t>(count)));
  const float most = largest_of(x, count);
  const float shift = most + static_cast<float>(std::log(exp_line(x, most, count, scratch.data())));
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    out[i] = x[i] - shift;
  }
}

// grad, output → gradient of the input
RAL_WIDE void softmax_backward_line(const float* grad, const float* y, Index count, float* out) {
  const float total = static_cast<float>(sum_of_products(grad, y, count));
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    out[i] = (grad[i] - total) * y[i];
  }
}

RAL_WIDE void log_softmax_backward_line(const float* grad, const float* y, Index count, float* out) {
  const float total = static_cast<float>(sum_of(grad, count));
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    out[i] = grad[i] - fast_exp(y[i]) * total;
  }
}

constexpr Index kScalarSize = 1;
constexpr Index kScalarStride = 1;

// A tensor without dimensions is one line of one element.
ral_tensor at_least_one_dim(ral_tensor t) {
  if (t.ndim == 0) {
    t.ndim = 1;
    t.sizes = &kScalarSize;
    t.strides = &kScalarStride;
  }
  return t;
}

template <class Line>
int forward(const ral_call* call, Line&& compute) {
  const ral_tensor in = at_least_one_dim(tensor(call, 0));
  const ral_tensor out = at_least_one_dim(call->outputs[0]);
  const auto dim = static_cast<int>(wrapped(integer(argument(call, 1)), in.ndim));
  if (!is_floating(out.dtype) || in.dtype != out.dtype || !same_sizes(in, out) || dim < 0 || dim >= in.ndim) {
    return decline(call, "an output of another dtype or shape");
  }
  const Index count = in.sizes[dim];
  std::vector<float> buffer;
  std::vector<float> result;
  for_each_line<2>({&in, &out}, dim, [&](const std::array<Index, 2>& offsets) {
    const float* x = line(in, offsets[0], dim, buffer);
    float* to = line_to_write(out, offsets[1], dim, result);
    compute(x, count, to);
    write_line(out, offsets[1], dim, to);
  });
  return RAL_OK;
}

template <class Line>
int backward(const ral_call* call, Line&& compute) {
  const ral_tensor grad = at_least_one_dim(tensor(call, 0));
  const ral_tensor y = at_least_one_dim(tensor(call, 1));
  const ral_tensor out = at_least_one_dim(call->outputs[0]);
  const auto dim = static_cast<int>(wrapped(integer(argument(call, 2)), grad.ndim));
  if (!is_floating(out.dtype) || grad.dtype != out.dtype || y.dtype != out.dtype || !same_sizes(grad, out) ||
      !same_sizes(grad, y) || dim < 0 || dim >= grad.ndim) {
    return decline(call, "tensors of different dtypes or shapes");
  }
  const Index count = grad.sizes[dim];
  std::vector<float> grad_buffer;
  std::vector<float> y_buffer;
  std::vector<float> result;
  for_each_line<3>({&grad, &y, &out}, dim, [&](const std::array<Index, 3>& offsets) {
    const float* g = line(grad, offsets[0], dim, grad_buffer);
    const float* p = line(y, offsets[1], dim, y_buffer);
    float* to = line_to_write(out, offsets[2], dim, result);
    compute(g, p, count, to);
    write_line(out, offsets[2], dim, to);
  });
  return RAL_OK;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (self, dim, half_to_float)
RAL_KERNEL ral_sim_softmax(const ral_call* call) { return forward(call, softmax_line); }
RAL_KERNEL ral_sim_log_softmax(const ral_call* call) { return forward(call, log_softmax_line); }

// (grad_output, output, dim, input_dtype)
RAL_KERNEL ral_sim_softmax_backward(const ral_call* call) { return backward(call, softmax_backward_line); }
RAL_KERNEL ral_sim_log_softmax_backward(const ral_call* call) { return backward(call, log_softmax_backward_line); }
