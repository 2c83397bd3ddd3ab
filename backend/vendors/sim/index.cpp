// Moving whole rows: embedding, concatenation; and picking and adding single numbers by their indices.
#include <algorithm>

#include "indices.h"

namespace ral::sim {

namespace {

template <class T>
void copy_run(const std::uint8_t* from, Index from_stride, std::uint8_t* to, Index to_stride, Index count) {
  const auto* source = reinterpret_cast<const T*>(from);
  auto* target = reinterpret_cast<T*>(to);
  for (Index i = 0; i < count; ++i) {
    target[i * to_stride] = source[i * from_stride];
  }
}

using CopyRun = void (*)(const std::uint8_t*, Index, std::uint8_t*, Index, Index);

CopyRun copy_run_of(int size) {
  return size == 8   ? copy_run<std::uint64_t>
         : size == 4 ? copy_run<std::uint32_t>
         : size == 2 ? copy_run<std::uint16_t>
                     : copy_run<std::uint8_t>;
}

}  // namespace

void copy_strided(const ral_tensor& from, void* to, const Index* to_strides, int size) {
  Loops<2> loops(from.ndim, from.sizes);
  loops.add(0, from);
  loops.set_strides(1, std::vector<Index>(to_strides, to_strides + from.ndim));
  loops.order_by(1);
  const CopyRun copy = copy_run_of(size);
  loops.run([&](Index count, const std::array<Index, 2>& offsets, const std::array<Index, 2>& inner) {
    const std::uint8_t* source = bytes(from) + offsets[0] * size;
    auto* target = static_cast<std::uint8_t*>(to) + offsets[1] * size;
    if (inner[0] == 1 && inner[1] == 1) {
      std::memcpy(target, source, static_cast<std::size_t>(count * size));
    } else {
      copy(source, inner[0], target, inner[1], count);
    }
  });
}

// All numbers of an index tensor, in order.
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
  if (integer(argument(call, 4)) != 0 || !is_floating(grad.dtype) || grad.ndim == 0 ||
      !read_indices(tensor(call, 1), &indices)) {
    return decline(call, "scaling by frequency, or indices that are not integers");
  }
  const FloatsIn grads(grad);
  FloatsOut sums(out);
  const Index rows = integer(argument(call, 2));
  const Index padding = integer(argument(call, 3));
  const Index width = grad.sizes[grad.ndim - 1];
  std::fill(sums.data(), sums.data() + rows * width, 0.0f);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= rows) {
      return fail(call, "index out of range in self");
    }
    if (indices[i] == padding) {
      continue;
    }
    float* to = sums.data() + indices[i] * width;
    const float* from = grads + static_cast<Index>(i) * width;
    for (Index j = 0; j < width; ++j) {
      to[j] += from[j];
    }
  }
  sums.commit();
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

// Calls body(place in the indexed tensor, place in `source`, index) for each element of `index`, along `dim`; a place is
// an offset. `source` has at least the sizes of `index`.
template <class Body>
int for_each_index(const ral_call* call, const ral_tensor& indexed, int dim, const ral_tensor& index,
                   const ral_tensor& source, Body&& body) {
  std::vector<Index> steps(indexed.strides, indexed.strides + indexed.ndim);
  if (indexed.ndim > 0) {
    steps[static_cast<std::size_t>(dim)] = 0;
  }
  const Index step = indexed.ndim > 0 ? indexed.strides[dim] : 0;
  const Index size = indexed.ndim > 0 ? indexed.sizes[dim] : 1;
  Loops<3> loops(index.ndim, index.sizes);
  loops.set_strides(0, std::move(steps));
  loops.add(1, index);
  loops.set_strides(2, {source.strides, source.strides + source.ndim});
  bool inside = true;
  loops.run([&](Index count, const auto& offsets, const auto& strides) {
    for (Index i = 0; i < count && inside; ++i) {
      const Index at = longs(index)[offsets[1] + i * strides[1]];
      inside = at >= 0 && at < size;
      if (inside) {
        body(offsets[0] + i * strides[0] + at * step, offsets[2] + i * strides[2]);
      }
    }
  });
  return inside ? RAL_OK : fail(call, "index out of bounds");
}

