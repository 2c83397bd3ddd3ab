// Reductions over dimensions. Sums add up in the order of memory; the others gather what each result is taken from.
#include <cmath>
#include <optional>

#include "element.h"
#include "lanes.h"

namespace ral::sim {

namespace {

RAL_WIDE void add_run(const float* x, Index count, double* to) {
  for (Index i = 0; i < count; ++i) {
    to[i] += static_cast<double>(x[i]);
  }
}

// Which dimensions go: the ones named, or all.
std::vector<bool> reduced_dims(const ral_tensor& in, const ral_value& dims) {
  const auto rank = static_cast<std::size_t>(in.ndim);
  const bool named = (dims.tag == RAL_INTS && dims.count > 0) || dims.tag == RAL_INT;
  std::vector<bool> reduced(rank, !named);
  for (int i = 0; named && i < (dims.tag == RAL_INT ? 1 : dims.count); ++i) {
    const Index dim = wrapped(dims.tag == RAL_INT ? dims.as.i : dims.as.ints[i], in.ndim);
    if (dim >= 0 && dim < in.ndim) {
      reduced[static_cast<std::size_t>(dim)] = true;
    }
  }
  return reduced;
}

// Whether `out` has the sizes that are left, reduced dimensions as 1 where they are kept.
bool has_left_sizes(const ral_tensor& in, const ral_tensor& out, const std::vector<bool>& reduced, bool keep) {
  int at = 0;
  for (int d = 0; d < in.ndim; ++d) {
    const bool gone = reduced[static_cast<std::size_t>(d)];
    if (gone && !keep) {
      continue;
    }
    if (at >= out.ndim || out.sizes[at] != (gone ? 1 : in.sizes[d])) {
      return false;
    }
    ++at;
  }
  return at == out.ndim;
}

// The results' strides as the input's dimensions see them (0 where reduced), over dense results.
std::vector<Index> result_strides(const ral_tensor& in, const std::vector<bool>& reduced) {
  std::vector<Index> strides(reduced.size());
  Index stride = 1;
  for (int d = in.ndim; d-- > 0;) {
    if (!reduced[static_cast<std::size_t>(d)]) {
      strides[static_cast<std::size_t>(d)] = stride;
      stride *= in.sizes[d];
    }
  }
  return strides;
}

void add_floats(const ral_tensor& in, std::vector<Index> strides, double* sums) {
  constexpr Index kChunk = 512;
  Loops<2> loops(in.ndim, in.sizes);
  loops.add(0, in);
  loops.set_strides(1, std::move(strides));
  loops.order_by(0);
  const int size = item_size(in.dtype);
  loops.run([&](Index count, const std::array<Index, 2>& offsets, const std::array<Index, 2>& inner) {
    float buffer[kChunk];
    const bool direct = in.dtype == RAL_FLOAT32 && inner[0] == 1;
    const Index step = direct ? count : kChunk;
    for (Index begin = 0; begin < count; begin += step) {
      const Index length = std::min(step, count - begin);
      const std::uint8_t* from = bytes(in) + (offsets[0] + begin * inner[0]) * size;
      if (!direct) {
        load_floats(in.dtype, from, inner[0], length, buffer);
      }
      const float* x = direct ? reinterpret_cast<const float*>(from) : buffer;
      double* to = sums + offsets[1] + begin * inner[1];
      if (inner[1] == 0) {
        *to += sum_run(x, length);
      } else if (inner[1] == 1) {
        add_run(x, length, to);
      } else {
        for (Index i = 0; i < length; ++i) {
          to[i * inner[1]] += static_cast<double>(x[i]);
        }
      }
    }
  });
}

// int64, wrapping around; what booleans and integers add up to.
void add_integers(const ral_tensor& in, std::vector<Index> strides, std::uint64_t* sums) {
  Loops<2> loops(in.ndim, in.sizes);
  loops.add(0, in);
  loops.set_strides(1, std::move(strides));
  with_element(in.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_integral_v<T>) {
      loops.run([&](Index count, const auto& offsets, const auto& inner) {
        const auto* x = static_cast<const T*>(in.data) + offsets[0];
        for (Index i = 0; i < count; ++i) {
          sums[offsets[1] + i * inner[1]] += static_cast<std::uint64_t>(static_cast<Index>(x[i * inner[0]]));
        }
      });
    }
  });
}

// Calls body(offset in out, number of the result) for each result, in order.
template <class Body>
void for_each_result(const ral_tensor& out, Body&& body) {
  Loops<1> loops(out.ndim, out.sizes);
  loops.add(0, out);
  Index next = 0;
  loops.run([&](Index count, const auto& offsets, const auto& strides) {
    for (Index i = 0; i < count; ++i) {
      body(offsets[0] + i * strides[0], next++);
    }
  });
}

void store_result(const ral_tensor& out, Index offset, float value) {
  store_floats(out.dtype, &value, static_cast<std::uint8_t*>(out.data) + offset * item_size(out.dtype), 1, 1);
}

