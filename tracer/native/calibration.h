// Ticks to integer nanoseconds since the Unix epoch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "clock.h"

namespace ral::trace {

// Asked once: ticks of two clocks cannot be compared, and a process may run out of files.
inline ClockSource the_clock_source() {
  static const ClockSource source = detect_clock_source();
  return source;
}

// The two clocks at one moment. Taken several times; the quickest reading is the truest.
struct ClockSample {
  std::uint64_t ticks;
  std::uint64_t monotonic_ns;
  std::uint64_t realtime_ns;
};

inline ClockSample sample_clocks(ClockSource source) noexcept {
  ClockSample best{};
  std::uint64_t best_width = UINT64_MAX;
  for (int attempt = 0; attempt < 50; ++attempt) {
    const std::uint64_t before = ticks(source);
    const std::uint64_t monotonic = monotonic_ns();
    const std::uint64_t realtime = realtime_ns();
    const std::uint64_t after = ticks(source);
    if (after - before < best_width) {
      best_width = after - before;
      // Where the ticks are CLOCK_MONOTONIC itself, the rate is exactly one.
      best = {source == ClockSource::kMonotonic ? monotonic : before + (after - before) / 2, monotonic, realtime};
    }
  }
  return best;
}

// The rate comes from CLOCK_MONOTONIC, which nobody can set, and is measured anew from each sample to the next; only the
// zero comes from the wall clock. Times keep the order of their ticks.
class Calibration {
 public:
  // From at least two samples, in their order.
  static Calibration of(const std::vector<ClockSample>& samples) {
    Calibration calibration;
    std::int64_t epoch_ns = samples.empty() ? 0 : static_cast<std::int64_t>(samples.front().realtime_ns);
    for (std::size_t i = 0; i + 1 < samples.size(); ++i) {
      const std::uint64_t elapsed_ns = samples[i + 1].monotonic_ns - samples[i].monotonic_ns;
      const std::uint64_t elapsed_ticks = samples[i + 1].ticks - samples[i].ticks;
      if (elapsed_ticks != 0) {
        const auto rate = (static_cast<unsigned __int128>(elapsed_ns) << 32) / elapsed_ticks;
        calibration.segments_.push_back({samples[i].ticks, epoch_ns, static_cast<std::uint64_t>(rate)});
      }
      epoch_ns += static_cast<std::int64_t>(elapsed_ns);
    }
    return calibration;
  }

  // One nanosecond a tick.
  static Calibration identity(std::uint64_t ticks0 = 0) {
    Calibration calibration;
    calibration.segments_.push_back({ticks0, 0, std::uint64_t{1} << 32});
    return calibration;
  }

  // What lies before the first sample, or after the last one, has the rate of its neighbours.
  [[nodiscard]] std::int64_t epoch_ns(std::uint64_t at) const noexcept {
    if (segments_.empty()) {
      return 0;
    }
    auto segment = std::upper_bound(segments_.begin() + 1, segments_.end(), at,
                                    [](std::uint64_t ticks, const Segment& each) { return ticks < each.ticks0; });
    --segment;
    const auto distance = static_cast<__int128>(static_cast<std::int64_t>(at - segment->ticks0));
    const auto since_ns =
        static_cast<std::uint64_t>((distance * static_cast<__int128>(segment->ns_per_tick_2_32)) >> 32);
    // Unsigned: ticks of a damaged record may lie anywhere.
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(segment->epoch0_ns) + since_ns);
  }

 private:
  struct Segment {
    std::uint64_t ticks0;
    std::int64_t epoch0_ns;
    std::uint64_t ns_per_tick_2_32;  // fixed point
  };
  std::vector<Segment> segments_;
};

}  // namespace ral::trace
