#include "described.h"

#include <algorithm>

namespace ral {

ArenaRegions::ArenaRegions(std::uint64_t address, std::size_t length, std::size_t alignment)
    : alignment_(alignment), pieces_{{address, length, false}} {}

std::optional<Range> ArenaRegions::reserve(std::size_t length, const Striping& striping) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t size = (length + alignment_ - 1) / alignment_ * alignment_;
  const auto fits = [&](const Piece& piece) { return !piece.used && piece.length >= size; };
  const auto found = std::find_if(pieces_.begin(), pieces_.end(), fits);
  if (found == pieces_.end()) {
    return std::nullopt;
  }
  const Piece rest = {found->address + size, found->length - size, false};
  *found = {found->address, size, true};
  const std::uint64_t address = found->address;
  if (rest.length != 0) {
    pieces_.insert(found + 1, rest);
  }
  return striped_range(address, length, striping, address);  // an address is as good a handle as any here
}

void ArenaRegions::release(const Range& range) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto piece = std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& p) { return p.address == range.address; });
  piece->used = false;
  if (const auto next = piece + 1; next != pieces_.end() && !next->used) {
    piece->length += next->length;
    piece = pieces_.erase(next) - 1;
  }
  if (piece != pieces_.begin() && !(piece - 1)->used) {
    (piece - 1)->length += piece->length;
    pieces_.erase(piece);
  }
}

std::unique_ptr<RegionSource> DescribedVendor::regions(int index, std::size_t alignment) const {
  const auto at = static_cast<std::size_t>(index);
  if (arenas_.at(at) == 0) {
    return Vendor::regions(index, alignment);
  }
  return std::make_unique<ArenaRegions>(arenas_[at], devices_[at].memory_bytes, alignment);
}

}  // namespace ral
