// What an allocator counts, and how it says that there is no memory left.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace ral {

struct Amount {
  std::uint64_t current = 0;
  std::uint64_t peak = 0;
  std::uint64_t added = 0;  // since the last reset
  std::uint64_t removed = 0;

  void add(std::uint64_t amount) {
    current += amount;
    added += amount;
    peak = current > peak ? current : peak;
  }
  void remove(std::uint64_t amount) {
    current -= amount;
    removed += amount;
  }
  void change(std::uint64_t from, std::uint64_t to) {
    if (to > from) {
      add(to - from);
    } else if (to < from) {
      remove(from - to);
    }
  }
};

// "Active" is what is used or pending; "inactive split" is free memory in ranges where something is active.
struct AllocatorStats {
  Amount allocated_bytes, requested_bytes, reserved_bytes, active_bytes, inactive_split_bytes;
  Amount allocations, regions, active, inactive_split;
  std::uint64_t retries = 0;  // allocations that succeeded only after cached regions were given back
  std::uint64_t waits = 0;    // times that an allocation, or empty_cache, waited for the device's work
  std::uint64_t ooms = 0;
  std::uint64_t region_opens = 0;
  std::uint64_t region_closes = 0;

  std::array<Amount*, 9> amounts() {
    return {&allocated_bytes, &requested_bytes, &reserved_bytes, &active_bytes,  &inactive_split_bytes,
            &allocations,     &regions,         &active,         &inactive_split};
  }
};

class OutOfMemory : public std::runtime_error {
 public:
  struct Facts {
    std::size_t requested = 0;
    std::size_t allocated = 0;  // bytes in used blocks
    std::size_t free = 0;       // reserved, and neither used nor pending
    std::size_t reserved = 0;
    std::size_t capacity = 0;
    std::size_t largest_free = 0;

    // Which share of the free memory is not in its largest block.
    double fragmentation() const {
      return free == 0 ? 0 : 1 - static_cast<double>(largest_free) / static_cast<double>(free);
    }
  };

  explicit OutOfMemory(const Facts& facts);
  const Facts facts;
};

}  // namespace ral
