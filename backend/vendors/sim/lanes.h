// Sums and the largest of contiguous floats, sixteen side by side. Inlined, so that they become the code of the level
// that their caller is compiled for.
#pragma once

#include <cmath>

#include "kernels.h"

#define RAL_INLINE __attribute__((always_inline)) inline

namespace ral::sim {

constexpr Index kLanes = 16;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// Sums of this many numbers are taken in float32, and those in double.
constexpr Index kSummedInFloat = 1024;

// term(i) for one number, lanes(i, &sum) to add sixteen.
template <class AddLanes, class Term>
RAL_INLINE double sum_terms(Index count, AddLanes&& add_lanes, Term&& term) {
  double total = 0;
  for (Index begin = 0; begin < count; begin += kSummedInFloat) {
    const Index end = std::min(count, begin + kSummedInFloat);
    Lanes a = {};
    Lanes b = {};
    Index i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      add_lanes(i, a);
      add_lanes(i + kLanes, b);
    }
    for (; i + kLanes <= end; i += kLanes) {
      add_lanes(i, a);
    }
    a += b;
    float rest = 0;
    for (; i < end; ++i) {
      rest += term(i);
    }
    for (Index j = 0; j < kLanes; ++j) {
      rest += a[j];
    }
    total += static_cast<double>(rest);
  }
  return total;
}

RAL_INLINE const Lanes& lanes(const float* x) { return *reinterpret_cast<const Lanes*>(x); }

RAL_INLINE double sum_of(const float* x, Index count) {
  return sum_terms(count, [&](Index i, Lanes& sum) { sum += lanes(x + i); }, [&](Index i) { return x[i]; });
}

RAL_INLINE double sum_of_products(const float* x, const float* y, Index count) {
  return sum_terms(
      count, [&](Index i, Lanes& sum) { sum += lanes(x + i) * lanes(y + i); }, [&](Index i) { return x[i] * y[i]; });
}

// Of what is left when `shift` is taken off.
RAL_INLINE double sum_of_squares(const float* x, Index count, float shift) {
  return sum_terms(
      count,
      [&](Index i, Lanes& sum) {
        const Lanes d = lanes(x + i) - shift;
        sum += d * d;
      },
      [&](Index i) { return (x[i] - shift) * (x[i] - shift); });
}

// Not numbers are passed over; -inf of none.
RAL_INLINE float largest_of(const float* x, Index count) {
  float most = -INFINITY;
  Index i = 0;
  if (count >= kLanes) {
    Lanes best = lanes(x);
    for (i = kLanes; i + kLanes <= count; i += kLanes) {
      best = lanes(x + i) > best ? lanes(x + i) : best;
    }
    for (Index j = 0; j < kLanes; ++j) {
      most = best[j] > most ? best[j] : most;
    }
  }
  for (; i < count; ++i) {
    most = x[i] > most ? x[i] : most;
  }
  return most;
}

// The same as functions of their own, for callers that are not compiled for each level.
double sum_run(const float* x, Index count);
double square_run(const float* x, Index count, float shift);

struct Moments {
  double mean;
  double squares;  // the sum of the squared distances from the mean
};
// Of `count` numbers in each of `runs` runs, `step` apart.
Moments moments_of_runs(const float* x, Index count, Index runs, Index step);

}  // namespace ral::sim
