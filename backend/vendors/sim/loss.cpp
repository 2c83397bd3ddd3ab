// Losses and their gradients: the one that picks a class's number, and those that compare number by number.
#include <cmath>

#include "fastmath.h"
#include "indices.h"

namespace ral::sim {

namespace {

enum Reduction { kNone = 0, kMean = 1, kSum = 2 };

// self is [rows, classes, pixels] with one target a pixel; [classes] is one row.
struct Classes {
  Index rows = 1;
  Index classes = 0;
  Index pixels = 1;
  Index ignored = 0;
  Index reduction = kMean;
  std::vector<Index> targets;
  std::vector<float> weights;  // one a class, or empty

  Index count() const { return rows * pixels; }
  // Where in self the number of target i lies; -1: it is ignored.
  Index place(Index i) const {
    const Index target = targets[static_cast<std::size_t>(i)];
    return target == ignored ? -1 : (i / pixels * classes + target) * pixels + i % pixels;
  }
  float weight(Index i) const {
    return weights.empty() ? 1.0f : weights[static_cast<std::size_t>(targets[static_cast<std::size_t>(i)])];
  }
};

// (…, self, target, weight, reduction, ignore_index), beginning at argument `first`
int read_classes(const ral_call* call, int first, Classes* loss) {
  const ral_tensor& x = tensor(call, first);
  if (x.ndim < 1 || !is_floating(x.dtype) || !read_indices(tensor(call, first + 1), &loss->targets)) {
    return decline(call, "targets that are not integers");
  }
  loss->rows = x.ndim == 1 ? 1 : x.sizes[0];
  loss->classes = x.sizes[x.ndim == 1 ? 0 : 1];
  for (int d = 2; d < x.ndim; ++d) {
    loss->pixels *= x.sizes[d];
  }
  if (is_tensor(argument(call, first + 2))) {
    const FloatsIn weights(tensor(call, first + 2));
    loss->weights.assign(weights.data(), weights + numel(tensor(call, first + 2)));
  }
  loss->reduction = integer(argument(call, first + 3));
  loss->ignored = integer(argument(call, first + 4));
  if (static_cast<Index>(loss->targets.size()) != loss->count() ||
      (!loss->weights.empty() && static_cast<Index>(loss->weights.size()) != loss->classes)) {
    return decline(call, "another number of targets than rows, or of weights than classes");
  }
  for (const Index target : loss->targets) {
    if (target != loss->ignored && (target < 0 || target >= loss->classes)) {
      std::snprintf(call->reason, call->reason_size, "Target %lld is out of bounds.", static_cast<long long>(target));
      return RAL_FAILED;
    }
  }
  return RAL_OK;
}

// How a pair of numbers loses, and by how much more as the first grows. Each takes (x, target, number).
float squared(float x, float y, float) { return (x - y) * (x - y); }
float squared_slope(float x, float y, float) { return 2.0f * (x - y); }
float smooth(float x, float y, float beta) {
  const float d = std::fabs(x - y);
  return d < beta ? 0.5f * d * d / beta : d - 0.5f * beta;
}
float smooth_slope(float x, float y, float beta) {
  const float d = x - y;
  return d <= -beta ? -1.0f : d >= beta ? 1.0f : d / beta;
}
float huber(float x, float y, float delta) {
  const float d = std::fabs(x - y);
  return d <= delta ? 0.5f * d * d : delta * (d - 0.5f * delta);
}
float huber_slope(float x, float y, float delta) {
  const float d = x - y;
  return d < -delta ? -delta : d > delta ? delta : d;
}
// Logarithms no lower than -100, as torch has them.
float cross_entropy(float x, float y, float) {
  return -(y * std::max(std::log(x), -100.0f) + (1.0f - y) * std::max(std::log1p(-x), -100.0f));
}
float cross_entropy_slope(float x, float y, float) { return (x - y) / std::max((1.0f - x) * x, 1e-12f); }

using Pair = float (*)(float x, float y, float number);

struct PairLoss {
  const ral_tensor& x;
  const ral_tensor& y;
  const ral_value& weight;
  Index reduction;
  float number;
};

bool is_plain(const PairLoss& loss) {
  return is_floating(loss.x.dtype) && loss.y.dtype == loss.x.dtype && same_sizes(loss.x, loss.y) &&
         (!is_tensor(loss.weight) || same_sizes(*loss.weight.as.tensors, loss.x));
}

template <Pair pair>
int pair_loss(const ral_call* call, const PairLoss& loss) {
  const ral_tensor& out = call->outputs[0];
  const Index count = numel(loss.x);
  if (!is_plain(loss) || numel(out) != (loss.reduction == kNone ? count : 1)) {
    return decline(call, "operands of different dtypes or shapes");
  }
  const FloatsIn x(loss.x);
  const FloatsIn y(loss.y);
  const FloatsIn weight(is_tensor(loss.weight) ? *loss.weight.as.tensors : loss.x);
  FloatsOut to(out);
  double sum = 0;
  for (Index i = 0; i < count; ++i) {
    const float lost = pair(x[i], y[i], loss.number) * (is_tensor(loss.weight) ? weight[i] : 1.0f);
    if (loss.reduction == kNone) {
      to.data()[i] = lost;
    }
    sum += static_cast<double>(lost);
  }
  if (loss.reduction != kNone) {
    to.data()[0] = static_cast<float>(loss.reduction == kMean ? sum / static_cast<double>(count) : sum);
  }
  to.commit();
  return RAL_OK;
}

template <Pair slope>
int pair_gradient(const ral_call* call, const PairLoss& loss) {
  const ral_tensor& out = call->outputs[0];
  const ral_tensor& grad_tensor = tensor(call, 0);
  const Index count = numel(loss.x);
  const bool one = numel(grad_tensor) == 1;
  if (!is_plain(loss) || !same_sizes(out, loss.x) || (!one && !same_sizes(grad_tensor, loss.x))) {
    return decline(call, "operands of different dtypes or shapes");
  }
  const FloatsIn grad(grad_tensor);
  const FloatsIn x(loss.x);
  const FloatsIn y(loss.y);
  const FloatsIn weight(is_tensor(loss.weight) ? *loss.weight.as.tensors : loss.x);
  FloatsOut to(out);
  const float scale = loss.reduction == kMean ? 1.0f / static_cast<float>(count) : 1.0f;
  for (Index i = 0; i < count; ++i) {
    to.data()[i] =
        slope(x[i], y[i], loss.number) * grad[one ? 0 : i] * scale * (is_tensor(loss.weight) ? weight[i] : 1.0f);
  }
  to.commit();
  return RAL_OK;
}

constexpr ral_value kNoWeight = {RAL_NONE, 0, {0}};

// (self, target, reduction, number)
PairLoss plain_loss(const ral_call* call, int first) {
  return {tensor(call, first), tensor(call, first + 1), kNoWeight, integer(argument(call, first + 2), kMean),
          static_cast<float>(number(argument(call, first + 3), 1.0))};
}

// (self, target, weight, reduction)
PairLoss weighted_loss(const ral_call* call, int first) {
  return {tensor(call, first), tensor(call, first + 1), argument(call, first + 2),
          integer(argument(call, first + 3), kMean), 0.0f};
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (self, target, weight, reduction, ignore_index) → output, total_weight
RAL_KERNEL ral_sim_nll_loss(const ral_call* call) {
  Classes loss;
  if (const int status = read_classes(call, 0, &loss); status != RAL_OK) {
    return status;
  }
  const bool each = loss.reduction == kNone && tensor(call, 0).ndim > 1;
  if (numel(call->outputs[0]) != (each ? loss.count() : 1) || numel(call->outputs[1]) != 1) {
    return decline(call, "an output of another shape");
  }
  const FloatsIn x(tensor(call, 0));
  FloatsOut out(call->outputs[0]);
  FloatsOut total(call->outputs[1]);
  double sum = 0;
  double weights = 0;
  for (Index i = 0; i < loss.count(); ++i) {
    const Index place = loss.place(i);
    const float weight = place < 0 ? 0.0f : loss.weight(i);
    const float picked = place < 0 ? 0.0f : -x[place] * weight;
    sum += static_cast<double>(picked);
    weights += static_cast<double>(weight);
    if (each) {
      out.data()[i] = picked;
    }
  }
  if (!each) {
    out.data()[0] = static_cast<float>(loss.reduction == kMean ? sum / weights : sum);
  }
  total.data()[0] = each ? 0.0f : static_cast<float>(weights);
  out.commit();
  total.commit();
  return RAL_OK;
}

// (grad_output, self, target, weight, reduction, ignore_index, total_weight)
RAL_KERNEL ral_sim_nll_loss_backward(const ral_call* call) {
  Classes loss;
  if (const int status = read_classes(call, 1, &loss); status != RAL_OK) {
    return status;
  }
  const ral_tensor& grad_tensor = tensor(call, 0);
  const bool each = loss.reduction == kNone && tensor(call, 1).ndim > 1;
  if (!same_sizes(call->outputs[0], tensor(call, 1)) || numel(grad_tensor) != (each ? loss.count() : 1)) {
    return decline(call, "an output of another shape");
  }
  const FloatsIn grad(grad_tensor);
  FloatsOut out(call->outputs[0]);
  std::fill(out.data(), out.data() + numel(call->outputs[0]), 0.0f);
  const float scale = loss.reduction == kMean ? 1.0f / FloatsIn(tensor(call, 6))[0] : 1.0f;
  for (Index i = 0; i < loss.count(); ++i) {
    if (const Index place = loss.place(i); place >= 0) {
      out.data()[place] = -grad[each ? i : 0] * loss.weight(i) * scale;
    }
  }
  out.commit();
  return RAL_OK;
}

// (self, target, reduction, number), and their gradients (grad_output, self, target, reduction, number)
RAL_KERNEL ral_sim_mse_loss(const ral_call* call) { return pair_loss<squared>(call, plain_loss(call, 0)); }
RAL_KERNEL ral_sim_mse_loss_backward(const ral_call* call) {
  return pair_gradient<squared_slope>(call, plain_loss(call, 1));
}
RAL_KERNEL ral_sim_smooth_l1_loss(const ral_call* call) { return pair_loss<smooth>(call, plain_loss(call, 0)); }
RAL_KERNEL ral_sim_smooth_l1_loss_backward(const ral_call* call) {
  return pair_gradient<smooth_slope>(call, plain_loss(call, 1));
}
RAL_KERNEL ral_sim_huber_loss(const ral_call* call) { return pair_loss<huber>(call, plain_loss(call, 0)); }
RAL_KERNEL ral_sim_huber_loss_backward(const ral_call* call) {
  return pair_gradient<huber_slope>(call, plain_loss(call, 1));
}

// (self, target, weight, reduction), and its gradient (grad_output, self, target, weight, reduction)
RAL_KERNEL ral_sim_binary_cross_entropy(const ral_call* call) {
  return pair_loss<cross_entropy>(call, weighted_loss(call, 0));
}
RAL_KERNEL ral_sim_binary_cross_entropy_backward(const ral_call* call) {
  return pair_gradient<cross_entropy_slope>(call, weighted_loss(call, 1));
}
