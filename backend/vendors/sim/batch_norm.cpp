// Batch and group normalisation and their gradients: statistics over runs of numbers that share one channel, or one
// group of channels.
#include <cmath>

#include "lanes.h"
#include "parameters.h"

namespace ral::sim {

namespace {

// to = x * scale + shift
RAL_WIDE void scale_run(const float* x, Index count, float scale, float shift, float* to) {
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    to[i] = x[i] * scale + shift;
  }
}

// to = a * x + b * y + c
RAL_WIDE void combine_runs(const float* x, float a, const float* y, float b, float c, Index count, float* to) {
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    to[i] = a * x[i] + b * y[i] + c;
  }
}

RAL_WIDE double run_dot(const float* x, const float* y, Index count, float shift) {
  return sum_terms(
      count, [&](Index i, Lanes& sum) { sum += lanes(x + i) * (lanes(y + i) - shift); },
      [&](Index i) { return x[i] * (y[i] - shift); });
}

// [images, channels, pixels] of a contiguous tensor.
struct Channels {
  Index images;
  Index channels;
  Index pixels;

  explicit Channels(const ral_tensor& t) : images(t.sizes[0]), channels(t.sizes[1]), pixels(1) {
    for (int d = 2; d < t.ndim; ++d) {
      pixels *= t.sizes[d];
    }
  }
  Index count() const { return images * pixels; }
  Index at(Index image, Index channel) const { return (image * channels + channel) * pixels; }
};

// The running statistics of one channel, which may not be there, move towards this batch's.
void move_towards(const ral_value& running, Index channel, double value, double momentum) {
  if (is_tensor(running)) {
    float& held = floats(*running.as.tensors)[channel * running.as.tensors->strides[0]];
    held = static_cast<float>((1.0 - momentum) * static_cast<double>(held) + momentum * value);
  }
}

bool is_absent_or_floats(const ral_value& value) { return !is_tensor(value) || value.as.tensors->dtype == RAL_FLOAT32; }

void store(const std::vector<float>& from, const ral_tensor& to) {
  if (!wanted(to) || numel(to) != static_cast<Index>(from.size())) {
    return;
  }
  FloatsOut out(to);
  std::copy(from.begin(), from.end(), out.data());
  out.commit();
}

struct BatchNorm {
  bool training;
  double momentum;
  double epsilon;
};

