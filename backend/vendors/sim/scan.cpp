// Running sums along a dimension.
#include "lines.h"

using namespace ral::sim;

// (self, dim, dtype)
RAL_KERNEL ral_sim_cumsum(const ral_call* call) {
  const ral_tensor& in = tensor(call, 0);
  const ral_tensor& out = call->outputs[0];
  const auto dim = static_cast<int>(wrapped(integer(argument(call, 1)), in.ndim));
  if (in.ndim == 0 || dim < 0 || dim >= in.ndim || !same_sizes(in, out) || !is_floating(in.dtype) ||
      in.dtype != out.dtype) {
    return decline(call, "an output of another dtype or shape");
  }
  std::vector<float> from;
  std::vector<float> to;
  for_each_line<2>({&in, &out}, dim, [&](const std::array<Index, 2>& offsets) {
    const float* x = line(in, offsets[0], dim, from);
    float* sums = line_to_write(out, offsets[1], dim, to);
    double sum = 0;
    for (Index i = 0; i < in.sizes[dim]; ++i) {
      sum += static_cast<double>(x[i]);
      sums[i] = static_cast<float>(sum);
    }
    write_line(out, offsets[1], dim, sums);
  });
  return RAL_OK;
}
