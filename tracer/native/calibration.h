// Ticks to integer nanoseconds since the Unix epoch.
#pragma once

#include <cstdint>

#include "clock.h"

namespace ral::trace {

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

struct TickRange {
  std::uint64_t first;
  std::uint64_t last;
};

// The rate comes from CLOCK_MONOTONIC, which nobody can set; only the zero comes from the wall clock.
struct Calibration {
  std::uint64_t ticks0 = 0;
  std::int64_t epoch0_ns = 0;
  std::uint64_t ns_per_tick_2_32 = 0;  // fixed point

  static Calibration between(const ClockSample& first, const ClockSample& second) noexcept {
    const auto elapsed_ns = static_cast<unsigned __int128>(second.monotonic_ns - first.monotonic_ns);
    const std::uint64_t elapsed_ticks = second.ticks - first.ticks;
    Calibration calibration;
    calibration.ticks0 = first.ticks;
    calibration.epoch0_ns = static_cast<std::int64_t>(first.realtime_ns);
    calibration.ns_per_tick_2_32 =
        elapsed_ticks == 0 ? 0 : static_cast<std::uint64_t>((elapsed_ns << 32) / elapsed_ticks);
    return calibration;
  }

  [[nodiscard]] std::int64_t epoch_ns(std::uint64_t at) const noexcept {
    const auto distance = static_cast<__int128>(static_cast<std::int64_t>(at - ticks0));
    const auto since_ns = static_cast<std::uint64_t>((distance * static_cast<__int128>(ns_per_tick_2_32)) >> 32);
    // Unsigned: ticks of a damaged record may lie anywhere.
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(epoch0_ns) + since_ns);
  }

  // What lies within 36 years of the zero; no event can be further away, and sums of such times never overflow.
  [[nodiscard]] TickRange possible() const noexcept {
    const auto reach = ns_per_tick_2_32 == 0 ? static_cast<unsigned __int128>(INT64_MAX)
                                             : (static_cast<unsigned __int128>(1) << 92) / ns_per_tick_2_32;
    const std::uint64_t ticks = reach < INT64_MAX ? static_cast<std::uint64_t>(reach) : INT64_MAX;
    return {ticks0 > ticks ? ticks0 - ticks : 0, ticks0 < UINT64_MAX - ticks ? ticks0 + ticks : UINT64_MAX};
  }
};

}  // namespace ral::trace
