// A whole optimiser step in one call: Adam, AdamW and SGD over lists of parameters.
#include <cmath>

#include "element.h"

namespace ral::sim {

namespace {

// What the step multiplies with, for all numbers of one parameter.
struct Adam {
  float decay;         // of the parameter itself (AdamW): 1 - lr * weight_decay
  float weight_decay;  // added to the gradient (Adam)
  float beta1;
  float beta2;
  float step_size;        // lr / (1 - beta1^step)
  float root_correction;  // sqrt(1 - beta2^step)
  float epsilon;
  float sign;  // of the gradient: -1 to maximize
};

RAL_WIDE void adam_run(const Adam& a, Index count, const float* grad, float* x, float* average, float* square,
                       float* largest) {
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    const float before = x[i] * a.decay;
    const float g = a.sign * grad[i] + a.weight_decay * x[i];
    average[i] += (1.0f - a.beta1) * (g - average[i]);
    square[i] = a.beta2 * square[i] + (1.0f - a.beta2) * g * g;
    float second = square[i];
    if (largest != nullptr) {
      largest[i] = largest[i] > second ? largest[i] : second;
      second = largest[i];
    }
    x[i] = before - a.step_size * average[i] / (__builtin_sqrtf(second) / a.root_correction + a.epsilon);
  }
}

struct Sgd {
  float weight_decay;
  float momentum;
  float rate;
  float dampening;
  bool nesterov;
  bool first;
  float sign;
};

RAL_WIDE void sgd_run(const Sgd& s, Index count, const float* grad, float* x, float* velocity) {
  const float kept = s.first ? 0.0f : s.momentum;
  const float fresh = s.first ? 1.0f : 1.0f - s.dampening;
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    float g = s.sign * grad[i] + s.weight_decay * x[i];
    if (velocity != nullptr) {
      velocity[i] = kept * velocity[i] + fresh * g;
      g = s.nesterov ? g + s.momentum * velocity[i] : velocity[i];
    }
    x[i] -= s.rate * g;
  }
}

// The lists' elements must be contiguous float32 of one size. `count` lists from argument 0 on; an empty list is none.
bool are_plain_lists(const ral_call* call, int count) {
  const int length = argument(call, 0).count;
  for (int n = 0; n < count; ++n) {
    const ral_value& list = argument(call, n);
    if (list.tag != RAL_TENSORS || (list.count != 0 && list.count != length)) {
      return false;
    }
    for (int i = 0; i < list.count; ++i) {
      const ral_tensor& t = list.as.tensors[i];
      if (t.dtype != RAL_FLOAT32 || !contiguous(t) || numel(t) != numel(argument(call, 0).as.tensors[i])) {
        return false;
      }
    }
  }
  return true;
}

float* element(const ral_call* call, int list, int i) {
  const ral_value& value = argument(call, list);
  return value.tag == RAL_TENSORS && value.count > 0 ? floats(value.as.tensors[i]) : nullptr;
}

Index element_size(const ral_call* call, int i) { return numel(argument(call, 0).as.tensors[i]); }

// A learning rate is a number, or a tensor without dimensions.
double rate_of(const ral_value& value) {
  return is_tensor(value) ? static_cast<double>(FloatsIn(*value.as.tensors)[0]) : number(value);
}

// (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, amsgrad,
//  maximize, grad_scale, found_inf)
int adam(const ral_call* call, bool decoupled) {
  if (!are_plain_lists(call, 5) || argument(call, 5).tag != RAL_TENSORS ||
      argument(call, 5).count != argument(call, 0).count || argument(call, 13).tag != RAL_NONE ||
      argument(call, 14).tag != RAL_NONE) {
    return decline(call, "lists that are not contiguous float32, or scaled gradients");
  }
  const double rate = rate_of(argument(call, 6));
  const double beta1 = number(argument(call, 7));
  const double beta2 = number(argument(call, 8));
  const double decay = number(argument(call, 9));
  const bool amsgrad = integer(argument(call, 11)) != 0;
  for (int i = 0; i < argument(call, 0).count; ++i) {
    const double step = static_cast<double>(FloatsIn(argument(call, 5).as.tensors[i])[0]);
    const Adam settings{decoupled ? static_cast<float>(1.0 - rate * decay) : 1.0f,
                        decoupled ? 0.0f : static_cast<float>(decay),
                        static_cast<float>(beta1),
                        static_cast<float>(beta2),
                        static_cast<float>(rate / (1.0 - std::pow(beta1, step))),
                        static_cast<float>(std::sqrt(1.0 - std::pow(beta2, step))),
                        static_cast<float>(number(argument(call, 10))),
                        integer(argument(call, 12)) != 0 ? -1.0f : 1.0f};
    adam_run(settings, element_size(call, i), element(call, 1, i), element(call, 0, i), element(call, 2, i),
             element(call, 3, i), amsgrad ? element(call, 4, i) : nullptr);
  }
  return RAL_OK;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

RAL_KERNEL ral_sim_fused_adam(const ral_call* call) { return adam(call, false); }
RAL_KERNEL ral_sim_fused_adamw(const ral_call* call) { return adam(call, true); }

// (self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
//  grad_scale, found_inf)
RAL_KERNEL ral_sim_fused_sgd(const ral_call* call) {
  if (!are_plain_lists(call, 3) || argument(call, 10).tag != RAL_NONE || argument(call, 11).tag != RAL_NONE) {
    return decline(call, "lists that are not contiguous float32, or scaled gradients");
  }
  const Sgd settings{static_cast<float>(number(argument(call, 3))),
                     static_cast<float>(number(argument(call, 4))),
                     static_cast<float>(rate_of(argument(call, 5))),
                     static_cast<float>(number(argument(call, 6))),
                     integer(argument(call, 7)) != 0,
                     integer(argument(call, 9)) != 0,
                     integer(argument(call, 8)) != 0 ? -1.0f : 1.0f};
  const bool has_momentum = number(argument(call, 4)) != 0.0;
  for (int i = 0; i < argument(call, 0).count; ++i) {
    sgd_run(settings, element_size(call, i), element(call, 1, i), element(call, 0, i),
            has_momentum ? element(call, 2, i) : nullptr);
  }
  return RAL_OK;
}
