// Moving whole rows: embedding, concatenation; and the loss that picks one number a row.
#include <algorithm>

#include "kernels.h"

namespace ral::sim {

void copy_strided(const ral_tensor& from, void* to, const Index* to_strides, int size) {
  Loops<2> loops(from.ndim, from.sizes);
  loops.add(0, from);
  loops.set_strides(1, std::vector<Index>(to_strides, to_strides + from.ndim));
  loops.run([&](Index count, const std::array<Index, 2>& offsets, const std::array<Index, 2>& inner) {
    const std::uint8_t* source = bytes(from) + offsets[0] * size;
    auto* target = static_cast<std::uint8_t*>(to) + offsets[1] * size;
    if (inner[0] == 1 && inner[1] == 1) {
      std::memcpy(target, source, static_cast<std::size_t>(count * size));
      return;
    }
    for (Index i = 0; i < count; ++i) {
      std::memcpy(target + i * inner[1] * size, source + i * inner[0] * size, static_cast<std::size_t>(size));
    }
  });
}

namespace {

// An index tensor of one dimension at most, as numbers.
bool read_indices(const ral_tensor& t, std::vector<Index>* indices) {
  if (t.dtype != RAL_INT64 && t.dtype != RAL_INT32) {
    return false;
  }
  Loops<1> loops(t.ndim, t.sizes);
  loops.add(0, t);
  loops.run([&](Index count, const auto& offsets, const auto& strides) {
    for (Index i = 0; i < count; ++i) {
      const Index at = offsets[0] + i * strides[0];
      indices->push_back(t.dtype == RAL_INT64 ? longs(t)[at] : static_cast<const std::int32_t*>(t.data)[at]);
    }
  });
  return true;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (self, dim, index)
RAL_KERNEL ral_sim_index_select(const ral_call* call) {
  const ral_tensor& in = tensor(call, 0);
  const ral_tensor& out = call->outputs[0];
  const auto dim = static_cast<int>(wrapped(integer(argument(call, 1)), in.ndim));
  const int size = item_size(in.dtype);
  std::vector<Index> indices;
  if (in.ndim == 0 || dim < 0 || dim >= in.ndim || size == 0 || in.dtype != out.dtype || out.ndim != in.ndim ||
      !contiguous(in) || !contiguous(out) || !read_indices(tensor(call, 2), &indices)) {
    return decline(call, "tensors that are not contiguous, or indices that are not integers");
  }
  for (int d = 0; d < in.ndim; ++d) {
    if (out.sizes[d] != (d == dim ? static_cast<Index>(indices.size()) : in.sizes[d])) {
      return decline(call, "an output of another shape");
    }
  }
  Index outer = 1;
  Index inner = size;
  for (int d = 0; d < in.ndim; ++d) {
    (d < dim ? outer : inner) *= d == dim ? 1 : in.sizes[d];
  }
  for (const Index index : indices) {
    if (index < 0 || index >= in.sizes[dim]) {
      return fail(call, "index out of range in self");
    }
  }
  auto* to = static_cast<std::uint8_t*>(out.data);
  for (Index o = 0; o < outer; ++o) {
    for (const Index index : indices) {
      std::memcpy(to, bytes(in) + (o * in.sizes[dim] + index) * inner, static_cast<std::size_t>(inner));
      to += inner;
    }
  }
  return RAL_OK;
}

// (grad, indices, num_weights, padding_idx, scale_grad_by_freq)
RAL_KERNEL ral_sim_embedding_backward(const ral_call* call) {
  const ral_tensor& grad = tensor(call, 0);
  const ral_tensor& out = call->outputs[0];
  std::vector<Index> indices;
  if (integer(argument(call, 4)) != 0 || !contiguous(grad) || !read_indices(tensor(call, 1), &indices)) {
    return decline(call, "scaling by frequency, or a gradient that is not contiguous");
  }
  const Index rows = integer(argument(call, 2));
  const Index padding = integer(argument(call, 3));
  const Index width = grad.sizes[grad.ndim - 1];
  std::fill(floats(out), floats(out) + rows * width, 0.0f);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= rows) {
      return fail(call, "index out of range in self");
    }
    if (indices[i] == padding) {
      continue;
    }
    float* to = floats(out) + indices[i] * width;
    const float* from = floats(grad) + static_cast<Index>(i) * width;
    for (Index j = 0; j < width; ++j) {
      to[j] += from[j];
    }
  }
  return RAL_OK;
}

// (tensors, dim)
RAL_KERNEL ral_sim_cat(const ral_call* call) {
  const ral_value& list = call->args[0];
  const ral_tensor& out = call->outputs[0];
  const auto dim = static_cast<int>(wrapped(integer(argument(call, 1)), out.ndim));
  const int size = item_size(out.dtype);
  if (list.tag != RAL_TENSORS || out.ndim == 0 || dim < 0 || dim >= out.ndim || size == 0) {
    return decline(call, "a dtype or a shape that is not concatenated");
  }
  const auto is_nothing = [](const ral_tensor& t) { return t.ndim == 1 && t.sizes[0] == 0; };
  Index total = 0;
  for (int i = 0; i < list.count; ++i) {
    const ral_tensor& t = list.as.tensors[i];
    if (is_nothing(t)) {
      continue;
    }
    if (t.dtype != out.dtype || t.ndim != out.ndim) {
      return decline(call, "tensors of different dtypes or ranks");
    }
    for (int d = 0; d < t.ndim; ++d) {
      if (d != dim && t.sizes[d] != out.sizes[d]) {
        return decline(call, "tensors of different shapes");
      }
    }
    total += t.sizes[dim];
  }
  if (total != out.sizes[dim]) {
    return decline(call, "an output of another shape");
  }
  auto* to = static_cast<std::uint8_t*>(out.data);
  for (int i = 0; i < list.count; ++i) {
    const ral_tensor& t = list.as.tensors[i];
    if (!is_nothing(t)) {
      copy_strided(t, to, out.strides, size);
      to += t.sizes[dim] * out.strides[dim] * size;
    }
  }
  return RAL_OK;
}

namespace {

enum Reduction { kNone = 0, kMean = 1, kSum = 2 };

struct Loss {
  Index rows = 0;
  Index classes = 0;
  Index row_stride = 0;
  Index class_stride = 0;
  Index ignored = 0;
  Index reduction = kMean;
  std::vector<Index> targets;
};

// (…, self, target, weight, reduction, ignore_index), beginning at argument `first`
int read_loss(const ral_call* call, int first, Loss* loss) {
  const ral_tensor& x = tensor(call, first);
  if (is_tensor(argument(call, first + 2)) || x.ndim < 1 || x.ndim > 2 ||
      !read_indices(tensor(call, first + 1), &loss->targets)) {
    return decline(call, "weights, or targets that are not integers");
  }
  loss->rows = x.ndim == 2 ? x.sizes[0] : 1;
  loss->row_stride = x.ndim == 2 ? x.strides[0] : 0;
  loss->classes = x.sizes[x.ndim - 1];
  loss->class_stride = x.strides[x.ndim - 1];
  loss->reduction = integer(argument(call, first + 3));
  loss->ignored = integer(argument(call, first + 4));
  if (static_cast<Index>(loss->targets.size()) != loss->rows) {
    return decline(call, "another number of targets than rows");
  }
  for (const Index target : loss->targets) {
    if (target != loss->ignored && (target < 0 || target >= loss->classes)) {
      std::snprintf(call->reason, call->reason_size, "Target %lld is out of bounds.", static_cast<long long>(target));
      return RAL_FAILED;
    }
  }
  return RAL_OK;
}

}  // namespace

// (self, target, weight, reduction, ignore_index) → output, total_weight
RAL_KERNEL ral_sim_nll_loss(const ral_call* call) {
  Loss loss;
  if (const int status = read_loss(call, 0, &loss); status != RAL_OK) {
    return status;
  }
  const ral_tensor& out = call->outputs[0];
  const bool each = loss.reduction == kNone && tensor(call, 0).ndim == 2;
  if (numel(out) != (each ? loss.rows : 1) || !contiguous(out) || numel(call->outputs[1]) != 1) {
    return decline(call, "an output of another shape");
  }
  double sum = 0;
  Index counted = 0;
  for (Index row = 0; row < loss.rows; ++row) {
    const Index target = loss.targets[static_cast<std::size_t>(row)];
    const bool counts = target != loss.ignored;
    const float picked = counts ? -floats(tensor(call, 0))[row * loss.row_stride + target * loss.class_stride] : 0.0f;
    sum += static_cast<double>(picked);
    counted += counts ? 1 : 0;
    if (each) {
      floats(out)[row] = picked;
    }
  }
  if (!each) {
    floats(out)[0] = static_cast<float>(loss.reduction == kMean ? sum / static_cast<double>(counted) : sum);
  }
  floats(call->outputs[1])[0] = each ? 0.0f : static_cast<float>(counted);
  return RAL_OK;
}

// (grad_output, self, target, weight, reduction, ignore_index, total_weight)
RAL_KERNEL ral_sim_nll_loss_backward(const ral_call* call) {
  Loss loss;
  if (const int status = read_loss(call, 1, &loss); status != RAL_OK) {
    return status;
  }
  const ral_tensor& grad = tensor(call, 0);
  const ral_tensor& out = call->outputs[0];
  const bool each = loss.reduction == kNone && tensor(call, 1).ndim == 2;
  if (!same_sizes(out, tensor(call, 1)) || !contiguous(out) || numel(grad) != (each ? loss.rows : 1)) {
    return decline(call, "an output of another shape");
  }
  std::fill(floats(out), floats(out) + numel(out), 0.0f);
  const float scale = loss.reduction == kMean ? 1.0f / floats(tensor(call, 6))[0] : 1.0f;
  for (Index row = 0; row < loss.rows; ++row) {
    const Index target = loss.targets[static_cast<std::size_t>(row)];
    if (target != loss.ignored) {
      const Index at = each ? row * grad.strides[0] : 0;
      floats(out)[row * loss.classes + target] = -floats(grad)[at] * scale;
    }
  }
  return RAL_OK;
}