int batch_norm(const ral_call* call, const ral_value& running_mean, const ral_value& running_variance,
               const BatchNorm& settings) {
  const ral_tensor& input = tensor(call, 0);
  if (input.ndim < 2 || !is_absent_or_floats(running_mean) || !is_absent_or_floats(running_variance) ||
      !same_sizes(input, call->outputs[0]) ||
      (!settings.training && (!is_tensor(running_mean) || !is_tensor(running_variance)))) {
    return decline(call, "running statistics that are not float32, or an input without channels");
  }
  const Channels c(input);
  const FloatsIn in(input);
  FloatsOut out(call->outputs[0]);
  const std::vector<float> weight = parameter(argument(call, 1), c.channels, 1.0f);
  const std::vector<float> bias = parameter(argument(call, 2), c.channels, 0.0f);
  std::vector<float> means;
  std::vector<float> scales;
  for (Index channel = 0; channel < c.channels; ++channel) {
    const auto n = static_cast<std::size_t>(channel);
    double mean = 0;
    double variance = 0;
    if (settings.training) {
      const Moments moments = moments_of_runs(in + c.at(0, channel), c.pixels, c.images, c.at(1, 0));
      const auto count = static_cast<double>(c.count());
      mean = moments.mean;
      variance = moments.squares / count;
      move_towards(running_mean, channel, mean, settings.momentum);
      move_towards(running_variance, channel, moments.squares / (count - 1.0), settings.momentum);
    } else {
      mean = static_cast<double>(FloatsIn(*running_mean.as.tensors)[channel]);
      variance = static_cast<double>(FloatsIn(*running_variance.as.tensors)[channel]);
    }
    const double rstd = 1.0 / std::sqrt(variance + settings.epsilon);
    means.push_back(static_cast<float>(mean));
    scales.push_back(static_cast<float>(rstd));
    const double scale = rstd * static_cast<double>(weight[n]);
    const auto shift = static_cast<float>(static_cast<double>(bias[n]) - mean * scale);
    for (Index image = 0; image < c.images; ++image) {
      const Index at = c.at(image, channel);
      scale_run(in + at, c.pixels, static_cast<float>(scale), shift, out.data() + at);
    }
  }
  out.commit();
  store(means, call->outputs[1]);
  store(scales, call->outputs[2]);
  return RAL_OK;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (input, weight, bias, running_mean, running_var, training, momentum, eps) → output, mean, 1/deviation (none of them
// where it does not train)
RAL_KERNEL ral_sim_batch_norm(const ral_call* call) {
  return batch_norm(call, argument(call, 3), argument(call, 4),
                    {integer(argument(call, 5)) != 0, number(argument(call, 6)), number(argument(call, 7))});
}

// (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask)
// → gradients of input, weight, bias
RAL_KERNEL ral_sim_batch_norm_backward(const ral_call* call) {
  const ral_tensor& input = tensor(call, 1);
  const bool training = integer(argument(call, 7)) != 0;
  const ral_value& mean_value = argument(call, training ? 5 : 3);
  const ral_value& scale_value = argument(call, training ? 6 : 4);
  if (input.ndim < 2 || !same_sizes(input, tensor(call, 0)) || !is_tensor(mean_value) || !is_tensor(scale_value)) {
    return decline(call, "no statistics, or an input without channels");
  }
  const Channels c(input);
  const FloatsIn grad(tensor(call, 0));
  const FloatsIn in(input);
  const FloatsIn means(*mean_value.as.tensors);
  const FloatsIn scales(*scale_value.as.tensors);
  FloatsOut out(call->outputs[0]);
  const std::vector<float> weight = parameter(argument(call, 2), c.channels, 1.0f);
  std::vector<float> weight_gradient;
  std::vector<float> bias_gradient;
  const double count = static_cast<double>(c.count());
  for (Index channel = 0; channel < c.channels; ++channel) {
    const float mean = means[channel];
    const double rstd = training ? static_cast<double>(scales[channel])
                                 : 1.0 / std::sqrt(static_cast<double>(scales[channel]) + number(argument(call, 8)));
    double sum = 0;
    double dot = 0;
    for (Index image = 0; image < c.images; ++image) {
      const Index at = c.at(image, channel);
      sum += sum_run(grad + at, c.pixels);
      dot += run_dot(grad + at, in + at, c.pixels, mean);
    }
    weight_gradient.push_back(static_cast<float>(dot * rstd));
    bias_gradient.push_back(static_cast<float>(sum));
    const double scale = rstd * static_cast<double>(weight[static_cast<std::size_t>(channel)]);
    const double slope = training ? -scale * dot * rstd * rstd / count : 0.0;
    const double shift = training ? -scale * sum / count - slope * static_cast<double>(mean) : 0.0;
    for (Index image = 0; image < c.images && wanted(call->outputs[0]); ++image) {
      const Index at = c.at(image, channel);
      combine_runs(grad + at, static_cast<float>(scale), in + at, static_cast<float>(slope), static_cast<float>(shift),
                   c.pixels, out.data() + at);
    }
  }
  out.commit();
  store(weight_gradient, call->outputs[1]);
  store(bias_gradient, call->outputs[2]);
  return RAL_OK;
}

// (input, weight, bias, N, C, HxW, group, eps) → output, mean, 1/deviation of each image's groups
RAL_KERNEL ral_sim_group_norm(const ral_call* call) {
  const Index images = integer(argument(call, 3));
  const Index channels = integer(argument(call, 4));
  const Index pixels = integer(argument(call, 5));
  const Index groups = integer(argument(call, 6));
  if (numel(tensor(call, 0)) != images * channels * pixels || groups < 1 || channels % groups != 0) {
    return decline(call, "an input of another size");
  }
  const FloatsIn in(tensor(call, 0));
  FloatsOut out(call->outputs[0]);
  const std::vector<float> weight = parameter(argument(call, 1), channels, 1.0f);
  const std::vector<float> bias = parameter(argument(call, 2), channels, 0.0f);
  const Index width = channels / groups;
  std::vector<float> means;
  std::vector<float> scales;
  for (Index part = 0; part < images * groups; ++part) {
    const float* x = in + part * width * pixels;
    const auto count = static_cast<double>(width * pixels);
    const Moments moments = moments_of_runs(x, width * pixels, 1, 0);
    const double mean = moments.mean;
    const double rstd = 1.0 / std::sqrt(moments.squares / count + number(argument(call, 7)));
    means.push_back(static_cast<float>(mean));
    scales.push_back(static_cast<float>(rstd));
    for (Index i = 0; i < width; ++i) {
      const auto channel = static_cast<std::size_t>(part % groups * width + i);
      const double scale = rstd * static_cast<double>(weight[channel]);
      scale_run(x + i * pixels, pixels, static_cast<float>(scale),
                static_cast<float>(static_cast<double>(bias[channel]) - mean * scale),
                out.data() + (part * width + i) * pixels);
    }
  }
  out.commit();
  store(means, call->outputs[1]);
  store(scales, call->outputs[2]);
  return RAL_OK;
}

// (grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask) → gradients of input, weight, bias
RAL_KERNEL ral_sim_group_norm_backward(const ral_call* call) {
  const Index images = integer(argument(call, 5));
  const Index channels = integer(argument(call, 6));
  const Index pixels = integer(argument(call, 7));
  const Index groups = integer(argument(call, 8));
  if (numel(tensor(call, 1)) != images * channels * pixels || groups < 1 || channels % groups != 0) {
    return decline(call, "an input of another size");
  }
  const FloatsIn grad(tensor(call, 0));
  const FloatsIn in(tensor(call, 1));
  const FloatsIn means(tensor(call, 2));
  const FloatsIn scales(tensor(call, 3));
  FloatsOut out(call->outputs[0]);
  const std::vector<float> weight = parameter(argument(call, 4), channels, 1.0f);
  std::vector<float> weight_gradient(static_cast<std::size_t>(channels));
  std::vector<float> bias_gradient(static_cast<std::size_t>(channels));
  const Index width = channels / groups;
  for (Index part = 0; part < images * groups; ++part) {
    const Index begin = part * width * pixels;
    const double rstd = static_cast<double>(scales[part]);
    double sum = 0;
    double dot = 0;
    for (Index i = 0; i < width; ++i) {
      const auto channel = static_cast<std::size_t>(part % groups * width + i);
      const double channel_sum = sum_run(grad + (begin + i * pixels), pixels);
      const double channel_dot = run_dot(grad + (begin + i * pixels), in + (begin + i * pixels), pixels, means[part]);
      bias_gradient[channel] += static_cast<float>(channel_sum);
      weight_gradient[channel] += static_cast<float>(channel_dot * rstd);
      sum += channel_sum * static_cast<double>(weight[channel]);
      dot += channel_dot * static_cast<double>(weight[channel]);
    }
    const auto count = static_cast<double>(width * pixels);
    const double slope = -dot * rstd * rstd * rstd / count;
    const double shift = -rstd * sum / count - slope * static_cast<double>(means[part]);
    for (Index i = 0; i < width && wanted(call->outputs[0]); ++i) {
      const auto channel = static_cast<std::size_t>(part % groups * width + i);
      const Index at = begin + i * pixels;
      combine_runs(grad + at, static_cast<float>(rstd * static_cast<double>(weight[channel])), in + at,
                   static_cast<float>(slope), static_cast<float>(shift), pixels, out.data() + at);
    }
  }
  out.commit();
  store(weight_gradient, call->outputs[1]);
  store(bias_gradient, call->outputs[2]);
  return RAL_OK;
}
