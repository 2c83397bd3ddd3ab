// softmax and log_softmax along a dimension, and their gradients.
#include <algorithm>
#include <cmath>

#include "fastmath.h"
#include "lines.h"

namespace ral::sim {

namespace {

float largest(const float* x, Index count) {
  float most = -INFINITY;
  for (Index i = 0; i < count; ++i) {
    most = x[i] > most || x[i] != x[i] ? x[i] : most;
  }
  return most;
}

RAL_WIDE double exp_line(const float* x, float most, Index count, float* out) {
  double sum = 0;
  for (Index begin = 0; begin < count; begin += 256) {
    const Index end = std::min(count, begin + 256);
    float part[16] = {};
    Index i = begin;
    for (; i + 16 <= end; i += 16) {
      for (Index j = 0; j < 16; ++j) {
        const float e = fast_exp(x[i + j] - most);
        out[i + j] = e;
        part[j] += e;
      }
    }
    for (; i < end; ++i) {
      out[i] = fast_exp(x[i] - most);
      part[0] += out[i];
    }
    for (const float p : part) {
      sum += static_cast<double>(p);
    }
  }
  return sum;
}

void softmax_line(const float* x, Index count, float* out) {
  const double sum = exp_line(x, largest(x, count), count, out);
  const auto scale = static_cast<float>(1.0 / sum);
  for (Index i = 0; i < count; ++i) {
    out[i] *= scale;
  }
}

void log_softmax_line(const float* x, Index count, float* out) {
  const float most = largest(x, count);
  const double sum = exp_line(x, most, count, out);
  const float shift = most + static_cast<float>(std::log(sum));
  for (Index i = 0; i < count; ++i) {
    out[i] = x[i] - shift;
  }
}

// grad, output → gradient of the input
void softmax_backward_line(const float* grad, const float* y, Index count, float* out) {
  double sum = 0;
  for (Index i = 0; i < count; ++i) {
    sum += static_cast<double>(grad[i] * y[i]);
  }
  const auto total = static_cast<float>(sum);
  for (Index i = 0; i < count; ++i) {
    out[i] = (grad[i] - total) * y[i];
  }
}

RAL_WIDE void log_softmax_backward_line(const float* grad, const float* y, Index count, float* out) {
  double sum = 0;
  for (Index i = 0; i < count; ++i) {
    sum += static_cast<double>(grad[i]);
  }
  const auto total = static_cast<float>(sum);
  for (Index i = 0; i < count; ++i) {
    out[i] = grad[i] - fast_exp(y[i]) * total;
  }
}

void store(const std::vector<float>& from, float* to, Index stride) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[static_cast<Index>(i) * stride] = from[i];
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
  if (out.dtype != RAL_FLOAT32 || !same_sizes(in, out) || dim < 0 || dim >= in.ndim) {
    return decline(call, "an output of another dtype or shape");
  }
  const Index count = in.sizes[dim];
  std::vector<float> buffer;
  std::vector<float> result(static_cast<std::size_t>(count));
  for_each_line<2>({&in, &out}, dim, [&](const std::array<Index, 2>& offsets) {
    const float* x = line(floats(in), offsets[0], in.strides[dim], count, buffer);
    compute(x, count, result.data());
    store(result, floats(out) + offsets[1], out.strides[dim]);
  });
  return RAL_OK;
}

template <class Line>
int backward(const ral_call* call, Line&& compute) {
  const ral_tensor grad = at_least_one_dim(tensor(call, 0));
  const ral_tensor y = at_least_one_dim(tensor(call, 1));
  const ral_tensor out = at_least_one_dim(call->outputs[0]);
  const auto dim = static_cast<int>(wrapped(integer(argument(call, 2)), grad.ndim));
  if (out.dtype != RAL_FLOAT32 || !same_sizes(grad, out) || !same_sizes(grad, y) || dim < 0 || dim >= grad.ndim) {
    return decline(call, "tensors of different dtypes or shapes");
  }
  const Index count = grad.sizes[dim];
  std::vector<float> grad_buffer;
  std::vector<float> y_buffer;
  std::vector<float> result(static_cast<std::size_t>(count));
  for_each_line<3>({&grad, &y, &out}, dim, [&](const std::array<Index, 3>& offsets) {
    const float* g = line(floats(grad), offsets[0], grad.strides[dim], count, grad_buffer);
    const float* p = line(floats(y), offsets[1], y.strides[dim], count, y_buffer);
    compute(g, p, count, result.data());
    store(result, floats(out) + offsets[2], out.strides[dim]);
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
