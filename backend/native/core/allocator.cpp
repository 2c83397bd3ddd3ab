#include "allocator.h"

#include <algorithm>
#include <sstream>

namespace ral {

namespace {

std::string describe(std::size_t requested, std::size_t allocated, std::size_t reserved, std::size_t capacity,
                     std::size_t largest) {
  std::ostringstream text;
  text << "out of memory: requested " << requested << " bytes; " << reserved - allocated << " free of " << reserved
       << " reserved, capacity " << capacity << ", largest free block " << largest;
  return text.str();
}

void require(bool condition, const char* message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

}  // namespace

OutOfMemory::OutOfMemory(std::size_t requested, std::size_t allocated, std::size_t reserved, std::size_t capacity,
                         std::size_t largest_free)
    : std::runtime_error(describe(requested, allocated, reserved, capacity, largest_free)),
      requested(requested),
      allocated(allocated),
      reserved(reserved),
      capacity(capacity),
      largest_free(largest_free) {}

RegionAllocator::RegionAllocator(const AllocatorConfig& config, std::unique_ptr<RegionSource> source,
                                 AllocatorObserver* observer)
    : config_(config), limit_(config.capacity), source_(std::move(source)), observer_(observer) {
  require(config.alignment != 0 && (config.alignment & (config.alignment - 1)) == 0,
          "alignment must be a power of two");
  require(config.capacity != 0 && config.region_bytes != 0 && config.max_regions != 0,
          "capacity, region size and number of regions must not be zero");
}

RegionAllocator::~RegionAllocator() {
  for (const auto& extent : extents_) {
    source_->release(extent->region);
  }
}

std::size_t RegionAllocator::rounded(std::size_t bytes) const {
  const std::size_t mask = config_.alignment - 1;
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  return size > SIZE_MAX - mask ? SIZE_MAX & ~mask : (size + mask) & ~mask;
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

// --- free blocks: exact lists for small sizes, a tree for the rest
// -----------------------------------------------------

void RegionAllocator::insert_free(Block* block) {
  const std::size_t index = block->size / config_.alignment - 1;
  if (index >= kBins) {
    large_.insert(block);
    return;
  }
  block->bin_previous = nullptr;
  block->bin_next = bins_[index];
  if (block->bin_next != nullptr) {
    block->bin_next->bin_previous = block;
  }
  bins_[index] = block;
  occupied_[index / 64] |= std::uint64_t{1} << (index % 64);
}

void RegionAllocator::remove_free(Block* block) {
  const std::size_t index = block->size / config_.alignment - 1;
  if (index >= kBins) {
    large_.erase(block);
    return;
  }
  (block->bin_previous != nullptr ? block->bin_previous->bin_next : bins_[index]) = block->bin_next;
  if (block->bin_next != nullptr) {
    block->bin_next->bin_previous = block->bin_previous;
  }
  if (bins_[index] == nullptr) {
    occupied_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
  }
}

// A free block that grows or shrinks but stays large keeps its node in the tree: no allocation on the hot path.
void RegionAllocator::resize_free(Block* block, std::uint64_t address, std::size_t size) {
  const std::size_t smallest_large = kBins * config_.alignment;
  if (block->size > smallest_large && size > smallest_large) {
    auto node = large_.extract(block);
    block->address = address;
    block->size = size;
    large_.insert(std::move(node));
    return;
  }
  remove_free(block);
  block->address = address;
  block->size = size;
  insert_free(block);
}

Block* RegionAllocator::best_small(std::size_t size) const {
  const std::size_t index = size / config_.alignment - 1;
  if (index >= kBins) {
    return nullptr;
  }
  std::uint64_t word = occupied_[index / 64] & (~std::uint64_t{0} << (index % 64));
  for (std::size_t i = index / 64;; word = occupied_[i]) {
    if (word != 0) {
      return bins_[i * 64 + static_cast<std::size_t>(__builtin_ctzll(word))];
    }
    if (++i == occupied_.size()) {
      return nullptr;
    }
  }
}

Block* RegionAllocator::take_free(std::size_t size) {
  Block* best = best_small(size);
  if (best == nullptr) {
    Block probe;
    probe.size = size;
    const auto found = large_.lower_bound(&probe);
    if (found == large_.end()) {
      return nullptr;
    }
    best = *found;
  }
  if (best->size == size) {
    remove_free(best);
    return best;
  }
  // Split: the front is handed out, so that the rest keeps its place in the tree and the region's end stays free.
  Block* front = new_block();
  front->address = best->address;
  front->size = size;
  front->extent = best->extent;
  front->previous = best->previous;
  front->next = best;
  (front->previous != nullptr ? front->previous->next : front->extent->first) = front;
  best->previous = front;
  resize_free(best, best->address + size, best->size - size);
  return front;
}

// --- regions
// -----------------------------------------------------------------------------------------------------------

bool RegionAllocator::open_region(std::size_t size) {
  const std::size_t reserved = stats_.reserved_bytes.current;
  if (extents_.size() >= config_.max_regions || reserved > limit_ || limit_ - reserved < size) {
    return false;
  }
  // Few handles: each region is twice the last one, within reason, so that many small blocks do not use them up.
  const std::size_t wish = config_.region_bytes << std::min<std::size_t>(extents_.size(), 3);
  const std::size_t length = std::min(std::max(size, rounded(wish)), (limit_ - reserved) & ~(config_.alignment - 1));
  auto region = source_->reserve(std::max(length, size));
  if (!region && length > size) {
    region = source_->reserve(size);
  }
  if (!region) {
    return false;
  }
  auto extent = std::make_unique<Extent>();
  extent->region = *region;
  extent->owner = this;
  Block* block = new_block();
  block->address = region->address;
  block->size = region->length;
  block->extent = extent.get();
  block->previous = block->next = nullptr;
  block->used = false;
  extent->first = block;
  extents_.push_back(std::move(extent));
  insert_free(block);
  stats_.reserved_bytes.add(region->length);
  stats_.regions.add(1);
  ++stats_.region_opens;
  if (observer_ != nullptr) {
    observer_->opened(*region);
  }
  return true;
}

std::size_t RegionAllocator::close_unused_regions() {
  std::size_t bytes = 0;
  const auto unused = [&](const std::unique_ptr<Extent>& extent) {
    if (extent->used != 0) {
      return false;
    }
    remove_free(extent->first);
    recycle(extent->first);
    bytes += extent->region.length;
    stats_.reserved_bytes.remove(extent->region.length);
    stats_.regions.remove(1);
    ++stats_.region_closes;
    if (observer_ != nullptr) {
      observer_->closed(extent->region);
    }
    source_->release(extent->region);
    return true;
  };
  extents_.erase(std::remove_if(extents_.begin(), extents_.end(), unused), extents_.end());
  return bytes;
}

std::size_t RegionAllocator::empty_cache() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return close_unused_regions();
}

void RegionAllocator::set_limit(std::size_t bytes) {
  require(bytes <= config_.capacity, "the limit must not be above the device's memory");
  const std::lock_guard<std::mutex> lock(mutex_);
  limit_ = bytes;
}

// --- blocks
// ------------------------------------------------------------------------------------------------------------

Block* RegionAllocator::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  Block* block = take_free(size);
  if (block == nullptr && open_region(size)) {
    block = take_free(size);
  }
  if (block == nullptr && close_unused_regions() != 0 && open_region(size)) {
    ++stats_.retries;
    block = take_free(size);
  }
  if (block == nullptr) {
    ++stats_.ooms;
    throw OutOfMemory(bytes, stats_.allocated_bytes.current, stats_.reserved_bytes.current, limit_,
                      largest_free_locked());
  }
  block->used = true;
  block->requested = bytes;
  block->announced = 0;
  block->uses.store(0, std::memory_order_relaxed);
  block->extent->used += size;
  stats_.allocated_bytes.add(size);
  stats_.requested_bytes.add(bytes);
  stats_.allocations.add(1);
  if (observer_ != nullptr) {
    observer_->allocated(*block);
  }
  return block;
}

void RegionAllocator::free(Block* block) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (observer_ != nullptr) {
    observer_->freed(*block);
  }
  block->used = false;
  block->extent->used -= block->size;
  stats_.allocated_bytes.remove(block->size);
  stats_.requested_bytes.remove(block->requested);
  stats_.allocations.remove(1);
  Block* const previous = block->previous;
  Block* const next = block->next;
  const bool merge_previous = previous != nullptr && !previous->used;
  const bool merge_next = next != nullptr && !next->used;
  if (merge_previous) {
    // previous takes block, and next too where that is free.
    std::size_t size = previous->size + block->size;
    previous->next = next;
    if (merge_next) {
      size += next->size;
      previous->next = next->next;
      remove_free(next);
      recycle(next);
    }
    if (previous->next != nullptr) {
      previous->next->previous = previous;
    }
    recycle(block);
    resize_free(previous, previous->address, size);
  } else if (merge_next) {
    next->previous = previous;
    (previous != nullptr ? previous->next : next->extent->first) = next;
    resize_free(next, block->address, next->size + block->size);
    recycle(block);
  } else {
    insert_free(block);
  }
}

