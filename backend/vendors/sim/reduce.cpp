// Sums and means over dimensions, added up in double.
#include "kernels.h"

namespace ral::sim {

namespace {

RAL_WIDE double sum_run(const float* x, Index count) {
  double sum = 0;
  for (Index begin = 0; begin < count; begin += 512) {
    const Index end = begin + 512 < count ? begin + 512 : count;
    float part[16] = {};
    Index i = begin;
    for (; i + 16 <= end; i += 16) {
      for (Index j = 0; j < 16; ++j) {
        part[j] += x[i + j];
      }
    }
    for (; i < end; ++i) {
      part[0] += x[i];
    }
    for (const float p : part) {
      sum += static_cast<double>(p);
    }
  }
  return sum;
}

RAL_WIDE void add_run(const float* x, Index count, double* to) {
  for (Index i = 0; i < count; ++i) {
    to[i] += static_cast<double>(x[i]);
  }
}

// Which dimensions go: those named, or all.
std::vector<bool> reduced_dims(const ral_tensor& in, const ral_value& dims) {
  const auto rank = static_cast<std::size_t>(in.ndim);
  std::vector<bool> reduced(rank, dims.tag != RAL_INTS || dims.count == 0);
  for (int i = 0; dims.tag == RAL_INTS && i < dims.count; ++i) {
    const Index dim = wrapped(dims.as.ints[i], in.ndim);
    if (dim >= 0 && dim < in.ndim) {
      reduced[static_cast<std::size_t>(dim)] = true;
    }
  }
  return reduced;
}

// The output's strides as the input's dimensions see them (0 where reduced), over a dense output. False: the shape is
// another.
bool output_strides(const ral_tensor& in, const ral_tensor& out, const std::vector<bool>& reduced, bool keep,
                    std::vector<Index>* dense, std::vector<Index>* kept_sizes) {
  for (int d = 0; d < in.ndim; ++d) {
    if (!reduced[static_cast<std::size_t>(d)]) {
      kept_sizes->push_back(in.sizes[d]);
    } else if (keep) {
      kept_sizes->push_back(1);
    }
  }
  if (out.ndim != static_cast<int>(kept_sizes->size()) ||
      !std::equal(kept_sizes->begin(), kept_sizes->end(), out.sizes)) {
    return false;
  }
  dense->assign(static_cast<std::size_t>(in.ndim), 0);
  Index stride = 1;
  for (int d = in.ndim; d-- > 0;) {
    if (!reduced[static_cast<std::size_t>(d)]) {
      (*dense)[static_cast<std::size_t>(d)] = stride;
      stride *= in.sizes[d];
    }
  }
  return true;
}

void accumulate(const ral_tensor& in, std::vector<Index> strides, double* sums) {
  Loops<2> loops(in.ndim, in.sizes);
  loops.add(0, in);
  loops.set_strides(1, std::move(strides));
  loops.run([&](Index count, const std::array<Index, 2>& offsets, const std::array<Index, 2>& inner) {
    const float* x = floats(in) + offsets[0];
    double* to = sums + offsets[1];
    if (inner[0] == 1 && inner[1] == 0) {
      *to += sum_run(x, count);
    } else if (inner[0] == 1 && inner[1] == 1) {
      add_run(x, count, to);
    } else {
      for (Index i = 0; i < count; ++i) {
        to[i * inner[1]] += static_cast<double>(x[i * inner[0]]);
      }
    }
  });
}

// (self, dim, keepdim, dtype)
int reduce(const ral_call* call, bool mean) {
  const ral_tensor& in = tensor(call, 0);
  const ral_tensor& out = call->outputs[0];
  const std::vector<bool> reduced = reduced_dims(in, argument(call, 1));
  std::vector<Index> strides;
  std::vector<Index> kept;
  if (out.dtype != RAL_FLOAT32 || !output_strides(in, out, reduced, integer(argument(call, 2)) != 0, &strides, &kept)) {
    return decline(call, "an output of another dtype or shape");
  }
  std::vector<double> sums(static_cast<std::size_t>(numel(out)));
  accumulate(in, std::move(strides), sums.data());
  const double scale = mean ? static_cast<double>(numel(out)) / static_cast<double>(numel(in)) : 1.0;
  Loops<1> loops(out.ndim, out.sizes);
  loops.add(0, out);
  std::size_t next = 0;
  loops.run([&](Index count, const auto& offsets, const auto& inner) {
    for (Index i = 0; i < count; ++i) {
      floats(out)[offsets[0] + i * inner[0]] = static_cast<float>(sums[next++] * scale);
    }
  });
  return RAL_OK;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

RAL_KERNEL ral_sim_sum(const ral_call* call) { return reduce(call, false); }
RAL_KERNEL ral_sim_mean(const ral_call* call) { return reduce(call, true); }
