// A block of device memory, as the allocator keeps it and as everybody else sees it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "regions.h"

namespace ral {

inline constexpr std::uint8_t kMaxStreams = 32;  // of a device

class Block;
class RegionAllocator;

// One range of addresses, and the chain of blocks that fills it.
struct Extent {
  Range range;
  RegionAllocator* owner = nullptr;
  std::uint64_t number = 0;  // of all that its allocator opened, which one
  Block* first = nullptr;
  std::size_t active = 0;          // bytes in blocks that are used or pending
  std::size_t free_blocks = 0;     // how many
  std::uint64_t unused_since = 0;  // the allocator's count of such moments; lower is longer ago
  std::size_t split_bytes = 0;     // what the statistics' inactive_split has of this extent
  std::size_t split_blocks = 0;
};

enum class BlockState : std::uint8_t {
  kFree,
  kUsed,
  kPending,  // freed, but another stream's work may still use it
};

// The part of a block that lies in one region.
struct Piece {
  std::uint64_t handle = 0;
  std::uint32_t domain = 0;
  std::size_t offset = 0;
  std::size_t length = 0;
};

// Its address never changes while it is in use.
class Block {
 public:
  std::uint64_t address = 0;
  std::size_t size = 0;
  std::size_t requested = 0;
  std::uint64_t generation = 0;  // of all the allocator's allocations, which one this is
  Extent* extent = nullptr;
  Block* previous = nullptr;  // neighbours in the range
  Block* next = nullptr;
  Block* bin_previous = nullptr;  // neighbours in the list of free blocks of one size
  Block* bin_next = nullptr;
  BlockState state = BlockState::kFree;
  std::uint8_t stream = 0;                      // on which it was allocated
  std::uint8_t pool = 0;                        // free: 0 for everybody, else for stream `pool - 1`, ...
  std::uint64_t ticket = 0;                     // ... and for everybody when this stream has done this ticket
  std::uint32_t announced = 0;                  // the observer's own: which recordings know of this block
  std::shared_ptr<void> context;                // the observer's own: where it was allocated
  std::atomic<std::uint32_t> other_streams{0};  // a bit for each stream that was recorded for it
  std::atomic<std::uint64_t> uses{0};
  std::atomic<std::uint64_t> last_use{0};  // in ticks of the trace's clock; 0: never, or nobody records

  // Whether it comes before another block: ranges by age, so that it does not matter where the device put them.
  bool lies_before(const Block& other) const noexcept {
    return extent != other.extent ? extent->number < other.extent->number : address < other.address;
  }

  // Counts one more kernel or copy that touches it. `now`: ticks, or 0 where nobody records.
  void touch(std::uint64_t now) noexcept {
    uses.fetch_add(1, std::memory_order_relaxed);
    if (now != 0) {
      last_use.store(now, std::memory_order_relaxed);
    }
  }

  // Where it lies: at most one piece a memory domain, in the order of the domains.
  std::vector<Piece> pieces() const {
    std::vector<Piece> result;
    const std::size_t begin = address - extent->range.address;
    for (const Region& region : extent->range.regions) {
      const std::size_t offset = region.striping.before(region.domain, begin);
      const std::size_t length = region.striping.before(region.domain, begin + size) - offset;
      if (length != 0) {
        result.push_back({region.handle, region.domain, offset, length});
      }
    }
    return result;
  }
};

}  // namespace ral