bool indexes(const ral_tensor& indexed, int dim, const ral_tensor& index, const ral_tensor& source) {
  bool fits = index.dtype == RAL_INT64 && index.ndim == indexed.ndim && source.ndim == index.ndim && dim >= 0 &&
              dim < std::max(indexed.ndim, 1);
  for (int d = 0; fits && d < index.ndim; ++d) {
    fits = index.sizes[d] <= source.sizes[d] && (d == dim || index.sizes[d] <= indexed.sizes[d]);
  }
  return fits;
}

void copy_element(std::uint8_t* to, Index to_at, const std::uint8_t* from, Index from_at, int size) {
  std::memcpy(to + to_at * size, from + from_at * size, static_cast<std::size_t>(size));
}

// What an operator that writes into a copy of its first argument begins with.
void copy_first(const ral_call* call) {
  const ral_tensor& out = call->outputs[0];
  if (out.data != tensor(call, 0).data) {
    copy_strided(tensor(call, 0), out.data, out.strides, item_size(out.dtype));
  }
}

int dimension(const ral_call* call, const ral_tensor& t) {
  return static_cast<int>(wrapped(integer(argument(call, 1)), std::max(t.ndim, 1)));
}

}  // namespace

// (self, dim, index, sparse_grad)
RAL_KERNEL ral_sim_gather(const ral_call* call) {
  const ral_tensor& in = tensor(call, 0);
  const ral_tensor& index = tensor(call, 2);
  const ral_tensor& out = call->outputs[0];
  const int size = item_size(in.dtype);
  if (!indexes(in, dimension(call, in), index, out) || in.dtype != out.dtype || size == 0 || !same_sizes(index, out)) {
    return decline(call, "indices that do not fit the tensor");
  }
  return for_each_index(call, in, dimension(call, in), index, out, [&](Index from, Index to) {
    copy_element(static_cast<std::uint8_t*>(out.data), to, bytes(in), from, size);
  });
}

// (self, dim, index, src)
RAL_KERNEL ral_sim_scatter_add(const ral_call* call) {
  const ral_tensor& index = tensor(call, 2);
  const ral_tensor& source = tensor(call, 3);
  const ral_tensor& out = call->outputs[0];
  if (!indexes(out, dimension(call, out), index, source) || out.dtype != RAL_FLOAT32 || source.dtype != RAL_FLOAT32 ||
      !same_sizes(out, tensor(call, 0))) {
    return decline(call, "indices that do not fit the tensor, or a dtype other than float32");
  }
  copy_first(call);
  return for_each_index(call, out, dimension(call, out), index, source,
                        [&](Index to, Index from) { floats(out)[to] += floats(source)[from]; });
}

// (self, dim, index, src or value)
RAL_KERNEL ral_sim_scatter(const ral_call* call) {
  const ral_tensor& index = tensor(call, 2);
  const ral_tensor& out = call->outputs[0];
  const ral_value& what = argument(call, 3);
  const int size = item_size(out.dtype);
  const ral_tensor& source = is_tensor(what) ? *what.as.tensors : index;
  std::uint8_t value[8] = {};
  const bool fits = is_tensor(what) ? source.dtype == out.dtype : number_as(out.dtype, what, value);
  if (argument(call, 4).tag != RAL_NONE || !fits || size == 0 || !indexes(out, dimension(call, out), index, source) ||
      !same_sizes(out, tensor(call, 0))) {
    return decline(call, "indices that do not fit the tensor, or a reduction");
  }
  copy_first(call);
  const std::uint8_t* from = is_tensor(what) ? bytes(source) : value;
  return for_each_index(call, out, dimension(call, out), index, source, [&](Index to, Index at) {
    copy_element(static_cast<std::uint8_t*>(out.data), to, from, is_tensor(what) ? at : 0, size);
  });
}
