// Where a device's memory comes from: few regions, each a handle and a range of addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace ral {

struct Region {
  std::uint64_t handle = 0;
  std::uint64_t address = 0;
  std::size_t length = 0;
};

class RegionSource {
 public:
  virtual ~RegionSource() = default;
  // Nothing when the device has no such range left.
  virtual std::optional<Region> reserve(std::size_t length) = 0;
  virtual void release(const Region& region) noexcept = 0;
};

// Address space of this process, backed page by page at first touch: the addresses are real.
class MappedRegions final : public RegionSource {
 public:
  std::optional<Region> reserve(std::size_t length) override;
  void release(const Region& region) noexcept override;

 private:
  std::uint64_t next_handle_ = 1;
};

// Addresses without memory behind them: for replaying a trace's allocations, and for tests.
class ImaginaryRegions final : public RegionSource {
 public:
  std::optional<Region> reserve(std::size_t length) override;
  void release(const Region& region) noexcept override { (void)region; }

 private:
  std::uint64_t next_handle_ = 1;
  std::uint64_t next_address_ = std::uint64_t{1} << 40;
};

}  // namespace ral
