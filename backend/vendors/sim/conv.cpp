// Convolution of images, as matrix products over their patches (im2col), some rows at a time: for each image and group,
//
//   output[Cout, OH*OW] = weight[Cout, C*KH*KW] * patches[C*KH*KW, OH*OW]
#include "gemm.h"
#include "lanes.h"

namespace ral::sim {

namespace {

struct Geometry {
  Index images, channels, height, width;  // of the input
  Index out_channels, out_height, out_width;
  Index kernel_height, kernel_width;
  Index stride[2], padding[2], dilation[2];
  Index groups;

  Index group_channels() const { return channels / groups; }
  Index group_out_channels() const { return out_channels / groups; }
  Index patch() const { return group_channels() * kernel_height * kernel_width; }
  Index out_pixels() const { return out_height * out_width; }
  Index pixels() const { return height * width; }
  // The patches of a kernel of one pixel are the image itself.
  bool is_pointwise() const {
    return kernel_height == 1 && kernel_width == 1 && stride[0] == 1 && stride[1] == 1 && padding[0] == 0 &&
           padding[1] == 0;
  }
};

Index out_size(Index size, Index kernel, Index stride, Index padding, Index dilation) {
  return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}

// `first`: the position of stride, which padding, dilation, transposed, output_padding and groups follow.
bool read_geometry(const ral_call* call, const ral_tensor& input, const ral_tensor& weight, int first, Geometry* g) {
  if (input.ndim != 4 || weight.ndim != 4 || integer(argument(call, first + 3)) != 0 ||
      !read_pair(argument(call, first), nullptr, g->stride) ||
      !read_pair(argument(call, first + 1), nullptr, g->padding) ||
      !read_pair(argument(call, first + 2), nullptr, g->dilation)) {
    return false;
  }
  g->groups = integer(argument(call, first + 5), 1);
  g->images = input.sizes[0];
  g->channels = input.sizes[1];
  g->height = input.sizes[2];
  g->width = input.sizes[3];
  g->out_channels = weight.sizes[0];
  g->kernel_height = weight.sizes[2];
  g->kernel_width = weight.sizes[3];
  if (g->groups < 1 || g->channels % g->groups != 0 || g->out_channels % g->groups != 0 ||
      weight.sizes[1] != g->group_channels() || g->stride[0] < 1 || g->stride[1] < 1) {
    return false;
  }
  g->out_height = out_size(g->height, g->kernel_height, g->stride[0], g->padding[0], g->dilation[0]);
  g->out_width = out_size(g->width, g->kernel_width, g->stride[1], g->padding[1], g->dilation[1]);
  return g->out_height > 0 && g->out_width > 0;
}

bool has_output_sizes(const ral_tensor& t, const Geometry& g) {
  return t.ndim == 4 && t.sizes[0] == g.images && t.sizes[1] == g.out_channels && t.sizes[2] == g.out_height &&
         t.sizes[3] == g.out_width;
}

// The columns x of a row of the output for which begin + x * stride lies in [0, size).
struct Range {
  Index from;
  Index to;
};
Range inside(Index begin, Index stride, Index size, Index count) {
  const Index from = begin >= 0 ? 0 : (-begin + stride - 1) / stride;
  const Index to = begin >= size ? 0 : (size - begin + stride - 1) / stride;
  return {std::min(from, count), std::max(std::min(from, count), std::min(to, count))};
}

// Some rows of the output of one group of one image: as many as have patches that stay in the second-level cache. Where
// its numbers begin in input, output and weight.
struct Part {
  Index input;
  Index output;
  Index weight;
  Index from_row;
  Index rows;
  Index pixels;
};

constexpr Index kPatchNumbers = 65536;

template <class Body>
void for_each_part(const Geometry& g, Body&& body) {
  const Index fitting = std::max<Index>(1, kPatchNumbers / std::max<Index>(1, g.patch() * g.out_width));
  const Index step = g.is_pointwise() ? g.out_height : fitting;
  for (Index image = 0; image < g.images; ++image) {
    for (Index group = 0; group < g.groups; ++group) {
      for (Index row = 0; row < g.out_height; row += step) {
        const Index rows = std::min(step, g.out_height - row);
        body(Part{(image * g.channels + group * g.group_channels()) * g.pixels(),
                  (image * g.out_channels + group * g.group_out_channels()) * g.out_pixels() + row * g.out_width,
                  group * g.group_out_channels() * g.patch(), row, rows, rows * g.out_width});
      }
    }
  }
}

// Calls body(row of the patches, pixel of the output, place in the image or -1, columns inside) for each row of output
// pixels that each number of the kernel meets.
template <class Body>
RAL_INLINE void for_each_patch_row(const Geometry& g, const Part& part, Body&& body) {
  Index row = 0;
  for (Index channel = 0; channel < g.group_channels(); ++channel) {
    for (Index ky = 0; ky < g.kernel_height; ++ky) {
      for (Index kx = 0; kx < g.kernel_width; ++kx, ++row) {
        const Index left = kx * g.dilation[1] - g.padding[1];
        const Range columns = inside(left, g.stride[1], g.width, g.out_width);
        for (Index y = 0; y < part.rows; ++y) {
          const Index from_y = (part.from_row + y) * g.stride[0] + ky * g.dilation[0] - g.padding[0];
          const bool outside = from_y < 0 || from_y >= g.height;
          body(row, y * g.out_width, outside ? -1 : channel * g.pixels() + from_y * g.width, left, columns);
        }
      }
    }
  }
}

RAL_WIDE void gather_patches(const Geometry& g, const Part& part, const float* image, float* patches) {
  for_each_patch_row(g, part, [&](Index row, Index pixel, Index place, Index left, Range columns) {
    float* to = patches + row * part.pixels + pixel;
    if (place < 0) {
      std::fill(to, to + g.out_width, 0.0f);
      return;
    }
    const float* from = image + place + left;
    std::fill(to, to + columns.from, 0.0f);
    if (g.stride[1] == 1) {
      std::copy(from + columns.from, from + columns.to, to + columns.from);
    } else {
      for (Index x = columns.from; x < columns.to; ++x) {
        to[x] = from[x * g.stride[1]];
      }
    }
    std::fill(to + columns.to, to + g.out_width, 0.0f);
  });
}

RAL_WIDE void scatter_patches(const Geometry& g, const Part& part, const float* patches, float* image) {
  for_each_patch_row(g, part, [&](Index row, Index pixel, Index place, Index left, Range columns) {
    if (place < 0) {
      return;
    }
    const float* from = patches + row * part.pixels + pixel;
    float* to = image + place + left;
    if (g.stride[1] == 1) {
#pragma GCC ivdep
      for (Index x = columns.from; x < columns.to; ++x) {
        to[x] += from[x];
      }
    } else {
      for (Index x = columns.from; x < columns.to; ++x) {
        to[x * g.stride[1]] += from[x];
      }
    }
  });
}

Matrix rows_of(const float* data, Index width) { return {data, RAL_FLOAT32, width, 1}; }
Matrix columns_of(const float* data, Index width) { return {data, RAL_FLOAT32, 1, width}; }

const float* patches_of(const Geometry& g, const Part& part, const float* input, std::vector<float>& memory) {
  if (g.is_pointwise()) {
    return input + part.input;
  }
  memory.resize(static_cast<std::size_t>(g.patch() * part.pixels));
  gather_patches(g, part, input + part.input, memory.data());
  return memory.data();
}

// `out` begins as the bias, or as zeros.
void begin_output(const Geometry& g, const ral_value& bias, float* out) {
  std::vector<float> start(static_cast<std::size_t>(g.out_channels));
  if (is_tensor(bias)) {
    const FloatsIn given(*bias.as.tensors);
    start.assign(given.data(), given + g.out_channels);
  }
  for (Index image = 0; image < g.images; ++image) {
    for (const float value : start) {
      std::fill(out, out + g.out_pixels(), value);
      out += g.out_pixels();
    }
  }
}

void input_gradient(const Geometry& g, const float* grad, const float* weight, float* to) {
  std::fill(to, to + g.images * g.channels * g.pixels(), 0.0f);
  std::vector<float> patches;
  for_each_part(g, [&](const Part& part) {
    float* image = to + part.input;
    patches.resize(static_cast<std::size_t>(g.is_pointwise() ? 0 : g.patch() * part.pixels));
    multiply(g.patch(), part.pixels, g.group_out_channels(), 1.0f, columns_of(weight + part.weight, g.patch()),
             rows_of(grad + part.output, g.out_pixels()),
             {g.is_pointwise() ? image : patches.data(), part.pixels, 1, true});
    if (!g.is_pointwise()) {
      scatter_patches(g, part, patches.data(), image);
    }
  });
}

// Added up as patches * gradient, transposed: so the larger of the two is read as it lies.
void weight_gradient(const Geometry& g, const float* grad, const float* input, float* to) {
  const Index width = g.group_out_channels();
  std::vector<float> turned(static_cast<std::size_t>(g.out_channels * g.patch()));
  std::vector<float> memory;
  for_each_part(g, [&](const Part& part) {
    const float* patches = patches_of(g, part, input, memory);
    multiply(g.patch(), width, part.pixels, 1.0f, rows_of(patches, part.pixels),
             columns_of(grad + part.output, g.out_pixels()), {turned.data() + part.weight, width, 1, false});
  });
  for (Index group = 0; group < g.groups; ++group) {
    const Index begin = group * width * g.patch();
    for (Index channel = 0; channel < width; ++channel) {
      for (Index i = 0; i < g.patch(); ++i) {
        to[begin + channel * g.patch() + i] = turned[static_cast<std::size_t>(begin + i * width + channel)];
      }
    }
  }
}

RAL_WIDE void bias_gradient(const Geometry& g, const float* grad, float* to) {
  for (Index channel = 0; channel < g.out_channels; ++channel) {
    double sum = 0;
    for (Index image = 0; image < g.images; ++image) {
      sum += sum_of(grad + (image * g.out_channels + channel) * g.out_pixels(), g.out_pixels());
    }
    to[channel] = static_cast<float>(sum);
  }
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
RAL_KERNEL ral_sim_convolution(const ral_call* call) {
  Geometry g;
  if (!read_geometry(call, tensor(call, 0), tensor(call, 1), 3, &g) || !has_output_sizes(call->outputs[0], g)) {
    return decline(call, "a transposed convolution, or one that is not of images");
  }
  const FloatsIn input(tensor(call, 0));
  const FloatsIn weight(tensor(call, 1));
  FloatsOut out(call->outputs[0]);
  begin_output(g, argument(call, 2), out.data());
  std::vector<float> memory;
  for_each_part(g, [&](const Part& part) {
    const float* patches = patches_of(g, part, input.data(), memory);
    multiply(g.group_out_channels(), part.pixels, g.patch(), 1.0f, rows_of(weight + part.weight, g.patch()),
             rows_of(patches, part.pixels), {out.data() + part.output, g.out_pixels(), 1, false});
  });
  out.commit();
  return RAL_OK;
}

// (grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask)
// → gradients of input, weight, bias
RAL_KERNEL ral_sim_convolution_backward(const ral_call* call) {
  Geometry g;
  if (!read_geometry(call, tensor(call, 1), tensor(call, 2), 3, &g) || !has_output_sizes(tensor(call, 0), g)) {
    return decline(call, "a transposed convolution, or one that is not of images");
  }
  const FloatsIn grad(tensor(call, 0));
  if (wanted(call->outputs[0])) {
    FloatsOut to(call->outputs[0]);
    input_gradient(g, grad.data(), FloatsIn(tensor(call, 2)).data(), to.data());
    to.commit();
  }
  if (wanted(call->outputs[1])) {
    FloatsOut to(call->outputs[1]);
    weight_gradient(g, grad.data(), FloatsIn(tensor(call, 1)).data(), to.data());
    to.commit();
  }
  if (wanted(call->outputs[2])) {
    FloatsOut to(call->outputs[2]);
    bias_gradient(g, grad.data(), to.data());
    to.commit();
  }
  return RAL_OK;
}
