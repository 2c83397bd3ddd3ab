// One caching allocator a device: blocks inside few ranges of addresses, best fit (or first), split on
// allocation, merged on free.
//
//   range    |<---------------- length ---------------->|
//   blocks   | used | free |  used  |       free        |     neighbours are linked; two free neighbours of one pool
//                                                             never touch
//
// A block that is freed goes into the pool of the stream on which it was allocated: that stream may have it again at
// once, because its work is in order. When the stream has done all that was submitted before the free, the block
// becomes neutral: free for everybody. A block that other streams were recorded for is pending first, until they too
// are done.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator_settings.h"
#include "allocator_stats.h"
#include "block.h"
#include "free_blocks.h"
#include "regions.h"
#include "stream_clock.h"

namespace ral {

struct AllocatorConfig {
  std::size_t capacity = 0;                          // bytes that all regions together may have
  std::size_t region_bytes = std::size_t{64} << 20;  // length of the first range; later ones grow, up to 8 times this
  std::uint32_t max_regions = 16;                    // handles
  std::size_t alignment = 128;                       // of addresses and block sizes; a power of two
  Striping striping = {};
  AllocatorSettings settings = {};
};

// Told of everything under the allocator's lock, in order: must be quick and must not call back.
class AllocatorObserver {
 public:
  virtual ~AllocatorObserver() = default;
  virtual void opened(const Region& region) noexcept = 0;
  virtual void closed(const Region& region) noexcept = 0;
  virtual void allocated(Block& block) noexcept = 0;
  // The program is done with the block ...
  virtual void freed(const Block& block) noexcept = 0;
  // ... and so are all other streams that used it: it can be handed out again.
  virtual void reusable(Block& block) noexcept { (void)block; }
  // `bytes` were asked for in vain. `unreserved`: what no region holds.
  virtual void failed(std::size_t bytes, std::size_t unreserved) noexcept { (void)bytes, (void)unreserved; }
};

class RegionAllocator {
 public:
  // Without a clock all streams are one. Throws std::invalid_argument for an alignment that is no power of two, a
  // capacity, region size or count of zero, and stripes or more domains than there are handles.
  RegionAllocator(const AllocatorConfig& config, std::unique_ptr<RegionSource> source,
                  AllocatorObserver* observer = nullptr, StreamClock* clock = nullptr);
  ~RegionAllocator();
  RegionAllocator(const RegionAllocator&) = delete;
  RegionAllocator& operator=(const RegionAllocator&) = delete;

  // Throws OutOfMemory, after waiting for work whose end frees memory. Zero bytes take one block of the smallest size.
  // `stream` is below kMaxStreams.
  Block* allocate(std::size_t bytes, std::uint8_t stream = 0);
  // Work on `stream` uses the block too: it is not handed out again before all that is submitted there when it is freed
  // is done.
  void record_stream(Block* block, std::uint8_t stream) noexcept;
  void free(Block* block) noexcept;

  // Waits for the work that keeps free blocks from being neutral, and gives back the regions in which nothing is used;
  // returns their bytes.
  std::size_t empty_cache();
  // The same without the wait.
  std::size_t collect_garbage();
  // Bytes that regions may have together from now on, at most the device's; throws std::invalid_argument for more.
  void set_limit(std::size_t bytes);
  void set_settings(const AllocatorSettings& settings);
  AllocatorSettings settings() const;

  AllocatorStats stats() const;
  void reset_peaks();
  void reset_totals();
  const AllocatorConfig& config() const { return config_; }
  std::size_t capacity() const { return config_.capacity; }
  std::size_t limit() const;
  std::size_t reserved() const;
  std::size_t largest_free_block() const;
  // Whether the address lies in one of its ranges.
  bool owns(std::uint64_t address) const;
  // The used block that begins at this address, or nullptr. Walks a range: not for the hot path.
  Block* find(std::uint64_t address) const;

  // Under the lock, so that what is seen fits together: each range's regions, then its blocks in order.
  void visit(const std::function<void(const Region&)>& region, const std::function<void(Block&)>& block) const;
  // What is wrong with the structure, or an empty text. For tests.
  std::string check() const;

 private:
  struct Ticket {
    std::uint8_t stream;
    std::uint64_t ticket;
  };
  struct Pending {
    Block* block;
    std::vector<Ticket> tickets;
  };
  using Lock = std::unique_lock<std::mutex>;

  std::size_t rounded(std::size_t bytes) const;
  std::size_t split_limit() const;
  Block* new_block();
  void recycle(Block* block);
  FreeBlocks* pool_of(std::uint8_t stream) const { return pools_[stream + 1u].get(); }
  std::uint8_t pool_for(std::uint8_t stream);

  Block* take(FreeBlocks& pool, std::size_t size);
  Block* take_cached(std::size_t size, std::uint8_t stream);
  Block* take_after_effort(std::size_t size, std::uint8_t stream, Lock& lock);
  void hand_out(Block* block, std::size_t bytes, std::uint8_t stream);
  [[noreturn]] void fail(std::size_t bytes);

  void make_reusable(Block* block, std::uint8_t pool, std::uint64_t ticket);
  void join(Block* block);
  bool make_pending(Block* block);
  bool done(const std::vector<Ticket>& tickets) const;
  void complete_oldest();
  void complete_pending();
  void reclaim();
  void wait_for_work(Lock& lock);
  void update_split(Extent& extent);

  bool open_range(std::size_t size);
  void adopt(Range range);
  std::size_t close_unused(std::size_t until_reserved);
  std::size_t close(Extent& extent);
  bool closable(const Extent& extent) const;
  std::size_t largest_free_locked() const;
  std::string check_extent(const Extent& extent, AllocatorStats* sums) const;

  AllocatorConfig config_;
  std::size_t limit_;
  std::unique_ptr<RegionSource> source_;
  AllocatorObserver* observer_;
  StreamClock* clock_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Extent>> extents_;
  std::deque<Block> blocks_;  // owns every block; recycled ones are in spare_
  std::vector<Block*> spare_;
  std::array<std::unique_ptr<FreeBlocks>, kMaxStreams + 1u> pools_;  // 0: neutral; others are made at first use
  std::deque<Pending> pending_;
  std::vector<Block*> scratch_;
  std::uint64_t generation_ = 0;
  std::uint64_t unused_moments_ = 0;
  std::uint64_t ranges_opened_ = 0;
  AllocatorStats stats_;
};

}  // namespace ral
