// Comparisons, selections by a mask, and filling.
#include <algorithm>

#include "kernels.h"

namespace ral::sim {

namespace {

template <class T>
void fill_as(const ral_tensor& out, T value) {
  Loops<1> loops(out.ndim, out.sizes);
  loops.add(0, out);
  loops.run([&](Index count, const auto& offsets, const auto& strides) {
    T* to = static_cast<T*>(out.data) + offsets[0];
    if (strides[0] == 1) {
      std::fill(to, to + count, value);
      return;
    }
    for (Index i = 0; i < count; ++i) {
      to[i * strides[0]] = value;
    }
  });
}

int fill(const ral_call* call, const ral_value& value) {
  const ral_tensor& out = call->outputs[0];
  switch (out.dtype) {
    case RAL_FLOAT32:
      fill_as(out, static_cast<float>(number(value)));
      return RAL_OK;
    case RAL_FLOAT64:
      fill_as(out, number(value));
      return RAL_OK;
    case RAL_INT64:
      fill_as(out, integer(value));
      return RAL_OK;
    case RAL_INT32:
      fill_as(out, static_cast<std::int32_t>(integer(value)));
      return RAL_OK;
    case RAL_BOOL:
      fill_as(out, static_cast<std::uint8_t>(number(value) != 0));
      return RAL_OK;
    default:
      return decline(call, "a dtype that is not filled");
  }
}

// One operand of a comparison or a selection: a float32 tensor or a number.
struct Side {
  const float* data = nullptr;
  float value = 0;
  float at(Index offset) const { return data != nullptr ? data[offset] : value; }
};

template <std::size_t N>
bool take_side(const ral_value& value, Loops<N>& loops, std::size_t which, Side* side) {
  if (is_number(value)) {
    side->value = static_cast<float>(number(value));
    loops.add_number(which);
    return true;
  }
  if (!is_tensor(value) || value.as.tensors->dtype != RAL_FLOAT32) {
    return false;
  }
  side->data = floats(*value.as.tensors);
  return loops.add(which, *value.as.tensors);
}

// Whether the operands broadcast to exactly the output's shape.
bool fills_output(const ral_call* call, int operands) {
  const ral_tensor& out = call->outputs[0];
  std::vector<Index> largest(static_cast<std::size_t>(out.ndim), 1);
  for (int n = 0; n < operands; ++n) {
    if (!is_tensor(call->args[n])) {
      continue;
    }
    const ral_tensor& t = tensor(call, n);
    for (int d = 0; d < t.ndim && t.ndim <= out.ndim; ++d) {
      Index& size = largest[static_cast<std::size_t>(out.ndim - t.ndim + d)];
      size = t.sizes[d] != 1 ? t.sizes[d] : size;
    }
  }
  return std::equal(largest.begin(), largest.end(), out.sizes);
}

template <class Compare>
int compare(const ral_call* call, Compare&& holds) {
  const ral_tensor& out = call->outputs[0];
  Loops<3> loops(out.ndim, out.sizes);
  loops.add(2, out);
  Side a;
  Side b;
  if (out.dtype != RAL_BOOL || !fills_output(call, 2) || !take_side(call->args[0], loops, 0, &a) ||
      !take_side(call->args[1], loops, 1, &b)) {
    return decline(call, "operands that are not float32, or an output of another dtype or shape");
  }
  loops.run([&](Index count, const auto& offsets, const auto& strides) {
    auto* to = static_cast<std::uint8_t*>(out.data) + offsets[2];
    for (Index i = 0; i < count; ++i) {
      to[i * strides[2]] = holds(a.at(offsets[0] + i * strides[0]), b.at(offsets[1] + i * strides[1])) ? 1 : 0;
    }
  });
  return RAL_OK;
}

// out = mask ? chosen : other
int select(const ral_call* call, const ral_value& mask, const ral_value& chosen, const ral_value& other) {
  const ral_tensor& out = call->outputs[0];
  Loops<4> loops(out.ndim, out.sizes);
  loops.add(3, out);
  Side a;
  Side b;
  if (out.dtype != RAL_FLOAT32 || !is_tensor(mask) || mask.as.tensors->dtype != RAL_BOOL ||
      !loops.add(0, *mask.as.tensors) || !take_side(chosen, loops, 1, &a) || !take_side(other, loops, 2, &b)) {
    return decline(call, "a mask that is not bool, or operands that are not float32 or do not fit the output");
  }
  loops.run([&](Index count, const auto& offsets, const auto& strides) {
    const std::uint8_t* on = bytes(*mask.as.tensors) + offsets[0];
    float* to = floats(out) + offsets[3];
    for (Index i = 0; i < count; ++i) {
      to[i * strides[3]] =
          on[i * strides[0]] != 0 ? a.at(offsets[1] + i * strides[1]) : b.at(offsets[2] + i * strides[2]);
    }
  });
  return RAL_OK;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

#define COMPARISON(name, op)                                       \
  RAL_KERNEL ral_sim_##name(const ral_call* call) {                \
    return compare(call, [](float a, float b) { return a op b; }); \
  }

COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)

// (condition, self, other)
RAL_KERNEL ral_sim_where(const ral_call* call) {
  return fills_output(call, 3) ? select(call, call->args[0], call->args[1], call->args[2])
                               : decline(call, "an output of another shape");
}

// (self, mask, value)
RAL_KERNEL ral_sim_masked_fill(const ral_call* call) {
  if (!same_sizes(call->outputs[0], tensor(call, 0))) {
    return decline(call, "an output of another shape");
  }
  return select(call, call->args[1], call->args[2], call->args[0]);
}

// (self, value)
RAL_KERNEL ral_sim_fill(const ral_call* call) {
  return is_number(argument(call, 1)) ? fill(call, call->args[1]) : decline(call, "a value that is a tensor");
}

RAL_KERNEL ral_sim_zero(const ral_call* call) {
  const ral_value zero = {RAL_INT, 1, {0}};
  return fill(call, zero);
}

// (self, diagonal)
namespace {

int triangle(const ral_call* call, bool lower) {
  const ral_tensor& in = tensor(call, 0);
  const ral_tensor& out = call->outputs[0];
  const int size = item_size(in.dtype);
  if (in.ndim < 2 || size == 0 || in.dtype != out.dtype || !same_sizes(in, out) || !contiguous(in) ||
      !contiguous(out)) {
    return decline(call, "tensors that are not contiguous matrices of one dtype and shape");
  }
  const Index diagonal = integer(argument(call, 1));
  const Index columns = in.sizes[in.ndim - 1];
  const Index rows = in.sizes[in.ndim - 2];
  const Index matrices = rows * columns == 0 ? 0 : numel(in) / (rows * columns);
  for (Index line = 0; line < matrices * rows; ++line) {
    const Index edge = std::clamp<Index>(line % rows + diagonal + (lower ? 1 : 0), 0, columns);
    const auto* from = bytes(in) + line * columns * size;
    auto* to = static_cast<std::uint8_t*>(out.data) + line * columns * size;
    const Index keep_from = lower ? 0 : edge;
    const Index keep_to = lower ? edge : columns;
    std::memmove(to + keep_from * size, from + keep_from * size,
                 static_cast<std::size_t>((keep_to - keep_from) * size));
    std::memset(to, 0, static_cast<std::size_t>(keep_from * size));
    std::memset(to + keep_to * size, 0, static_cast<std::size_t>((columns - keep_to) * size));
  }
  return RAL_OK;
}

}  // namespace

RAL_KERNEL ral_sim_tril(const ral_call* call) { return triangle(call, true); }
RAL_KERNEL ral_sim_triu(const ral_call* call) { return triangle(call, false); }
