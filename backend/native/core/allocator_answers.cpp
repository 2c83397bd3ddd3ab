// What the allocator says of itself, and what is set about it.
#include <algorithm>

#include "allocator.h"

namespace ral {

void RegionAllocator::set_limit(std::size_t bytes) {
  if (bytes > config_.capacity) {
    throw std::invalid_argument("the limit must not be above the device's memory");
  }
  const Lock lock(mutex_);
  limit_ = bytes;
}

std::size_t RegionAllocator::limit() const {
  const Lock lock(mutex_);
  return limit_;
}

std::size_t RegionAllocator::reserved() const {
  const Lock lock(mutex_);
  return stats_.reserved_bytes.current;
}

void RegionAllocator::set_settings(const AllocatorSettings& settings) {
  const Lock lock(mutex_);
  config_.settings = settings;
}

AllocatorSettings RegionAllocator::settings() const {
  const Lock lock(mutex_);
  return config_.settings;
}

AllocatorStats RegionAllocator::stats() const {
  const Lock lock(mutex_);
  return stats_;
}

void RegionAllocator::reset_peaks() {
  const Lock lock(mutex_);
  for (Amount* amount : stats_.amounts()) {
    amount->peak = amount->current;
  }
}

void RegionAllocator::reset_totals() {
  const Lock lock(mutex_);
  for (Amount* amount : stats_.amounts()) {
    amount->added = amount->removed = 0;
  }
  stats_.retries = stats_.waits = stats_.ooms = stats_.region_opens = stats_.region_closes = 0;
}

std::size_t RegionAllocator::largest_free_locked() const {
  std::size_t largest = 0;
  for (const auto& pool : pools_) {
    largest = pool != nullptr ? std::max(largest, pool->largest()) : largest;
  }
  return largest;
}

std::size_t RegionAllocator::largest_free_block() const {
  const Lock lock(mutex_);
  return largest_free_locked();
}

bool RegionAllocator::owns(std::uint64_t address) const {
  const Lock lock(mutex_);
  return std::any_of(extents_.begin(), extents_.end(), [&](const auto& extent) {
    return address >= extent->range.address && address < extent->range.address + extent->range.length;
  });
}

Block* RegionAllocator::find(std::uint64_t address) const {
  const Lock lock(mutex_);
  for (const auto& extent : extents_) {
    const Range& range = extent->range;
    if (address < range.address || address >= range.address + range.length) {
      continue;
    }
    Block* block = extent->first;
    while (block != nullptr && block->address < address) {
      block = block->next;
    }
    return block != nullptr && block->state == BlockState::kUsed && block->address == address ? block : nullptr;
  }
  return nullptr;
}

void RegionAllocator::visit(const std::function<void(const Region&)>& visit_region,
                            const std::function<void(Block&)>& visit_block) const {
  const Lock lock(mutex_);
  for (const auto& extent : extents_) {
    if (visit_region) {
      std::for_each(extent->range.regions.begin(), extent->range.regions.end(), visit_region);
    }
    for (Block* block = extent->first; visit_block && block != nullptr; block = block->next) {
      visit_block(*block);
    }
  }
}

std::string RegionAllocator::check_extent(const Extent& extent, AllocatorStats* sums) const {
  std::uint64_t address = extent.range.address;
  std::size_t active = 0;
  std::size_t free_blocks = 0;
  const Block* previous = nullptr;
  for (const Block* block = extent.first; block != nullptr; previous = block, block = block->next) {
    const bool free = block->state == BlockState::kFree;
    if (block->address != address || block->size == 0 || block->address % config_.alignment != 0) {
      return "a block does not begin where the one before it ends, is empty or is not aligned";
    }
    if (block->previous != previous || block->extent != &extent) {
      return "a block's links do not fit";
    }
    if (free && previous != nullptr && previous->state == BlockState::kFree && previous->pool == block->pool) {
      return "two free neighbours of one pool were not merged";
    }
    if (block->state == BlockState::kUsed) {
      sums->allocated_bytes.current += block->size;
      sums->requested_bytes.current += block->requested;
      sums->allocations.current += 1;
    }
    active += free ? 0 : block->size;
    free_blocks += free ? 1 : 0;
    sums->active.current += free ? 0 : 1;
    address += block->size;
  }
  if (address != extent.range.address + extent.range.length) {
    return "the blocks do not fill their range";
  }
  sums->active_bytes.current += active;
  sums->reserved_bytes.current += extent.range.length;
  sums->regions.current += extent.range.regions.size();
  sums->inactive_split_bytes.current += active != 0 ? extent.range.length - active : 0;
  sums->inactive_split.current += active != 0 ? free_blocks : 0;
  return active == extent.active && free_blocks == extent.free_blocks ? ""
                                                                      : "a range's sums are not those of its blocks";
}

std::string RegionAllocator::check() const {
  const Lock lock(mutex_);
  AllocatorStats sums;
  std::size_t free_blocks = 0;
  for (const auto& extent : extents_) {
    std::string wrong = check_extent(*extent, &sums);
    if (!wrong.empty()) {
      return wrong;
    }
    free_blocks += extent->free_blocks;
  }
  std::size_t listed = 0;
  for (const auto& pool : pools_) {
    listed += pool != nullptr ? pool->count() : 0;
  }
  if (listed != free_blocks) {
    return "the pools do not hold exactly the free blocks";
  }
  if (sums.active.current != sums.allocations.current + pending_.size()) {
    return "the list of pending blocks does not hold exactly the pending blocks";
  }
  AllocatorStats stated = stats_;
  const auto expected = sums.amounts();
  const auto counted = stated.amounts();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i]->current != counted[i]->current) {
      return "the statistics are not the sums over the blocks";
    }
  }
  return sums.reserved_bytes.current <= config_.capacity ? "" : "more is reserved than the device has";
}

}  // namespace ral