// (self, dim, keepdim, dtype), or (self, dtype) for all
int add_up(const ral_call* call, bool mean) {
  const ral_tensor& in = tensor(call, 0);
  const ral_tensor& out = call->outputs[0];
  const bool all = call->arg_count < 3;
  const std::vector<bool> reduced = reduced_dims(in, all ? ral_value{RAL_NONE, 0, {0}} : argument(call, 1));
  if (!has_left_sizes(in, out, reduced, !all && integer(argument(call, 2)) != 0) || !is_computed(in.dtype)) {
    return decline(call, "an output of another shape, or a dtype that is not added up");
  }
  const auto results = static_cast<std::size_t>(numel(out));
  if (out.dtype == RAL_INT64 && !mean && !is_floating(in.dtype)) {
    std::vector<std::uint64_t> sums(results);
    add_integers(in, result_strides(in, reduced), sums.data());
    for_each_result(out, [&](Index offset, Index n) {
      static_cast<Index*>(out.data)[offset] = static_cast<Index>(sums[static_cast<std::size_t>(n)]);
    });
    return RAL_OK;
  }
  if (!is_floating(out.dtype)) {
    return decline(call, "an output of another dtype");
  }
  std::vector<double> sums(results);
  add_floats(in, result_strides(in, reduced), sums.data());
  const double scale = mean ? static_cast<double>(numel(out)) / static_cast<double>(numel(in)) : 1.0;
  for_each_result(out, [&](Index offset, Index n) {
    store_result(out, offset, static_cast<float>(sums[static_cast<std::size_t>(n)] * scale));
  });
  return RAL_OK;
}

// The input with the reduced dimensions last, as contiguous floats: `length` numbers for each result.
class Runs {
 public:
  Runs(const ral_tensor& in, const std::vector<bool>& reduced) {
    for (const bool gone : {false, true}) {
      for (int d = 0; d < in.ndim; ++d) {
        if (reduced[static_cast<std::size_t>(d)] == gone) {
          sizes_.push_back(in.sizes[d]);
          strides_.push_back(in.strides[d]);
          length_ *= gone ? in.sizes[d] : 1;
        }
      }
    }
    numbers_.emplace(ral_tensor{in.data, sizes_.data(), strides_.data(), in.ndim, in.dtype});
  }
  const float* at(Index result) const { return *numbers_ + result * length_; }
  Index length() const { return length_; }

 private:
  std::vector<Index> sizes_;
  std::vector<Index> strides_;
  Index length_ = 1;
  std::optional<FloatsIn> numbers_;
};

// Whether float32 holds every number of the dtype.
bool is_exact(int dtype) {
  return is_floating(dtype) || dtype == RAL_BOOL || dtype == RAL_INT8 || dtype == RAL_UINT8 || dtype == RAL_INT16;
}

struct Place {
  float value;
  Index index;
};

// The first of the largest (of the smallest: of the negated); not a number is larger than all.
RAL_WIDE Place find_extreme(const float* x, Index count, bool smallest) {
  Index index = 0;
  for (Index i = 1; i < count && x[index] == x[index]; ++i) {
    const bool better = smallest ? x[i] < x[index] : x[i] > x[index];
    index = better || x[i] != x[i] ? i : index;
  }
  return {x[index], index};
}

// Infinities make the sum not a number too; then it is looked for one by one.
RAL_WIDE Place find_largest(const float* x, Index count, bool with_place) {
  const double sum = sum_of(x, count);
  if (sum != sum) {
    return find_extreme(x, count, false);
  }
  const float value = largest_of(x, count);
  return {value, with_place ? std::find(x, x + count, value) - x : 0};
}

// (self, dim, keepdim) → the first of the extremes' values and places, as far as they are wanted
int extreme(const ral_call* call, bool smallest, const ral_tensor* values, const ral_tensor* places) {
  const ral_tensor& in = tensor(call, 0);
  const std::vector<bool> reduced = reduced_dims(in, argument(call, 1));
  const bool keep = integer(argument(call, 2)) != 0;
  const ral_tensor& first = values != nullptr ? *values : *places;
  if (!has_left_sizes(in, first, reduced, keep) || !is_exact(in.dtype) ||
      (values != nullptr && (values->dtype != in.dtype || !is_floating(in.dtype))) ||
      (places != nullptr && places->dtype != RAL_INT64) || numel(in) == 0) {
    return decline(call, "an output of another shape, or a dtype that is not compared");
  }
  const Runs runs(in, reduced);
  std::vector<Place> found;
  for (Index n = 0; n < numel(first); ++n) {
    found.push_back(smallest ? find_extreme(runs.at(n), runs.length(), true)
                             : find_largest(runs.at(n), runs.length(), places != nullptr));
  }
  if (values != nullptr) {
    for_each_result(*values, [&](Index offset, Index n) {
      store_result(*values, offset, found[static_cast<std::size_t>(n)].value);
    });
  }
  if (places != nullptr) {
    for_each_result(*places, [&](Index offset, Index n) {
      static_cast<Index*>(places->data)[offset] = found[static_cast<std::size_t>(n)].index;
    });
  }
  return RAL_OK;
}

