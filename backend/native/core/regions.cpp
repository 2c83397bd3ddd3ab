#include "regions.h"

#include <sys/mman.h>

namespace ral {

std::optional<Region> MappedRegions::reserve(std::size_t length) {
  void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return std::nullopt;
  }
  return Region{next_handle_++, reinterpret_cast<std::uintptr_t>(address), length};
}

void MappedRegions::release(const Region& region) noexcept {
  munmap(reinterpret_cast<void*>(static_cast<std::uintptr_t>(region.address)), region.length);
}

std::optional<Region> ImaginaryRegions::reserve(std::size_t length) {
  const Region region{next_handle_++, next_address_, length};
  constexpr std::uint64_t kStep = std::uint64_t{1} << 21;  // never adjacent, and aligned for whatever a device asks
  next_address_ += (length + 2 * kStep - 1) & ~(kStep - 1);
  return region;
}

}  // namespace ral