// --- answers
// -----------------------------------------------------------------------------------------------------------

std::size_t RegionAllocator::inactive_split() const {
  std::size_t bytes = 0;
  for (const auto& extent : extents_) {
    bytes += extent->used != 0 ? extent->region.length - extent->used : 0;
  }
  return bytes;
}

AllocatorStats RegionAllocator::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  AllocatorStats stats = stats_;
  stats.inactive_split_bytes.current = inactive_split();
  return stats;
}

void RegionAllocator::reset_peaks() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Amount* amount : {&stats_.allocated_bytes, &stats_.requested_bytes, &stats_.reserved_bytes, &stats_.allocations,
                         &stats_.regions}) {
    amount->peak = amount->current;
  }
}

void RegionAllocator::reset_totals() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Amount* amount : {&stats_.allocated_bytes, &stats_.requested_bytes, &stats_.reserved_bytes, &stats_.allocations,
                         &stats_.regions}) {
    amount->added = amount->removed = 0;
  }
  stats_.retries = stats_.ooms = 0;
}

std::size_t RegionAllocator::largest_free_locked() const {
  if (!large_.empty()) {
    return (*large_.rbegin())->size;
  }
  for (std::size_t index = kBins; index-- > 0;) {
    if (bins_[index] != nullptr) {
      return bins_[index]->size;
    }
  }
  return 0;
}

