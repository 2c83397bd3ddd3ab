#include "regions.h"

#include <sys/mman.h>

#include <utility>

namespace ral {

Range striped_range(std::uint64_t address, std::size_t length, const Striping& striping, std::uint64_t first_handle) {
  Range range{address, length, {}};
  for (std::uint32_t domain = 0; domain < striping.domains; ++domain) {
    range.regions.push_back({first_handle + domain, address, length / striping.domains, domain, striping});
  }
  return range;
}

std::optional<Range> MappedRegions::reserve(std::size_t length, const Striping& striping) {
  void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return std::nullopt;
  }
  return striped_range(reinterpret_cast<std::uintptr_t>(address), length, striping,
                       std::exchange(next_handle_, next_handle_ + striping.domains));
}

void MappedRegions::release(const Range& range) noexcept {
  munmap(reinterpret_cast<void*>(static_cast<std::uintptr_t>(range.address)), range.length);
}

std::optional<Range> ImaginaryRegions::reserve(std::size_t length, const Striping& striping) {
  const std::uint64_t address = next_address_;
  constexpr std::uint64_t kStep = std::uint64_t{1} << 21;  // never adjacent, and aligned for whatever a device asks
  next_address_ += (length + 2 * kStep - 1) & ~(kStep - 1);
  return striped_range(address, length, striping, std::exchange(next_handle_, next_handle_ + striping.domains));
}

}  // namespace ral
