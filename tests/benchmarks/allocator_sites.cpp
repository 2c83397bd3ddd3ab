// What bench_allocator.py times: one sequence of allocations and frees through the package's allocator, through a plain
// first fit, and with a region a tensor. All are C++ and take the same lock.
#include <sys/mman.h>

#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "allocator.h"
#include "manual_clock.h"

namespace {

using Clock = std::chrono::steady_clock;

double since_ns(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

// The textbook's: one arena, chunks in address order, the first free one that is large enough.
class FirstFit {
 public:
  explicit FirstFit(std::size_t capacity) { chunks_.push_back({0, capacity, false}); }

  struct Chunk {
    std::size_t offset;
    std::size_t size;
    bool used;
  };
  using Handle = std::list<Chunk>::iterator;

  bool allocate(std::size_t bytes, Handle* out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t size = (bytes + 127) & ~std::size_t{127};
    for (auto chunk = chunks_.begin(); chunk != chunks_.end(); ++chunk) {
      if (!chunk->used && chunk->size >= size) {
        if (chunk->size > size) {
          chunks_.insert(std::next(chunk), {chunk->offset + size, chunk->size - size, false});
          chunk->size = size;
        }
        chunk->used = true;
        *out = chunk;
        return true;
      }
    }
    return false;
  }

  void free(Handle chunk) {
    const std::lock_guard<std::mutex> lock(mutex_);
    chunk->used = false;
    const auto next = std::next(chunk);
    if (next != chunks_.end() && !next->used) {
      chunk->size += next->size;
      chunks_.erase(next);
    }
    if (chunk != chunks_.begin() && !std::prev(chunk)->used) {
      const auto previous = std::prev(chunk);
      previous->size += chunk->size;
      chunks_.erase(chunk);
    }
  }

 private:
  std::mutex mutex_;
  std::list<Chunk> chunks_;
};

ral::RegionAllocator make_allocator(std::size_t capacity, bool backed, ral::StreamClock* clock) {
  ral::AllocatorConfig config;
  config.capacity = capacity;
  config.region_bytes = capacity;
  std::unique_ptr<ral::RegionSource> source;
  if (backed) {
    source = std::make_unique<ral::MappedRegions>();
  } else {
    source = std::make_unique<ral::ImaginaryRegions>();
  }
  return ral::RegionAllocator(config, std::move(source), nullptr, clock);
}

}  // namespace

// A sequence has `count` steps on slots: bytes > 0 allocates into the slot, 0 frees what it holds.
extern "C" {

// Nanoseconds a step; below 0 when the memory did not suffice.
double region_allocator_ns(std::size_t capacity, const std::uint32_t* slots, const std::uint64_t* bytes,
                           std::size_t count, std::size_t slot_count) {
  ral::RegionAllocator allocator = make_allocator(capacity, false, nullptr);
  std::vector<ral::Block*> held(slot_count);
  const auto begin = Clock::now();
  try {
    for (std::size_t i = 0; i < count; ++i) {
      if (bytes[i] != 0) {
        held[slots[i]] = allocator.allocate(bytes[i]);
      } else {
        allocator.free(held[slots[i]]);
      }
    }
  } catch (const ral::OutOfMemory&) {
    return -1;
  }
  return since_ns(begin) / static_cast<double>(count);
}

double first_fit_ns(std::size_t capacity, const std::uint32_t* slots, const std::uint64_t* bytes, std::size_t count,
                    std::size_t slot_count) {
  FirstFit allocator(capacity);
  std::vector<FirstFit::Handle> held(slot_count);
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    if (bytes[i] == 0) {
      allocator.free(held[slots[i]]);
    } else if (!allocator.allocate(bytes[i], &held[slots[i]])) {
      return -1;
    }
  }
  return since_ns(begin) / static_cast<double>(count);
}

// One size, allocated and freed over and over; the first byte of each block is written. Nanoseconds a pair.
double pooled_pair_ns(std::size_t bytes, std::size_t count, int with_streams) {
  ral::ManualClock clock;
  ral::RegionAllocator allocator = make_allocator(std::size_t{1} << 30, true, with_streams != 0 ? &clock : nullptr);
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    ral::Block* block = allocator.allocate(bytes);
    *reinterpret_cast<volatile char*>(block->address) = 1;
    allocator.free(block);
  }
  return since_ns(begin) / static_cast<double>(count);
}

// The same with a region of its own for each.
double unpooled_pair_ns(std::size_t bytes, std::size_t count) {
  ral::MappedRegions regions;
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    const auto range = regions.reserve(bytes, {});
    *reinterpret_cast<volatile char*>(range->address) = 1;
    regions.release(*range);
  }
  return since_ns(begin) / static_cast<double>(count);
}
}
