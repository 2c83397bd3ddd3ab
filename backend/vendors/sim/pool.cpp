// Pooling of images: the largest or the mean of each window, and the gradients.
#include "element.h"

namespace ral::sim {

namespace {

// The last two dimensions of a tensor; those before them count as one.
struct Plane {
  Index height;
  Index width;
  Index size() const { return height * width; }
};

bool read_planes(const ral_tensor& t, Index* count, Plane* plane) {
  if ((t.ndim != 3 && t.ndim != 4) || !is_floating(t.dtype)) {
    return false;
  }
  *plane = {t.sizes[t.ndim - 2], t.sizes[t.ndim - 1]};
  *count = plane->size() == 0 ? 0 : numel(t) / plane->size();
  return true;
}

struct Window {
  Index kernel[2];
  Index stride[2];
  Index padding[2];
  Index dilation[2] = {1, 1};
};

// Arguments from `first` on: kernel_size, stride (of none it is the kernel's size), padding
bool read_window(const ral_call* call, int first, Window* w) {
  return read_pair(argument(call, first), nullptr, w->kernel) &&
         read_pair(argument(call, first + 1), w->kernel, w->stride) &&
         read_pair(argument(call, first + 2), nullptr, w->padding) && w->stride[0] > 0 && w->stride[1] > 0;
}

struct Span {
  Index from;
  Index to;
};

// The window of output place `at` along one axis, within the padding.
Span window_span(const Window& w, int axis, Index at, Index size) {
  const Index from = at * w.stride[axis] - w.padding[axis];
  return {from, std::min(from + w.kernel[axis], size + w.padding[axis])};
}

Span adaptive_span(Index at, Index in, Index out) { return {at * in / out, ((at + 1) * in + out - 1) / out}; }

// The largest number of one window, and its place in the plane. The first of equals; not a number wins.
void take_largest(const float* in, const Plane& from, const Window& w, Index y, Index x, float* value, Index* place) {
  *value = -INFINITY;
  *place = -1;
  for (Index i = 0; i < w.kernel[0]; ++i) {
    const Index row = y * w.stride[0] - w.padding[0] + i * w.dilation[0];
    if (row < 0 || row >= from.height) {
      continue;
    }
    for (Index j = 0; j < w.kernel[1]; ++j) {
      const Index column = x * w.stride[1] - w.padding[1] + j * w.dilation[1];
      if (column < 0 || column >= from.width) {
        continue;
      }
      const float number = in[row * from.width + column];
      if (*place < 0 || number > *value || number != number) {
        *value = number;
        *place = row * from.width + column;
      }
    }
  }
}

// One window of a mean: what it sums, and by how much it divides.
struct Mean {
  Span rows;
  Span columns;
  float scale;
};

// Calls body(plane, output place, mean) for each window of an average pool.
template <class Body>
int for_each_average(const ral_call* call, const ral_tensor& in, const ral_tensor& out, int first, Body&& body) {
  Window w;
  Plane from;
  Plane to;
  Index planes = 0;
  Index same = 0;
  if (!read_window(call, first, &w) || !read_planes(in, &planes, &from) || !read_planes(out, &same, &to) ||
      (same != planes && numel(out) != 0)) {
    return decline(call, "planes or windows of another form");
  }
  const bool count_padding = integer(argument(call, first + 4), 1) != 0;
  const Index divisor = integer(argument(call, first + 5), 0);
  for (Index plane = 0; plane < same; ++plane) {
    for (Index y = 0; y < to.height; ++y) {
      for (Index x = 0; x < to.width; ++x) {
        Span rows = window_span(w, 0, y, from.height);
        Span columns = window_span(w, 1, x, from.width);
        const Index padded = (rows.to - rows.from) * (columns.to - columns.from);
        rows = {std::max<Index>(rows.from, 0), std::min(rows.to, from.height)};
        columns = {std::max<Index>(columns.from, 0), std::min(columns.to, from.width)};
        const Index inner = (rows.to - rows.from) * (columns.to - columns.from);
        const Index count = divisor != 0 ? divisor : count_padding ? padded : inner;
        body(plane * from.size(), from.width, plane * to.size() + y * to.width + x,
             Mean{rows, columns, 1.0f / static_cast<float>(count)});
      }
    }
  }
  return RAL_OK;
}

template <class Body>
int for_each_adaptive(const ral_call* call, const ral_tensor& in, const ral_tensor& out, Body&& body) {
  Plane from;
  Plane to;
  Index planes = 0;
  Index same = 0;
  if (!read_planes(in, &planes, &from) || !read_planes(out, &same, &to) || (same != planes && numel(out) != 0)) {
    return decline(call, "planes of another form");
  }
  for (Index plane = 0; plane < same; ++plane) {
    for (Index y = 0; y < to.height; ++y) {
      for (Index x = 0; x < to.width; ++x) {
        const Span rows = adaptive_span(y, from.height, to.height);
        const Span columns = adaptive_span(x, from.width, to.width);
        const Index count = (rows.to - rows.from) * (columns.to - columns.from);
        body(plane * from.size(), from.width, plane * to.size() + y * to.width + x,
             Mean{rows, columns, 1.0f / static_cast<float>(count)});
      }
    }
  }
  return RAL_OK;
}

struct TakeMean {
  const float* in;
  float* out;
  void operator()(Index plane, Index width, Index place, const Mean& mean) const {
    float sum = 0;
    for (Index row = mean.rows.from; row < mean.rows.to; ++row) {
      for (Index column = mean.columns.from; column < mean.columns.to; ++column) {
        sum += in[plane + row * width + column];
      }
    }
    out[place] = sum * mean.scale;
  }
};

struct SpreadMean {
  const float* grad;
  float* out;
  void operator()(Index plane, Index width, Index place, const Mean& mean) const {
    for (Index row = mean.rows.from; row < mean.rows.to; ++row) {
      for (Index column = mean.columns.from; column < mean.columns.to; ++column) {
        out[plane + row * width + column] += grad[place] * mean.scale;
      }
    }
  }
};

template <class Run>
int pool(const ral_call* call, Run&& run) {
  const FloatsIn in(tensor(call, 0));
  FloatsOut out(call->outputs[0]);
  const int status = run(TakeMean{in.data(), out.data()});
  if (status == RAL_OK) {
    out.commit();
  }
  return status;
}

template <class Run>
int pool_backward(const ral_call* call, Run&& run) {
  if (!same_sizes(call->outputs[0], tensor(call, 1))) {
    return decline(call, "an output of another shape");
  }
  const FloatsIn grad(tensor(call, 0));
  FloatsOut out(call->outputs[0]);
  std::fill(out.data(), out.data() + numel(call->outputs[0]), 0.0f);
  const int status = run(SpreadMean{grad.data(), out.data()});
  if (status == RAL_OK) {
    out.commit();
  }
  return status;
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (self, kernel_size, stride, padding, dilation, ceil_mode) → output, indices
RAL_KERNEL ral_sim_max_pool2d(const ral_call* call) {
  Window w;
  Plane from;
  Plane to;
  Index planes = 0;
  Index same = 0;
  if (!read_window(call, 1, &w) || !read_pair(argument(call, 4), nullptr, w.dilation) ||
      !read_planes(tensor(call, 0), &planes, &from) || !read_planes(call->outputs[0], &same, &to) ||
      !contiguous(call->outputs[1]) || call->outputs[1].dtype != RAL_INT64) {
    return decline(call, "planes or windows of another form");
  }
  const FloatsIn in(tensor(call, 0));
  FloatsOut out(call->outputs[0]);
  auto* places = static_cast<Index*>(call->outputs[1].data);
  for (Index plane = 0; plane < same; ++plane) {
    for (Index y = 0; y < to.height; ++y) {
      for (Index x = 0; x < to.width; ++x) {
        const Index at = plane * to.size() + y * to.width + x;
        take_largest(in + plane * from.size(), from, w, y, x, out.data() + at, places + at);
      }
    }
  }
  out.commit();
  return RAL_OK;
}

// (grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)
RAL_KERNEL ral_sim_max_pool2d_backward(const ral_call* call) {
  Plane from;
  Plane to;
  Index planes = 0;
  Index same = 0;
  const ral_tensor& places = tensor(call, 7);
  if (!read_planes(tensor(call, 0), &planes, &from) || !read_planes(call->outputs[0], &same, &to) ||
      (planes != same && numel(tensor(call, 0)) != 0) || !contiguous(places) || places.dtype != RAL_INT64) {
    return decline(call, "planes of another form");
  }
  const FloatsIn grad(tensor(call, 0));
  FloatsOut out(call->outputs[0]);
  std::fill(out.data(), out.data() + numel(call->outputs[0]), 0.0f);
  for (Index plane = 0; plane < planes; ++plane) {
    for (Index i = plane * from.size(); i < (plane + 1) * from.size(); ++i) {
      out.data()[plane * to.size() + longs(places)[i]] += grad[i];
    }
  }
  out.commit();
  return RAL_OK;
}

// (self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
RAL_KERNEL ral_sim_avg_pool2d(const ral_call* call) {
  return pool(call, [&](auto take) { return for_each_average(call, tensor(call, 0), call->outputs[0], 1, take); });
}

// (grad_output, self, kernel_size, …)
RAL_KERNEL ral_sim_avg_pool2d_backward(const ral_call* call) {
  return pool_backward(
      call, [&](auto spread) { return for_each_average(call, tensor(call, 1), tensor(call, 0), 2, spread); });
}

// (self, output_size)
RAL_KERNEL ral_sim_adaptive_avg_pool2d(const ral_call* call) {
  return pool(call, [&](auto take) { return for_each_adaptive(call, tensor(call, 0), call->outputs[0], take); });
}

// (grad_output, self)
RAL_KERNEL ral_sim_adaptive_avg_pool2d_backward(const ral_call* call) {
  return pool_backward(call,
                       [&](auto spread) { return for_each_adaptive(call, tensor(call, 1), tensor(call, 0), spread); });
}
