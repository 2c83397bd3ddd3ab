// Streams without work: what was submitted is done when somebody says so. For replay and tests.
#pragma once

#include <array>
#include <atomic>

#include "block.h"
#include "stream_clock.h"

namespace ral {

class ManualClock final : public StreamClock {
 public:
  std::uint64_t submit(std::uint8_t stream) { return ++submitted_[stream]; }
  // All up to the ticket. A clock does not go back.
  void finish(std::uint8_t stream, std::uint64_t ticket) const {
    std::uint64_t before = done_[stream].load();
    while (before < ticket && !done_[stream].compare_exchange_weak(before, ticket)) {
    }
  }

  std::uint64_t submitted(std::uint8_t stream) const noexcept override { return submitted_[stream].load(); }
  bool done(std::uint8_t stream, std::uint64_t ticket) const noexcept override {
    return done_[stream].load() >= ticket;
  }
  // Nobody else would do the work: waiting for it is what does it.
  void wait(std::uint8_t stream, std::uint64_t ticket) override { finish(stream, ticket); }

 private:
  std::array<std::atomic<std::uint64_t>, kMaxStreams> submitted_{};
  mutable std::array<std::atomic<std::uint64_t>, kMaxStreams> done_{};
};

}  // namespace ral
