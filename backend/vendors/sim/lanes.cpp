#include "lanes.h"

namespace ral::sim {

RAL_WIDE double sum_run(const float* x, Index count) { return sum_of(x, count); }

RAL_WIDE double square_run(const float* x, Index count, float shift) { return sum_of_squares(x, count, shift); }

RAL_WIDE Moments moments_of_runs(const float* x, Index count, Index runs, Index step) {
  double sum = 0;
  for (Index run = 0; run < runs; ++run) {
    sum += sum_of(x + run * step, count);
  }
  const double total = static_cast<double>(count * runs);
  const double mean = sum / total;
  const auto shift = static_cast<float>(mean);
  double squares = 0;
  for (Index run = 0; run < runs; ++run) {
    squares += sum_of_squares(x + run * step, count, shift);
  }
  // What was taken off is the mean rounded to float32: its error comes off again.
  const double error = mean - static_cast<double>(shift);
  return {mean, std::max(0.0, squares - error * error * total)};
}

}  // namespace ral::sim
