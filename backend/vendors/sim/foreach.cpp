// Operators over lists of tensors: one call, and the plain kernel for each element.
#include "lanes.h"
#include "plain_kernels.h"

namespace ral::sim {

namespace {

// The arguments of element `i`: of a list its element, anything else as it is. False: a list is too short.
bool element_arguments(const ral_call* call, int i, std::vector<ral_value>* arguments) {
  arguments->clear();
  for (int n = 0; n < call->arg_count; ++n) {
    ral_value value = call->args[n];
    const bool is_list = value.tag == RAL_TENSORS || value.tag == RAL_DOUBLES || value.tag == RAL_INTS;
    if (is_list && i >= value.count) {
      return false;
    }
    if (value.tag == RAL_TENSORS) {
      value.as.tensors += i;
      value.tag = RAL_TENSOR;
    } else if (value.tag == RAL_DOUBLES) {
      value.as.d = value.as.doubles[i];
      value.tag = RAL_DOUBLE;
    } else if (value.tag == RAL_INTS) {
      value.as.i = value.as.ints[i];
      value.tag = RAL_INT;
    }
    arguments->push_back(value);
  }
  return true;
}

// A kernel that declines an element leaves a list half done, which torch would then do again: so the first element is
// tried on its own, and the others must have its dtype.
bool is_uniform(const ral_call* call) {
  const int count = call->output_count;
  for (int n = 0; n < call->arg_count; ++n) {
    const ral_value& value = call->args[n];
    if (value.tag == RAL_TENSORS && value.count != count) {
      return false;
    }
    for (int i = 0; value.tag == RAL_TENSORS && i < count; ++i) {
      if (value.as.tensors[i].dtype != RAL_FLOAT32 || !same_sizes(value.as.tensors[i], call->outputs[i])) {
        return false;
      }
    }
  }
  for (int i = 0; i < count; ++i) {
    if (call->outputs[i].dtype != RAL_FLOAT32) {
      return false;
    }
  }
  return true;
}

int for_each(const ral_call* call, ral_kernel kernel) {
  if (!is_uniform(call)) {
    return decline(call, "lists whose tensors differ in shape or are not float32");
  }
  std::vector<ral_value> arguments;
  for (int i = 0; i < call->output_count; ++i) {
    ral_call one = *call;
    if (!element_arguments(call, i, &arguments)) {
      return decline(call, "lists of different lengths");
    }
    one.args = arguments.data();
    one.output_count = 1;
    one.outputs = call->outputs + i;
    if (const int status = kernel(&one); status != RAL_OK) {
      return i == 0 ? status : fail(call, "an element of a list that its kernel refuses");
    }
  }
  return RAL_OK;
}

int copy_kernel(const ral_call* call) {
  const ral_tensor& out = call->outputs[0];
  copy_strided(tensor(call, 1), out.data, out.strides, item_size(out.dtype));
  return RAL_OK;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

#define FOR_EACH(name) \
  RAL_KERNEL ral_sim_foreach_##name(const ral_call* call) { return for_each(call, ral_sim_##name); }

FOR_EACH(add)
FOR_EACH(sub)
FOR_EACH(mul)
FOR_EACH(div)
FOR_EACH(neg)
FOR_EACH(abs)
FOR_EACH(exp)
FOR_EACH(sqrt)
FOR_EACH(rsqrt)
FOR_EACH(reciprocal)
FOR_EACH(pow)
FOR_EACH(maximum)
FOR_EACH(minimum)
FOR_EACH(lerp)
FOR_EACH(zero)

// (self, tensors1, tensors2, value or scalars)
RAL_KERNEL ral_sim_foreach_addcmul(const ral_call* call) {
  return is_tensor(argument(call, 3)) ? decline(call, "factors in a tensor") : for_each(call, ral_sim_addcmul);
}
RAL_KERNEL ral_sim_foreach_addcdiv(const ral_call* call) {
  return is_tensor(argument(call, 3)) ? decline(call, "factors in a tensor") : for_each(call, ral_sim_addcdiv);
}

// (self, src, non_blocking)
RAL_KERNEL ral_sim_foreach_copy(const ral_call* call) { return for_each(call, copy_kernel); }

// (self, ord, dtype) → norms without dimensions
RAL_KERNEL ral_sim_foreach_norm(const ral_call* call) {
  const ral_value& list = argument(call, 0);
  if (list.tag != RAL_TENSORS || list.count != call->output_count || number(argument(call, 1), 2.0) != 2.0 ||
      argument(call, 2).tag != RAL_NONE) {
    return decline(call, "a norm of another order or dtype");
  }
  for (int i = 0; i < list.count; ++i) {
    if (list.as.tensors[i].dtype != RAL_FLOAT32 || call->outputs[i].dtype != RAL_FLOAT32) {
      return decline(call, "a norm of another dtype");
    }
  }
  for (int i = 0; i < list.count; ++i) {
    const FloatsIn x(list.as.tensors[i]);
    floats(call->outputs[i])[0] = static_cast<float>(std::sqrt(square_run(x.data(), numel(list.as.tensors[i]), 0.0f)));
  }
  return RAL_OK;
}
