// Ticks to integer nanoseconds.
#include <random>

#include "recording.h"

namespace ral::trace {

TEST(converted_times_are_exact_and_in_order) {
  std::mt19937_64 random(20260);
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t hertz = 1'000'000 + random() % 5'000'000'000;
    const ClockSample first{random() >> 2, random() >> 3, 1'790'000'000'000'000'000 + random() % 1'000'000'000};
    ClockSample second = first;
    const std::uint64_t elapsed_ns = 50'000'000 + random() % 3'600'000'000'000;
    second.monotonic_ns += elapsed_ns;
    const auto elapsed_ticks =
        static_cast<std::uint64_t>(static_cast<unsigned __int128>(elapsed_ns) * hertz / 1'000'000'000);
    second.ticks += elapsed_ticks;
    const Calibration clock = Calibration::of({first, second});
    CHECK(clock.epoch_ns(first.ticks) == static_cast<std::int64_t>(first.realtime_ns));
    std::int64_t previous = INT64_MIN;
    for (std::uint64_t step = 0; step <= 16; ++step) {
      const auto distance = static_cast<std::uint64_t>(static_cast<unsigned __int128>(elapsed_ticks) * step / 16);
      const std::int64_t got = clock.epoch_ns(first.ticks + distance);
      const auto exact = static_cast<std::int64_t>(
          static_cast<std::uint64_t>(first.realtime_ns) +
          static_cast<std::uint64_t>(static_cast<unsigned __int128>(distance) * elapsed_ns / elapsed_ticks));
      // The rate has 32 binary places, and the result is cut to whole nanoseconds.
      CHECK(got <= exact && exact - got <= 1 + static_cast<std::int64_t>(distance >> 32));
      CHECK(got >= previous);
      previous = got;
    }
    // Before the zero as well: an annotation may have begun before the recording.
    CHECK(clock.epoch_ns(first.ticks - 1000) <= clock.epoch_ns(first.ticks));
  }
}

TEST(where_the_ticks_are_the_monotonic_clock_the_rate_is_one) {
  const ClockSample first = sample_clocks(ClockSource::kMonotonic);
  const ClockSample second = sample_clocks(ClockSource::kMonotonic);
  const Calibration clock = Calibration::of({first, second});
  CHECK(first.ticks == first.monotonic_ns);
  CHECK(second.monotonic_ns == first.monotonic_ns ||
        clock.epoch_ns(first.ticks + 3'600'000'000'000) - clock.epoch_ns(first.ticks) == 3'600'000'000'000);
}

TEST(no_ticks_overflow) {
  // A 25 MHz counter, so 40 ns a tick.
  const ClockSample first{std::uint64_t{1} << 40, 0, 1'790'000'000'000'000'000};
  const ClockSample second{first.ticks + 25'000'000, 1'000'000'000, first.realtime_ns + 1'000'000'000};
  const Calibration slow = Calibration::of({first, second});
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{1} << 63, UINT64_MAX, std::uint64_t{1} << 40}) {
    (void)slow.epoch_ns(at);
    (void)Calibration::of({}).epoch_ns(at);
    (void)Calibration::of({first}).epoch_ns(at);
    (void)Calibration::of({first, first}).epoch_ns(at);
  }
  CHECK(slow.epoch_ns(first.ticks + 1) - slow.epoch_ns(first.ticks) == 40);
}

TEST(a_rate_that_drifts_is_followed_from_sample_to_sample) {
  // 1 GHz in the first second, 1.001 GHz in the second one: each sample's time is met, within the rounding of a rate.
  std::vector<ClockSample> samples;
  std::uint64_t ticks = 5'000;
  for (std::uint64_t second = 0; second < 4; ++second) {
    samples.push_back({ticks, 700 + second * 1'000'000'000, 1'790'000'000'000'000'000 + second * 1'000'000'000});
    ticks += second % 2 == 0 ? 1'000'000'000 : 1'001'000'000;
  }
  // The wall clock is set by an hour meanwhile: times go on in the old time.
  samples.back().realtime_ns += 3'600'000'000'000;
  const Calibration clock = Calibration::of(samples);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::int64_t right = 1'790'000'000'000'000'000 + static_cast<std::int64_t>(i) * 1'000'000'000;
    CHECK(std::abs(clock.epoch_ns(samples[i].ticks) - right) <= 1);
  }
  std::int64_t previous = INT64_MIN;
  for (std::uint64_t at = samples.front().ticks - 1000; at < ticks; at += 997'331) {
    CHECK(clock.epoch_ns(at) >= previous);
    previous = clock.epoch_ns(at);
  }
}

}  // namespace ral::trace
