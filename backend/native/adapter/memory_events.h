// What a device's allocator does, as events of a recording and as entries of the memory history.
#pragma once

#include <cstdint>
#include <vector>

#include "allocator.h"
#include "memory_history.h"

namespace ral {

// Knows which recording has been told of which region.
class MemoryEvents final : public AllocatorObserver {
 public:
  explicit MemoryEvents(std::int8_t device) : device_(device) {}
  MemoryHistory& history() { return history_; }

  // The program asks for so much: its line, where the block is large, kept for `allocated` until this ends. Taking it may
  // take the GIL, so it comes before the allocator's lock.
  class Asking {
   public:
    explicit Asking(std::size_t bytes) noexcept;
    ~Asking();
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;
  };

  void opened(const Region& region) noexcept override;
  void closed(const Region& region) noexcept override;
  void allocated(Block& block) noexcept override;
  void freed(const Block& block) noexcept override;
  void reusable(Block& block) noexcept override { history_.reusable(block); }
  void failed(std::size_t bytes, std::size_t unreserved) noexcept override { history_.failed(bytes, unreserved); }

  // Tells sessions that have just begun of all that was there before; under the allocator's lock (from visit()).
  void announce(std::uint32_t sessions, const Region& region) noexcept;
  void announce(std::uint32_t sessions, Block& block) noexcept;
  void forget_ended(std::uint32_t remaining, const Region& region) noexcept;

 private:
  struct Known {
    std::uint64_t handle;
    std::uint32_t announced;
  };
  Known* find(const Region& region) noexcept;
  void emit_region(std::uint32_t sessions, const Region& region, std::uint8_t flags) noexcept;
  void emit_block(std::uint32_t sessions, const Block& block, std::uint8_t flags) noexcept;

  std::int8_t device_;
  std::vector<Known> regions_;
  MemoryHistory history_;
};

}  // namespace ral
