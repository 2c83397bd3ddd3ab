// A stream: items in order. Each runs on its pipeline's thread when the one before it is done and all marks that it
// waits for are reached; items of other streams may run meanwhile.
//
//   tickets   1 2 3 4 5 6 7 8            the item with ticket t lies in slot (t - 1) % depth
//             done  |run| queued         head = 3 items done, tail = 8 submitted
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "work.h"

namespace ral {

class Pipelines;

class Stream {
 public:
  static constexpr std::size_t kDepth = 256;  // a power of two; who submits more waits until half of it is done
  static constexpr std::size_t kItemBytes = 960;

  Stream() = default;
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Once, before the first submit. `priority`: lower goes first, as torch has it.
  void open(Pipelines& pipelines, int priority);
  bool is_open() const { return open_.load(std::memory_order_acquire); }
  int priority() const { return priority_; }

  // Makes the item in its place in the queue and returns its ticket; what its constructor throws, it throws, and nothing
  // was submitted. Waits where the queue is full. Throws Stopped after the device has stopped.
  template <class Item, class... Arguments>
  std::uint64_t submit(Arguments&&... arguments) {
    static_assert(std::is_base_of_v<Work, Item> && sizeof(Item) <= kItemBytes);
    const std::lock_guard<std::mutex> in_order(producers_);
    Slot& slot = free_slot();
    auto* item = new (slot.bytes) Item(std::forward<Arguments>(arguments)...);
    return publish(slot, item);
  }

  // Everything that is submitted from now on waits for the mark.
  void wait_for(std::shared_ptr<Mark> mark);
  // A mark behind all that was submitted so far.
  std::shared_ptr<Mark> record();

  std::uint64_t submitted() const noexcept { return tail_.load(std::memory_order_acquire); }
  // The same, or the next ticket while marks wait for an item that waits for them: when it is done, so are they. That
  // item may never come.
  std::uint64_t claimed() const noexcept {
    const std::uint64_t owed = owes_.load(std::memory_order_acquire) ? 1 : 0;
    return submitted() + owed;
  }
  // The order matters to who goes to sleep after having looked.
  bool done(std::uint64_t ticket) const noexcept { return head_.load(std::memory_order_seq_cst) >= ticket; }
  bool idle() const noexcept { return done(claimed()); }
  // Returns when all up to the ticket is done. Never on a pipeline's thread.
  void wait(std::uint64_t ticket) const;
  // The same for what was claimed: makes the item where nobody did.
  void wait_until(std::uint64_t ticket);
  // The same for all that was submitted, and the marks that were to be waited for.
  void wait();
  // What a wait now would wait for: the op of the newest item.
  std::uint32_t last_name() const noexcept { return last_name_.load(std::memory_order_relaxed); }

 private:
  friend class Pipelines;

  struct Slot {
    alignas(64) unsigned char bytes[kItemBytes];
    Work* work = nullptr;  // in `bytes`
    // Read by workers that do not own the item, while it may be destroyed: hence not in the item.
    std::atomic<std::uint64_t> order{0};
    std::atomic<Pipeline> pipeline{Pipeline::kCompute};
  };

  Slot& free_slot();
  Slot& slot_of(std::uint64_t ticket) const { return slots_[(ticket - 1) % kDepth]; }
  std::uint64_t publish(Slot& slot, Work* work);
  // For the pipelines' threads: the next item if it is for this pipeline, and that item's end.
  Slot* next_for(Pipeline pipeline) const noexcept;
  void finish(Slot& slot) noexcept;

  Pipelines* pipelines_ = nullptr;
  int priority_ = 0;
  std::atomic<bool> open_{false};
  std::mutex producers_;
  std::unique_ptr<Slot[]> slots_;
  std::vector<std::shared_ptr<Mark>> pending_;  // what the next item waits for
  std::atomic<bool> owes_{false};               // pending_ is not empty
  Pipeline last_pipeline_ = Pipeline::kCompute;
  std::uint64_t virtual_ns_ = 0;  // where the device's clock is a model: when the newest item that is done ended
  alignas(64) std::atomic<std::uint64_t> tail_{0};
  std::atomic<std::uint32_t> last_name_{0};
  alignas(64) std::atomic<std::uint64_t> head_{0};
  mutable std::atomic<std::uint32_t> watchers_{0};  // items of other streams that wait for a mark in this one
};

inline bool Mark::done() const noexcept { return stream->done(ticket); }

}  // namespace ral
