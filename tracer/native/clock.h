// Ticks: the cheapest clock that is the same on every core. Converted to nanoseconds only when drained.
#pragma once

#include <cstdint>
#include <ctime>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace ral::trace {

enum class ClockSource : std::uint8_t { kTsc = 1, kCntvct = 2, kMonotonic = 3 };

inline std::uint64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

inline std::uint64_t realtime_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

// The kernel trusts the TSC only where it is constant and the same on all cores; where it does not, neither do we.
inline ClockSource detect_clock_source() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  file >> name;
  return name == "tsc" ? ClockSource::kTsc : ClockSource::kMonotonic;
#elif defined(__aarch64__)
  return ClockSource::kCntvct;
#else
  return ClockSource::kMonotonic;
#endif
}

inline std::uint64_t ticks(ClockSource source) noexcept {
#if defined(__x86_64__)
  if (__builtin_expect(source == ClockSource::kTsc, 1)) {
    return __rdtsc();
  }
#elif defined(__aarch64__)
  if (__builtin_expect(source == ClockSource::kCntvct, 1)) {
    std::uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
  }
#endif
  (void)source;
  return monotonic_ns();
}

}  // namespace ral::trace
