// How the allocator takes ranges of addresses from the device, and gives them back.
#include <algorithm>

#include "allocator.h"

namespace ral {

namespace {

std::size_t rounded_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

}  // namespace

bool RegionAllocator::open_range(std::size_t size) {
  const double threshold = config_.settings.garbage_collection_threshold;
  if (threshold > 0) {
    close_unused(static_cast<std::size_t>(threshold * static_cast<double>(limit_)));
  }
  const std::size_t reserved = stats_.reserved_bytes.current;
  const std::size_t unit = std::max(config_.striping.unit(), config_.alignment);
  const std::size_t room = reserved > limit_ ? 0 : (limit_ - reserved) / unit * unit;
  const bool handles = (extents_.size() + 1) * config_.striping.domains <= config_.max_regions;
  if (!handles || room < size || room < rounded_up(size, unit)) {
    return false;
  }
  // Few handles: each range is twice the last one, within reason, so that many small blocks do not use them up.
  const std::size_t first = config_.settings.region_bytes != 0 ? config_.settings.region_bytes : config_.region_bytes;
  std::size_t wish = std::min(first, limit_) << std::min<std::size_t>(extents_.size(), 3);
  wish = size > split_limit() ? size : std::min(wish, split_limit() / unit * unit);
  const std::size_t needed = rounded_up(size, unit);
  const std::size_t length = std::clamp(rounded_up(wish, unit), needed, room);
  auto range = source_->reserve(length, config_.striping);
  if (!range && length > needed) {
    range = source_->reserve(needed, config_.striping);
  }
  if (!range) {
    return false;
  }
  adopt(std::move(*range));
  return true;
}

void RegionAllocator::adopt(Range range) {
  auto extent = std::make_unique<Extent>();
  extent->range = std::move(range);
  extent->owner = this;
  extent->number = ranges_opened_++;
  extent->free_blocks = 1;
  extent->unused_since = ++unused_moments_;
  Block* block = new_block();
  block->address = extent->range.address;
  block->size = extent->range.length;
  block->extent = extent.get();
  block->previous = block->next = nullptr;
  block->state = BlockState::kFree;
  block->pool = 0;
  block->ticket = 0;
  extent->first = block;
  pools_[0]->insert(block);
  stats_.reserved_bytes.add(block->size);
  for (const Region& region : extent->range.regions) {
    stats_.regions.add(1);
    ++stats_.region_opens;
    if (observer_ != nullptr) {
      observer_->opened(region);
    }
  }
  extents_.push_back(std::move(extent));
}

bool RegionAllocator::closable(const Extent& extent) const {
  const Block& first = *extent.first;
  return first.state == BlockState::kFree && first.pool == 0 && first.next == nullptr;
}

// The one unused for longest first, until no more than this is reserved. Returns the bytes given back.
std::size_t RegionAllocator::close_unused(std::size_t until_reserved) {
  std::size_t bytes = 0;
  while (stats_.reserved_bytes.current > until_reserved) {
    auto oldest = extents_.end();
    for (auto extent = extents_.begin(); extent != extents_.end(); ++extent) {
      if (closable(**extent) && (oldest == extents_.end() || (*extent)->unused_since < (*oldest)->unused_since)) {
        oldest = extent;
      }
    }
    if (oldest == extents_.end()) {
      break;
    }
    bytes += close(**oldest);
    extents_.erase(oldest);
  }
  return bytes;
}

std::size_t RegionAllocator::close(Extent& extent) {
  pools_[0]->remove(extent.first);
  recycle(extent.first);
  stats_.reserved_bytes.remove(extent.range.length);
  for (const Region& region : extent.range.regions) {
    stats_.regions.remove(1);
    ++stats_.region_closes;
    if (observer_ != nullptr) {
      observer_->closed(region);
    }
  }
  source_->release(extent.range);
  return extent.range.length;
}

std::size_t RegionAllocator::empty_cache() {
  Lock lock(mutex_);
  wait_for_work(lock);
  return close_unused(0);
}

std::size_t RegionAllocator::collect_garbage() {
  const Lock lock(mutex_);
  reclaim();
  return close_unused(0);
}

}  // namespace ral
