// One caching allocator a device: blocks inside few regions, best fit, split on allocation, merged on free.
//
//   region   |<---------------- length ---------------->|
//   blocks   | used | free |  used  |       free        |     neighbours are linked; two free neighbours never touch
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "regions.h"

namespace ral {

struct AllocatorConfig {
  std::size_t capacity = 0;                          // bytes that all regions together may have
  std::size_t region_bytes = std::size_t{64} << 20;  // length of the first region; later ones grow, up to 8 times this
  std::uint32_t max_regions = 16;
  std::size_t alignment = 128;  // of addresses and block sizes; a power of two
};

class Block;
class RegionAllocator;

struct Extent {
  Region region;
  RegionAllocator* owner = nullptr;
  Block* first = nullptr;
  std::size_t used = 0;
};

// A piece of a region. Its address never changes while it is in use.
class Block {
 public:
  std::uint64_t address = 0;
  std::size_t size = 0;
  std::size_t requested = 0;
  Extent* extent = nullptr;
  Block* previous = nullptr;  // neighbours in the region
  Block* next = nullptr;
  Block* bin_previous = nullptr;  // neighbours in the list of free blocks of one size
  Block* bin_next = nullptr;
  bool used = false;
  std::uint32_t announced = 0;  // the observer's own: which recordings know of this block
  std::atomic<std::uint64_t> uses{0};
};

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
};

struct AllocatorStats {
  Amount allocated_bytes, requested_bytes, reserved_bytes, inactive_split_bytes;
  Amount allocations, regions;
  std::uint64_t retries = 0;  // allocations that succeeded only after cached regions were given back
  std::uint64_t ooms = 0;
  std::uint64_t region_opens = 0;
  std::uint64_t region_closes = 0;
};

class OutOfMemory : public std::runtime_error {
 public:
  OutOfMemory(std::size_t requested, std::size_t allocated, std::size_t reserved, std::size_t capacity,
              std::size_t largest_free);
  std::size_t requested, allocated, reserved, capacity, largest_free;
};

// Told of everything under the allocator's lock, in order: must be quick and must not call back.
class AllocatorObserver {
 public:
  virtual ~AllocatorObserver() = default;
  virtual void opened(const Region& region) noexcept = 0;
  virtual void closed(const Region& region) noexcept = 0;
  virtual void allocated(Block& block) noexcept = 0;
  virtual void freed(const Block& block) noexcept = 0;
};

class RegionAllocator {
 public:
  // Throws std::invalid_argument for an alignment that is no power of two, or a capacity, region size or count of zero.
  RegionAllocator(const AllocatorConfig& config, std::unique_ptr<RegionSource> source,
                  AllocatorObserver* observer = nullptr);
  ~RegionAllocator();
  RegionAllocator(const RegionAllocator&) = delete;
  RegionAllocator& operator=(const RegionAllocator&) = delete;

  // Throws OutOfMemory. Zero bytes take one block of the smallest size.
  Block* allocate(std::size_t bytes);
  void free(Block* block) noexcept;

  // Gives back the regions in which nothing is used; returns their bytes.
  std::size_t empty_cache();
  // Bytes that regions may have together from now on, at most the device's; throws std::invalid_argument for more.
  void set_limit(std::size_t bytes);

  AllocatorStats stats() const;
  void reset_peaks();
  void reset_totals();
  std::size_t capacity() const { return config_.capacity; }
  std::size_t largest_free_block() const;
  // The used block that begins at this address, or nullptr. Walks a region: not for the hot path.
  Block* find(std::uint64_t address) const;

  // Under the lock, so that what is seen fits together.
  void visit(const std::function<void(const Region&)>& region, const std::function<void(Block&)>& block) const;
  // What is wrong with the structure, or an empty text. For tests.
  std::string check() const;

 private:
  static constexpr std::size_t kBins = 512;  // free blocks of up to this many alignments have a list for each size

  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->address < b->address;
    }
  };

  std::size_t rounded(std::size_t bytes) const;
  Block* take_free(std::size_t size);
  Block* best_small(std::size_t size) const;
  void insert_free(Block* block);
  void remove_free(Block* block);
  void resize_free(Block* block, std::uint64_t address, std::size_t size);
  bool open_region(std::size_t size);
  std::size_t close_unused_regions();
  Block* new_block();
  void recycle(Block* block);
  std::size_t largest_free_locked() const;
  std::string check_extent(const Extent& extent, std::size_t* used, std::size_t* free_count) const;
  std::size_t inactive_split() const;

  AllocatorConfig config_;
  std::size_t limit_;
  std::unique_ptr<RegionSource> source_;
  AllocatorObserver* observer_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Extent>> extents_;
  std::deque<Block> blocks_;  // owns every block; recycled ones are in spare_
  std::vector<Block*> spare_;
  std::array<Block*, kBins> bins_{};
  std::array<std::uint64_t, kBins / 64> occupied_{};
  std::set<Block*, BySize> large_;
  AllocatorStats stats_;
};

}  // namespace ral