// One float of each run of floats, by compute(numbers, count).
template <class Compute>
int reduce_runs(const ral_call* call, const ral_value& dims, bool keep, Compute&& compute) {
  const ral_tensor& in = tensor(call, 0);
  const ral_tensor& out = call->outputs[0];
  const std::vector<bool> reduced = reduced_dims(in, dims);
  if (!has_left_sizes(in, out, reduced, keep) || !is_floating(in.dtype) || out.dtype != in.dtype) {
    return decline(call, "an output of another shape or dtype");
  }
  const Runs runs(in, reduced);
  for_each_result(out, [&](Index offset, Index n) { store_result(out, offset, compute(runs.at(n), runs.length())); });
  return RAL_OK;
}

double variance(const float* x, Index count, double correction) {
  return moments_of_runs(x, count, 1, 0).squares / std::max(0.0, static_cast<double>(count) - correction);
}

double norm(const float* x, Index count, double order) {
  if (order == 2.0) {
    return std::sqrt(square_run(x, count, 0.0f));
  }
  double result = 0;
  for (Index i = 0; i < count; ++i) {
    const double magnitude = std::fabs(static_cast<double>(x[i]));
    result = order == 1.0 ? result + magnitude : magnitude > result || magnitude != magnitude ? magnitude : result;
  }
  return result;
}

// (self, dim, keepdim) → bool
int count_true(const ral_call* call, bool all) {
  const ral_tensor& in = tensor(call, 0);
  const ral_tensor& out = call->outputs[0];
  const std::vector<bool> reduced = reduced_dims(in, argument(call, 1));
  if (!has_left_sizes(in, out, reduced, integer(argument(call, 2)) != 0) || !is_computed(in.dtype) ||
      out.dtype != RAL_BOOL) {
    return decline(call, "an output of another shape, or a dtype that is neither true nor false");
  }
  const Runs runs(in, reduced);
  for_each_result(out, [&](Index offset, Index n) {
    const auto is_true = [](float x) { return x != 0.0f; };
    const float* begin = runs.at(n);
    const float* end = begin + runs.length();
    static_cast<std::uint8_t*>(out.data)[offset] =
        (all ? std::all_of(begin, end, is_true) : std::any_of(begin, end, is_true)) ? 1 : 0;
  });
  return RAL_OK;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

RAL_KERNEL ral_sim_sum(const ral_call* call) { return add_up(call, false); }
RAL_KERNEL ral_sim_mean(const ral_call* call) { return add_up(call, true); }

// (self, dim, keepdim)
RAL_KERNEL ral_sim_amax(const ral_call* call) { return extreme(call, false, call->outputs, nullptr); }
RAL_KERNEL ral_sim_amin(const ral_call* call) { return extreme(call, true, call->outputs, nullptr); }
RAL_KERNEL ral_sim_argmax(const ral_call* call) { return extreme(call, false, nullptr, call->outputs); }
RAL_KERNEL ral_sim_argmin(const ral_call* call) { return extreme(call, true, nullptr, call->outputs); }
RAL_KERNEL ral_sim_all(const ral_call* call) { return count_true(call, true); }
RAL_KERNEL ral_sim_any(const ral_call* call) { return count_true(call, false); }

// (self, dim, keepdim) → values, indices; or (self) → the largest of all; or (self, other), which maximum does
RAL_KERNEL ral_sim_max(const ral_call* call) {
  return extreme(call, false, call->outputs, call->output_count > 1 ? call->outputs + 1 : nullptr);
}
RAL_KERNEL ral_sim_min(const ral_call* call) {
  return extreme(call, true, call->outputs, call->output_count > 1 ? call->outputs + 1 : nullptr);
}

// (self, dim, correction, keepdim)
RAL_KERNEL ral_sim_var(const ral_call* call) {
  const double correction = number(argument(call, 2), 1.0);
  return reduce_runs(call, argument(call, 1), integer(argument(call, 3)) != 0,
                     [&](const float* x, Index count) { return static_cast<float>(variance(x, count, correction)); });
}
RAL_KERNEL ral_sim_std(const ral_call* call) {
  const double correction = number(argument(call, 2), 1.0);
  return reduce_runs(call, argument(call, 1), integer(argument(call, 3)) != 0, [&](const float* x, Index count) {
    return static_cast<float>(std::sqrt(variance(x, count, correction)));
  });
}

// (self, ord, dim, keepdim, dtype)
RAL_KERNEL ral_sim_vector_norm(const ral_call* call) {
  const double order = number(argument(call, 1), 2.0);
  if ((order != 2.0 && order != 1.0 && order != static_cast<double>(INFINITY)) || numel(tensor(call, 0)) == 0) {
    return decline(call, "a norm of another order, or of nothing");
  }
  return reduce_runs(call, argument(call, 2), integer(argument(call, 3)) != 0,
                     [&](const float* x, Index count) { return static_cast<float>(norm(x, count, order)); });
}
