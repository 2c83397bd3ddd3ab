#include "allocator.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

namespace ral {

namespace {

// A large request may have a block that is larger by this much, unsplit: as in PyTorch.
constexpr std::size_t kUnsplitSlack = std::size_t{20} << 20;

std::string describe(const OutOfMemory::Facts& facts) {
  std::ostringstream text;
  text << "out of memory: requested " << facts.requested << " bytes; " << facts.free << " free of " << facts.reserved
       << " reserved, capacity " << facts.capacity << ", largest free block " << facts.largest_free
       << ", fragmentation " << std::fixed << std::setprecision(1) << 100 * facts.fragmentation() << "%";
  return text.str();
}

void require(bool condition, const char* message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

}  // namespace

OutOfMemory::OutOfMemory(const Facts& facts) : std::runtime_error(describe(facts)), facts(facts) {}

RegionAllocator::RegionAllocator(const AllocatorConfig& config, std::unique_ptr<RegionSource> source,
                                 AllocatorObserver* observer, StreamClock* clock)
    : config_(config), limit_(config.capacity), source_(std::move(source)), observer_(observer), clock_(clock) {
  require(config.alignment != 0 && (config.alignment & (config.alignment - 1)) == 0,
          "alignment must be a power of two");
  require(config.capacity != 0 && config.region_bytes != 0 && config.max_regions != 0,
          "capacity, region size and number of regions must not be zero");
  require(config.striping.domains != 0 && config.striping.domains <= config.max_regions,
          "there must be a region for each memory domain");
  require(config.striping.stripe_bytes != 0 && config.striping.stripe_bytes % config.alignment == 0,
          "stripes must be a multiple of the alignment");
  pools_[0] = std::make_unique<FreeBlocks>(config.alignment);
}

RegionAllocator::~RegionAllocator() {
  for (const auto& extent : extents_) {
    source_->release(extent->range);
  }
}

std::size_t RegionAllocator::rounded(std::size_t bytes) const {
  const std::size_t mask = config_.alignment - 1;
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  return size > SIZE_MAX - mask ? SIZE_MAX & ~mask : (size + mask) & ~mask;
}

// A range is never shorter than a stripe of each domain, whatever people ask for.
std::size_t RegionAllocator::split_limit() const {
  return std::max(config_.settings.max_split_bytes, config_.striping.unit());
}

Block* RegionAllocator::new_block() {
  if (spare_.empty()) {
    return &blocks_.emplace_back();
  }
  Block* block = spare_.back();
  spare_.pop_back();
  return block;
}

void RegionAllocator::recycle(Block* block) { spare_.push_back(block); }

std::uint8_t RegionAllocator::pool_for(std::uint8_t stream) {
  if (clock_ == nullptr) {
    return 0;
  }
  const auto pool = static_cast<std::uint8_t>(stream + 1);
  if (pools_[pool] == nullptr) {
    pools_[pool] = std::make_unique<FreeBlocks>(config_.alignment);
  }
  return pool;
}

// --- allocate ---------------------------------------------------------------------------------------------------------

Block* RegionAllocator::allocate(std::size_t bytes, std::uint8_t stream) {
  require(stream < kMaxStreams, "there is no such stream");
  const std::size_t size = rounded(bytes);
  Lock lock(mutex_);
  Block* block = take_cached(size, stream);
  if (block == nullptr) {
    block = take_after_effort(size, stream, lock);
  }
  if (block == nullptr) {
    fail(bytes);
  }
  hand_out(block, bytes, stream);
  return block;
}

Block* RegionAllocator::take(FreeBlocks& pool, std::size_t size) {
  const std::size_t limit = split_limit();
  // A block above the limit stays whole, so it serves only what is above the limit, too, and not much smaller.
  const std::size_t most = size <= limit ? limit : size + std::min(SIZE_MAX - size, kUnsplitSlack);
  Block* best = config_.settings.fit == Fit::kFirst ? pool.first(size, most) : pool.best(size);
  if (best == nullptr || best->size > most) {
    return nullptr;
  }
  const bool unsplit = best->size > limit;
  if (unsplit || best->size == size) {
    pool.remove(best);
    --best->extent->free_blocks;
    return best;
  }
  // Split: the front is handed out, so that the rest keeps its place in the tree and the range's end stays free.
  Block* front = new_block();
  front->address = best->address;
  front->size = size;
  front->extent = best->extent;
  front->previous = best->previous;
  front->next = best;
  (front->previous != nullptr ? front->previous->next : front->extent->first) = front;
  best->previous = front;
  pool.resize(best, best->address + size, best->size - size);
  return front;
}

Block* RegionAllocator::take_cached(std::size_t size, std::uint8_t stream) {
  complete_oldest();
  Block* block = nullptr;
  if (FreeBlocks* own = pool_of(stream)) {
    block = take(*own, size);
  }
  return block != nullptr ? block : take(*pools_[0], size);
}

// From the cheap to the dear.
Block* RegionAllocator::take_after_effort(std::size_t size, std::uint8_t stream, Lock& lock) {
  reclaim();
  if (Block* block = take_cached(size, stream)) {
    return block;
  }
  if (open_range(size)) {
    return take_cached(size, stream);
  }
  if (size > limit_) {
    return nullptr;  // no wait makes room for this
  }
  const auto give_back_and_open = [&]() -> Block* {
    if (close_unused(0) == 0 || !open_range(size)) {
      return nullptr;
    }
    ++stats_.retries;
    return take_cached(size, stream);
  };
  if (Block* block = give_back_and_open()) {
    return block;
  }
  wait_for_work(lock);
  if (Block* block = take_cached(size, stream)) {
    return block;
  }
  return open_range(size) ? take_cached(size, stream) : give_back_and_open();
}

void RegionAllocator::hand_out(Block* block, std::size_t bytes, std::uint8_t stream) {
  Extent& extent = *block->extent;
  block->state = BlockState::kUsed;
  block->requested = bytes;
  block->stream = stream;
  block->generation = ++generation_;
  block->announced = 0;
  block->other_streams.store(0, std::memory_order_relaxed);
  block->uses.store(0, std::memory_order_relaxed);
  block->last_use.store(0, std::memory_order_relaxed);
  extent.active += block->size;
  stats_.allocated_bytes.add(block->size);
  stats_.active_bytes.add(block->size);
  stats_.requested_bytes.add(bytes);
  stats_.allocations.add(1);
  stats_.active.add(1);
  update_split(extent);
  if (observer_ != nullptr) {
    observer_->allocated(*block);
  }
}

void RegionAllocator::fail(std::size_t bytes) {
  ++stats_.ooms;
  const std::size_t reserved = stats_.reserved_bytes.current;
  if (observer_ != nullptr) {
    observer_->failed(bytes, limit_ - std::min(limit_, reserved));
  }
  throw OutOfMemory({bytes, stats_.allocated_bytes.current, reserved - stats_.active_bytes.current, reserved, limit_,
                     largest_free_locked()});
}

// --- free -------------------------------------------------------------------------------------------------------------

void RegionAllocator::record_stream(Block* block, std::uint8_t stream) noexcept {
  if (stream != block->stream && stream < kMaxStreams) {
    block->other_streams.fetch_or(std::uint32_t{1} << stream, std::memory_order_relaxed);
  }
}

void RegionAllocator::free(Block* block) noexcept {
  const Lock lock(mutex_);
  if (observer_ != nullptr) {
    observer_->freed(*block);
  }
  stats_.allocated_bytes.remove(block->size);
  stats_.requested_bytes.remove(block->requested);
  stats_.allocations.remove(1);
  if (clock_ == nullptr) {
    make_reusable(block, 0, 0);
  } else if (block->other_streams.load(std::memory_order_relaxed) == 0 || !make_pending(block)) {
    make_reusable(block, pool_for(block->stream), clock_->submitted(block->stream));
  }
}

void RegionAllocator::make_reusable(Block* block, std::uint8_t pool, std::uint64_t ticket) {
  Extent& extent = *block->extent;
  if (observer_ != nullptr) {
    observer_->reusable(*block);
  }
  block->state = BlockState::kFree;
  block->pool = pool;
  block->ticket = ticket;
  extent.active -= block->size;
  stats_.active_bytes.remove(block->size);
  stats_.active.remove(1);
  if (extent.active == 0) {
    extent.unused_since = ++unused_moments_;
  }
  ++extent.free_blocks;
  join(block);
  update_split(extent);
}

// Puts a free block, which is in no list yet, into its pool, together with neighbours that are in the same.
void RegionAllocator::join(Block* block) {
  FreeBlocks& pool = *pools_[block->pool];
  Extent& extent = *block->extent;
  Block* const previous = block->previous;
  Block* const next = block->next;
  const auto joins = [&](const Block* other) {
    return other != nullptr && other->state == BlockState::kFree && other->pool == block->pool;
  };
  const bool merge_next = joins(next);
  if (joins(previous)) {
    // previous takes block, and next too where that is free.
    std::size_t size = previous->size + block->size;
    previous->ticket = std::max(previous->ticket, block->ticket);
    previous->next = next;
    if (merge_next) {
      size += next->size;
      previous->ticket = std::max(previous->ticket, next->ticket);
      previous->next = next->next;
      pool.remove(next);
      recycle(next);
      --extent.free_blocks;
    }
    if (previous->next != nullptr) {
      previous->next->previous = previous;
    }
    recycle(block);
    --extent.free_blocks;
    pool.resize(previous, previous->address, size);
  } else if (merge_next) {
    next->ticket = std::max(next->ticket, block->ticket);
    next->previous = previous;
    (previous != nullptr ? previous->next : extent.first) = next;
    pool.resize(next, block->address, next->size + block->size);
    recycle(block);
    --extent.free_blocks;
  } else {
    pool.insert(block);
  }
}

void RegionAllocator::update_split(Extent& extent) {
  const std::size_t bytes = extent.active != 0 ? extent.range.length - extent.active : 0;
  const std::size_t blocks = extent.active != 0 ? extent.free_blocks : 0;
  stats_.inactive_split_bytes.change(extent.split_bytes, bytes);
  stats_.inactive_split.change(extent.split_blocks, blocks);
  extent.split_bytes = bytes;
  extent.split_blocks = blocks;
}

}  // namespace ral
