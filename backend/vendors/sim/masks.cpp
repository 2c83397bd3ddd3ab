// Comparisons, selections by a mask, and filling.
#include <functional>

#include "elementwise.h"
#include "indices.h"

namespace ral::sim {

bool fills_output(const ral_call* call, int operands) {
  const ral_tensor& out = call->outputs[0];
  std::array<Index, RAL_MAX_DIMS> largest;
  std::fill(largest.begin(), largest.begin() + out.ndim, 1);
  for (int n = 0; n < operands; ++n) {
    if (!is_tensor(argument(call, n))) {
      continue;
    }
    const ral_tensor& t = tensor(call, n);
    for (int d = 0; d < t.ndim && t.ndim <= out.ndim; ++d) {
      Index& size = largest[static_cast<std::size_t>(out.ndim - t.ndim + d)];
      size = t.sizes[d] != 1 ? t.sizes[d] : size;
    }
  }
  return std::equal(largest.begin(), largest.begin() + out.ndim, out.sizes);
}

bool number_as(int dtype, const ral_value& value, std::uint8_t* memory) {
  bool fits = is_number(value) && is_floating(dtype);
  if (fits) {
    const auto x = static_cast<float>(number(value));
    store_floats(dtype, &x, memory, 1, 1);
  } else {
    with_integer(dtype, [&](auto element) {
      fits = as_number(value, &element);
      std::memcpy(memory, &element, sizeof element);
    });
  }
  return fits;
}

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
  if (out.dtype == RAL_FLOAT64) {
    fill_as(out, number(value));
    return RAL_OK;
  }
  if (out.dtype == RAL_BOOL) {
    fill_as(out, static_cast<std::uint8_t>(number(value) != 0));
    return RAL_OK;
  }
  const bool filled = with_element(out.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_integral_v<T>) {
      fill_as(out, static_cast<T>(integer(value)));
    } else {
      fill_as(out, from_float<T>(static_cast<float>(number(value))));
    }
  });
  return filled ? RAL_OK : decline(call, "a dtype that is not filled");
}

template <class C, class Holds>
RAL_WIDE void compare_chunk(const C* const* in, std::uint8_t* out, Index count, const C* numbers) {
  (void)numbers;
  const C* a = in[0];
  const C* b = in[1];
  for (Index i = 0; i < count; ++i) {
    out[i] = Holds{}(a[i], b[i]) ? 1 : 0;
  }
}

// The one dtype of the tensors among the operands, or -1.
int common_dtype(const ral_call* call, int first, int last) {
  int dtype = -1;
  for (int n = first; n < last; ++n) {
    if (is_tensor(argument(call, n))) {
      if (dtype >= 0 && tensor(call, n).dtype != dtype) {
        return -1;
      }
      dtype = tensor(call, n).dtype;
    }
  }
  return dtype;
}

// A number that is compared with narrow floats is rounded to them first.
bool holds_number(int dtype, const ral_value& value) {
  if (!is_number(value) || dtype == RAL_FLOAT32) {
    return true;
  }
  const auto x = static_cast<float>(number(value));
  bool same = false;
  with_element(dtype, [&](auto element) { same = to_float(from_float<decltype(element)>(x)) == x; });
  return same;
}

template <template <class> class Holds>
int compare(const ral_call* call) {
  const int dtype = common_dtype(call, 0, 2);
  if (call->outputs[0].dtype != RAL_BOOL || dtype < 0) {
    return decline(call, "operands of different dtypes, or an output that is not bool");
  }
  int status = RAL_DECLINED;
  if (is_floating(dtype)) {
    if (!holds_number(dtype, argument(call, 0)) || !holds_number(dtype, argument(call, 1))) {
      return decline(call, "a number that the dtype cannot hold");
    }
    return apply_as<2, float, std::uint8_t>(call, compare_chunk<float, Holds<float>>, nullptr);
  }
  with_integer(dtype == RAL_BOOL ? static_cast<int>(RAL_UINT8) : dtype, [&](auto element) {
    using T = decltype(element);
    status = apply_as<2, T, std::uint8_t>(call, compare_chunk<T, Holds<T>>, nullptr);
  });
  return status == RAL_DECLINED && call->reason[0] == '\0' ? decline(call, "a dtype that is not compared") : status;
}

template <class Of>
RAL_WIDE void logical_chunk(const std::uint8_t* const* in, std::uint8_t* out, Index count,
                            const std::uint8_t* numbers) {
  const std::uint8_t* a = in[0];
  const std::uint8_t* b = in[numbers[0]];
  for (Index i = 0; i < count; ++i) {
    out[i] = Of{}(a[i] != 0, b[i] != 0) ? 1 : 0;
  }
}

struct NotFirst {
  bool operator()(bool a, bool) const { return !a; }
};

// Whether each number is infinite with this sign.
RAL_WIDE void infinite_chunk(const float* const* in, std::uint8_t* out, Index count, const float* numbers) {
  const float* a = in[0];
  const float infinity = numbers[0];
  for (Index i = 0; i < count; ++i) {
    out[i] = a[i] == infinity ? 1 : 0;
  }
}