std::size_t RegionAllocator::largest_free_block() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return largest_free_locked();
}

Block* RegionAllocator::find(std::uint64_t address) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& extent : extents_) {
    const Region& region = extent->region;
    if (address < region.address || address >= region.address + region.length) {
      continue;
    }
    Block* block = extent->first;
    while (block != nullptr && block->address < address) {
      block = block->next;
    }
    return block != nullptr && block->used && block->address == address ? block : nullptr;
  }
  return nullptr;
}

void RegionAllocator::visit(const std::function<void(const Region&)>& region,
                            const std::function<void(Block&)>& visit_block) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& extent : extents_) {
    if (region) {
      region(extent->region);
    }
    for (Block* block = extent->first; visit_block && block != nullptr; block = block->next) {
      visit_block(*block);
    }
  }
}

std::string RegionAllocator::check_extent(const Extent& extent, std::size_t* used, std::size_t* free_count) const {
  std::uint64_t address = extent.region.address;
  std::size_t used_here = 0;
  const Block* previous = nullptr;
  for (const Block* block = extent.first; block != nullptr; previous = block, block = block->next) {
    if (block->address != address || block->size == 0 || block->address % config_.alignment != 0) {
      return "a block does not begin where the one before it ends, is empty or is not aligned";
    }
    if (block->previous != previous || block->extent != &extent) {
      return "a block's links do not fit";
    }
    if (!block->used && previous != nullptr && !previous->used) {
      return "two free neighbours were not merged";
    }
    used_here += block->used ? block->size : 0;
    *free_count += block->used ? 0 : 1;
    address += block->size;
  }
  *used += used_here;
  if (address != extent.region.address + extent.region.length) {
    return "the blocks do not fill their region";
  }
  return used_here == extent.used ? "" : "a region's used bytes are not the sum of its used blocks";
}

std::string RegionAllocator::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t used = 0;
  std::size_t free_count = 0;
  std::size_t reserved = 0;
  for (const auto& extent : extents_) {
    std::string wrong = check_extent(*extent, &used, &free_count);
    if (!wrong.empty()) {
      return wrong;
    }
    reserved += extent->region.length;
  }
  std::size_t listed = large_.size();
  for (const Block* block : bins_) {
    for (; block != nullptr; block = block->bin_next) {
      ++listed;
    }
  }
  if (listed != free_count) {
    return "the lists of free blocks do not hold exactly the free blocks";
  }
  if (used != stats_.allocated_bytes.current || reserved != stats_.reserved_bytes.current) {
    return "the statistics are not the sums over the blocks";
  }
  return reserved <= config_.capacity ? "" : "more is reserved than the device has";
}

}  // namespace ral
