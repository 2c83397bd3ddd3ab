// What a device's allocator did last, with the Python stacks that asked for it: what torch.ral.memory._snapshot shows.
// Off, it costs one relaxed load an event.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator.h"

namespace ral {

class MemoryHistory {
 public:
  enum class Action : std::uint8_t {
    kAlloc,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAlloc,
    kSegmentFree,
    kOutOfMemory
  };
  using Context = std::shared_ptr<c10::GatheredContext>;

  struct Entry {
    Action action;
    std::uint8_t stream;
    std::uint64_t address;  // kOutOfMemory: bytes that no region held
    std::uint64_t size_bytes;
    std::int64_t time_ns;  // since the Unix epoch
    Context context;
  };

  struct Choice {
    std::size_t max_entries = 0;  // 0: only the stacks of blocks that are in use
    bool stacks_of_frees = false;
  };

  void start(const Choice& choice);
  void stop();
  static bool on() { return on_.load(std::memory_order_relaxed); }
  // Oldest first.
  std::vector<Entry> entries() const;

  // The calling thread's stack, kept for the observer calls until this ends. Taking it takes the GIL, so it comes before
  // the allocator's lock. Does nothing where no history is kept.
  class Gathered {
   public:
    explicit Gathered(Action action);
    ~Gathered();
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;

   private:
    bool active_;
  };

  // Called under the allocator's lock.
  void opened(const Region& region) noexcept;
  void closed(const Region& region) noexcept;
  void allocated(Block& block) noexcept;
  void freed(const Block& block) noexcept;
  void reusable(Block& block) noexcept;
  void failed(std::size_t bytes, std::size_t unreserved) noexcept;

 private:
  void add(Action action, std::uint8_t stream, std::uint64_t address, std::uint64_t size, Context context) noexcept;

  // Of all devices alike, as in torch.cuda.
  static std::atomic<bool> on_;
  static std::atomic<bool> stacks_of_frees_;
  mutable std::mutex mutex_;
  std::vector<Entry> ring_;  // of the size asked for, made at the start
  std::uint64_t added_ = 0;
};

}  // namespace ral