int is_infinite(const ral_call* call, float infinity) {
  if (call->outputs[0].dtype != RAL_BOOL || !is_floating(tensor(call, 0).dtype)) {
    return decline(call, "a dtype without infinities");
  }
  return apply_as<1, float, std::uint8_t>(call, infinite_chunk, &infinity);
}

// Of booleans; a second operand where there is one.
template <class Of, std::size_t N>
int logical(const ral_call* call) {
  if (call->outputs[0].dtype != RAL_BOOL || !operands_are(call, N, RAL_BOOL)) {
    return decline(call, "operands that are not bool");
  }
  constexpr std::uint8_t last = N - 1;
  return apply_as<N, std::uint8_t, std::uint8_t>(call, logical_chunk<Of>, &last);
}

// One side of a selection as raw elements: a tensor's memory, or one number in the output's dtype.
struct Side {
  const std::uint8_t* data = nullptr;
  std::uint8_t value[8] = {};
};

template <std::size_t N>
bool take_side(const ral_value& value, int dtype, Loops<N>& loops, std::size_t which, Side* side) {
  if (is_tensor(value)) {
    side->data = bytes(*value.as.tensors);
    return value.as.tensors->dtype == dtype && loops.add(which, *value.as.tensors);
  }
  if (!is_number(value)) {
    return false;
  }
  loops.add_number(which);
  side->data = side->value;
  return number_as(dtype, value, side->value);
}

template <class T>
RAL_WIDE void select_run(const std::uint8_t* on, Index on_stride, const T* a, Index a_stride, const T* b,
                         Index b_stride, T* out, Index out_stride, Index count) {
  if (on_stride == 1 && a_stride == 0 && b_stride == 1 && out_stride == 1) {
    const T chosen = *a;
    for (Index i = 0; i < count; ++i) {
      out[i] = on[i] != 0 ? chosen : b[i];
    }
    return;
  }
  for (Index i = 0; i < count; ++i) {
    out[i * out_stride] = on[i * on_stride] != 0 ? a[i * a_stride] : b[i * b_stride];
  }
}

template <class T>
void select_as(const ral_call* call, Loops<4>& loops, const std::uint8_t* mask, const Side& a, const Side& b) {
  loops.run([&](Index count, const auto& offsets, const auto& strides) {
    select_run(mask + offsets[0], strides[0], reinterpret_cast<const T*>(a.data) + offsets[1], strides[1],
               reinterpret_cast<const T*>(b.data) + offsets[2], strides[2],
               static_cast<T*>(call->outputs[0].data) + offsets[3], strides[3], count);
  });
}

// out = mask ? chosen : other, in any dtype
int select(const ral_call* call, const ral_value& mask, const ral_value& chosen, const ral_value& other) {
  const ral_tensor& out = call->outputs[0];
  Loops<4> loops(out.ndim, out.sizes);
  loops.add(3, out);
  Side a;
  Side b;
  if (!is_tensor(mask) || mask.as.tensors->dtype != RAL_BOOL || !loops.add(0, *mask.as.tensors) ||
      !take_side(chosen, out.dtype, loops, 1, &a) || !take_side(other, out.dtype, loops, 2, &b)) {
    return decline(call, "a mask that is not bool, or operands that do not fit the output");
  }
  loops.order_by(3);
  switch (item_size(out.dtype)) {
    case 1:
      select_as<std::uint8_t>(call, loops, bytes(*mask.as.tensors), a, b);
      return RAL_OK;
    case 2:
      select_as<std::uint16_t>(call, loops, bytes(*mask.as.tensors), a, b);
      return RAL_OK;
    case 4:
      select_as<std::uint32_t>(call, loops, bytes(*mask.as.tensors), a, b);
      return RAL_OK;
    case 8:
      select_as<std::uint64_t>(call, loops, bytes(*mask.as.tensors), a, b);
      return RAL_OK;
    default:
      return decline(call, "a dtype that is not selected");
  }
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

RAL_KERNEL ral_sim_eq(const ral_call* call) { return compare<std::equal_to>(call); }
RAL_KERNEL ral_sim_ne(const ral_call* call) { return compare<std::not_equal_to>(call); }
RAL_KERNEL ral_sim_lt(const ral_call* call) { return compare<std::less>(call); }
RAL_KERNEL ral_sim_le(const ral_call* call) { return compare<std::less_equal>(call); }
RAL_KERNEL ral_sim_gt(const ral_call* call) { return compare<std::greater>(call); }
RAL_KERNEL ral_sim_ge(const ral_call* call) { return compare<std::greater_equal>(call); }

RAL_KERNEL ral_sim_logical_not(const ral_call* call) { return logical<NotFirst, 1>(call); }
RAL_KERNEL ral_sim_logical_and(const ral_call* call) { return logical<std::logical_and<bool>, 2>(call); }
RAL_KERNEL ral_sim_logical_or(const ral_call* call) { return logical<std::logical_or<bool>, 2>(call); }

RAL_KERNEL ral_sim_isposinf(const ral_call* call) { return is_infinite(call, INFINITY); }
RAL_KERNEL ral_sim_isneginf(const ral_call* call) { return is_infinite(call, -INFINITY); }

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
