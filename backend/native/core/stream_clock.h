// How far each stream of a device has come, as the allocator asks for it: a freed block may go to another stream only
// when the work that was submitted before the free is done.
#pragma once

#include <cstdint>

namespace ral {

inline constexpr int kStreamSlots = 32;
// No stream of a device: memory for a plugin that writes it from the host at once, so no queued work may still use it.
inline constexpr std::uint8_t kHostPool = kStreamSlots - 1;

class StreamClock {
 public:
  virtual ~StreamClock() = default;
  // The ticket of the newest item that was submitted to the stream, or of the next where that one has something to wait
  // for; tickets of one stream count up from 1, 0 is none.
  // Called under the allocator's lock: no lock, no wait.
  virtual std::uint64_t submitted(std::uint8_t stream) const noexcept = 0;
  // Whether all items up to the ticket are done. Called under the allocator's lock: no lock, no wait.
  virtual bool done(std::uint8_t stream, std::uint64_t ticket) const noexcept = 0;
  // Returns when they are. Never called under a lock.
  virtual void wait(std::uint8_t stream, std::uint64_t ticket) = 0;
};

}  // namespace ral
