// Layer normalisation and its gradients.
#include <cmath>

#include "lanes.h"
#include "parameters.h"

namespace ral::sim {

namespace {

struct Rows {
  Index rows = 0;
  Index width = 1;
};

// The last dimensions that are normalised together make a row.
bool split(const ral_tensor& input, const ral_value& normalized, Rows* rows) {
  if (normalized.tag != RAL_INTS || normalized.count > input.ndim) {
    return false;
  }
  for (int i = 0; i < normalized.count; ++i) {
    if (normalized.as.ints[i] != input.sizes[input.ndim - normalized.count + i]) {
      return false;
    }
    rows->width *= normalized.as.ints[i];
  }
  rows->rows = rows->width == 0 ? 0 : numel(input) / rows->width;
  return true;
}

RAL_WIDE void normalize(const float* x, Index width, float mean, float rstd, const float* weight, const float* bias,
                        float* y) {
#pragma GCC ivdep
  for (Index i = 0; i < width; ++i) {
    y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
  }
}

RAL_WIDE void input_gradient(const float* grad, const float* x, Index width, float mean, float rstd,
                             const float* weight, float* out) {
  const double sum = sum_of_products(grad, weight, width);
  const double dot = sum_terms(
      width, [&](Index i, Lanes& to) { to += lanes(grad + i) * lanes(weight + i) * (lanes(x + i) - mean); },
      [&](Index i) { return grad[i] * weight[i] * (x[i] - mean); });
  const auto average = static_cast<float>(sum / static_cast<double>(width));
  const auto slope = static_cast<float>(dot * static_cast<double>(rstd) / static_cast<double>(width)) * rstd;
#pragma GCC ivdep
  for (Index i = 0; i < width; ++i) {
    out[i] = (grad[i] * weight[i] - average - (x[i] - mean) * slope) * rstd;
  }
}

RAL_WIDE void add_parameter_gradients(const float* grad, const float* x, Index width, float mean, float rstd,
                                      float* weight, float* bias) {
#pragma GCC ivdep
  for (Index i = 0; i < width; ++i) {
    weight[i] += grad[i] * ((x[i] - mean) * rstd);
    bias[i] += grad[i];
  }
}

// Sums of rows: of some rows in float32, of those in double.
class RowSums {
 public:
  explicit RowSums(Index width) : part_(static_cast<std::size_t>(width)), total_(static_cast<std::size_t>(width)) {}
  float* next() {
    if (++rows_ % kSummedInFloat == 0) {
      carry();
    }
    return part_.data();
  }
  void store(const ral_tensor& to) {
    carry();
    FloatsOut out(to);
    for (std::size_t i = 0; i < total_.size() && wanted(to); ++i) {
      out.data()[i] = static_cast<float>(total_[i]);
    }
    out.commit();
  }

 private:
  void carry() {
    for (std::size_t i = 0; i < part_.size(); ++i) {
      total_[i] += static_cast<double>(part_[i]);
      part_[i] = 0;
    }
  }
  std::vector<float> part_;
  std::vector<double> total_;
  Index rows_ = 0;
};

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (input, normalized_shape, weight, bias, eps) → output, mean, rstd
RAL_KERNEL ral_sim_layer_norm(const ral_call* call) {
  Rows shape;
  if (!split(tensor(call, 0), call->args[1], &shape)) {
    return decline(call, "a normalized shape that is not the input's last dimensions");
  }
  const std::vector<float> weight = parameter(argument(call, 2), shape.width, 1.0f);
  const std::vector<float> bias = parameter(argument(call, 3), shape.width, 0.0f);
  const double epsilon = number(argument(call, 4));
  const FloatsIn in(tensor(call, 0));
  FloatsOut out(call->outputs[0]);
  FloatsOut means(call->outputs[1]);
  FloatsOut rstds(call->outputs[2]);
  for (Index row = 0; row < shape.rows; ++row) {
    const float* x = in + row * shape.width;
    const Moments moments = moments_of_runs(x, shape.width, 1, 0);
    const auto rstd = static_cast<float>(1.0 / std::sqrt(moments.squares / static_cast<double>(shape.width) + epsilon));
    normalize(x, shape.width, static_cast<float>(moments.mean), rstd, weight.data(), bias.data(),
              out.data() + row * shape.width);
    means.data()[row] = static_cast<float>(moments.mean);
    rstds.data()[row] = rstd;
  }
  out.commit();
  means.commit();
  rstds.commit();
  return RAL_OK;
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask) → gradients of input, weight, bias
RAL_KERNEL ral_sim_layer_norm_backward(const ral_call* call) {
  Rows shape;
  if (!split(tensor(call, 1), call->args[2], &shape) || !same_sizes(tensor(call, 0), tensor(call, 1))) {
    return decline(call, "a normalized shape that is not the input's last dimensions");
  }
  const std::vector<float> weight = parameter(argument(call, 5), shape.width, 1.0f);
  const FloatsIn grads(tensor(call, 0));
  const FloatsIn in(tensor(call, 1));
  const FloatsIn means(tensor(call, 3));
  const FloatsIn rstds(tensor(call, 4));
  FloatsOut out(call->outputs[0]);
  RowSums weight_gradient(shape.width);
  RowSums bias_gradient(shape.width);
  const bool parameters = wanted(call->outputs[1]) || wanted(call->outputs[2]);
  for (Index row = 0; row < shape.rows; ++row) {
    const float* grad = grads + row * shape.width;
    const float* x = in + row * shape.width;
    if (wanted(call->outputs[0])) {
      input_gradient(grad, x, shape.width, means[row], rstds[row], weight.data(), out.data() + row * shape.width);
    }
    if (parameters) {
      add_parameter_gradients(grad, x, shape.width, means[row], rstds[row], weight_gradient.next(),
                              bias_gradient.next());
    }
  }
  out.commit();
  weight_gradient.store(call->outputs[1]);
  bias_gradient.store(call->outputs[2]);
  return RAL_OK;
}
