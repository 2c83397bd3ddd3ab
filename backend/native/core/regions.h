// Where a device's memory comes from: few regions, each with a handle. The allocator opens a range of addresses at a
// time. On a device that interleaves its memory domains a range is striped over them, and each domain's share is a
// region of its own:
//
//   addresses of a range   | S | S | S | S | S | S |      stripes of S bytes
//   domain                   0   1   0   1   0   1
//   region of domain 0     | S |   | S |   | S |          what lies in it is contiguous there
//
// So any run of addresses is, in each domain, one piece: an offset and a length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace ral {

struct Striping {
  std::uint32_t domains = 1;
  std::size_t stripe_bytes = std::size_t{1} << 20;

  // Ranges are whole multiples of this, so that all shares are of one length. 1: any length will do.
  std::size_t unit() const { return domains == 1 ? 1 : stripe_bytes * domains; }
  // How many of a range's first `x` bytes lie in the domain.
  std::size_t before(std::uint32_t domain, std::size_t x) const {
    if (domains == 1) {
      return x;
    }
    const std::size_t first = domain * stripe_bytes;
    const std::size_t rest = x % unit();
    const std::size_t within = rest <= first ? 0 : rest - first;
    return x / unit() * stripe_bytes + (within < stripe_bytes ? within : stripe_bytes);
  }
};

// One domain's share of a range. `address` is the range's first byte, for all shares alike.
struct Region {
  std::uint64_t handle = 0;
  std::uint64_t address = 0;
  std::size_t length = 0;
  std::uint32_t domain = 0;
  Striping striping;
};

struct Range {
  std::uint64_t address = 0;
  std::size_t length = 0;
  std::vector<Region> regions;  // one a domain, in order
};

// The shares of a range that lies in one piece of addresses; domain d's has the handle `first_handle` + d.
Range striped_range(std::uint64_t address, std::size_t length, const Striping& striping, std::uint64_t first_handle);

class RegionSource {
 public:
  virtual ~RegionSource() = default;
  // `length` is a multiple of striping.unit(). Nothing when the device has no such range left.
  virtual std::optional<Range> reserve(std::size_t length, const Striping& striping) = 0;
  virtual void release(const Range& range) noexcept = 0;
};

// Address space of this process, backed page by page at first touch: the addresses are real.
class MappedRegions final : public RegionSource {
 public:
  std::optional<Range> reserve(std::size_t length, const Striping& striping) override;
  void release(const Range& range) noexcept override;

 private:
  std::uint64_t next_handle_ = 1;
};

// Addresses without memory behind them: for replaying a trace's allocations, and for tests.
class ImaginaryRegions final : public RegionSource {
 public:
  std::optional<Range> reserve(std::size_t length, const Striping& striping) override;
  void release(const Range& range) noexcept override { (void)range; }

 private:
  std::uint64_t next_handle_ = 1;
  std::uint64_t next_address_ = std::uint64_t{1} << 40;
};

}  // namespace ral
