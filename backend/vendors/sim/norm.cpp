// Layer normalisation and its gradients. All tensors are contiguous (the manifest asks for it).
#include <cmath>

#include "kernels.h"

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

const float* optional_floats(const ral_value& value) { return is_tensor(value) ? floats(*value.as.tensors) : nullptr; }

RAL_WIDE void moments(const float* x, Index width, double* mean, double* variance) {
  double sum = 0;
  for (Index i = 0; i < width; ++i) {
    sum += static_cast<double>(x[i]);
  }
  *mean = sum / static_cast<double>(width);
  double squares = 0;
  for (Index i = 0; i < width; ++i) {
    const double d = static_cast<double>(x[i]) - *mean;
    squares += d * d;
  }
  *variance = squares / static_cast<double>(width);
}

RAL_WIDE void normalize(const float* x, Index width, float mean, float rstd, const float* weight, const float* bias,
                        float* y) {
  for (Index i = 0; i < width; ++i) {
    const float scaled = (x[i] - mean) * rstd * (weight != nullptr ? weight[i] : 1.0f);
    y[i] = bias != nullptr ? scaled + bias[i] : scaled;
  }
}

RAL_WIDE void input_gradient(const float* grad, const float* x, Index width, float mean, float rstd,
                             const float* weight, float* out) {
  double sum = 0;
  double dot = 0;
  for (Index i = 0; i < width; ++i) {
    const float g = grad[i] * (weight != nullptr ? weight[i] : 1.0f);
    sum += static_cast<double>(g);
    dot += static_cast<double>(g) * static_cast<double>((x[i] - mean) * rstd);
  }
  const auto average = static_cast<float>(sum / static_cast<double>(width));
  const auto slope = static_cast<float>(dot / static_cast<double>(width));
  for (Index i = 0; i < width; ++i) {
    const float g = grad[i] * (weight != nullptr ? weight[i] : 1.0f);
    out[i] = (g - average - (x[i] - mean) * rstd * slope) * rstd;
  }
}

RAL_WIDE void add_parameter_gradients(const float* grad, const float* x, Index width, float mean, float rstd,
                                      double* weight, double* bias) {
  for (Index i = 0; i < width; ++i) {
    weight[i] += static_cast<double>(grad[i] * ((x[i] - mean) * rstd));
    bias[i] += static_cast<double>(grad[i]);
  }
}

void store(const std::vector<double>& from, const ral_tensor& to) {
  for (std::size_t i = 0; i < from.size() && wanted(to); ++i) {
    floats(to)[i] = static_cast<float>(from[i]);
  }
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (input, normalized_shape, weight, bias, eps) → output, mean, rstd
RAL_KERNEL ral_sim_layer_norm(const ral_call* call) {
  Rows shape;
  if (!split(tensor(call, 0), call->args[1], &shape)) {
    return decline(call, "a normalized shape that is not the input's last dimensions");
  }
  const float* weight = optional_floats(call->args[2]);
  const float* bias = optional_floats(call->args[3]);
  const double epsilon = number(call->args[4]);
  for (Index row = 0; row < shape.rows; ++row) {
    const float* x = floats(tensor(call, 0)) + row * shape.width;
    double mean = 0;
    double variance = 0;
    moments(x, shape.width, &mean, &variance);
    const auto rstd = static_cast<float>(1.0 / std::sqrt(variance + epsilon));
    normalize(x, shape.width, static_cast<float>(mean), rstd, weight, bias,
              floats(call->outputs[0]) + row * shape.width);
    floats(call->outputs[1])[row] = static_cast<float>(mean);
    floats(call->outputs[2])[row] = rstd;
  }
  return RAL_OK;
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask) → gradients of input, weight, bias
RAL_KERNEL ral_sim_layer_norm_backward(const ral_call* call) {
  Rows shape;
  if (!split(tensor(call, 1), call->args[2], &shape) || !same_sizes(tensor(call, 0), tensor(call, 1))) {
    return decline(call, "a normalized shape that is not the input's last dimensions");
  }
  const float* weight = optional_floats(call->args[5]);
  std::vector<double> weight_gradient(static_cast<std::size_t>(shape.width));
  std::vector<double> bias_gradient(static_cast<std::size_t>(shape.width));
  const bool parameters = wanted(call->outputs[1]) || wanted(call->outputs[2]);
  for (Index row = 0; row < shape.rows; ++row) {
    const float* grad = floats(tensor(call, 0)) + row * shape.width;
    const float* x = floats(tensor(call, 1)) + row * shape.width;
    const float mean = floats(tensor(call, 3))[row];
    const float rstd = floats(tensor(call, 4))[row];
    if (wanted(call->outputs[0])) {
      input_gradient(grad, x, shape.width, mean, rstd, weight, floats(call->outputs[0]) + row * shape.width);
    }
    if (parameters) {
      add_parameter_gradients(grad, x, shape.width, mean, rstd, weight_gradient.data(), bias_gradient.data());
    }
  }
  store(weight_gradient, call->outputs[1]);
  store(bias_gradient, call->outputs[2]);
  return RAL_OK;
}
