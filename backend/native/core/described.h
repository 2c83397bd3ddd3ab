// Vendors that are described rather than asked: those of Python classes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "devices.h"

namespace ral {

// Regions out of one range that somebody else owns and that lives as long as the process.
class ArenaRegions final : public RegionSource {
 public:
  ArenaRegions(std::uint64_t address, std::size_t length, std::size_t alignment);
  std::optional<Range> reserve(std::size_t length, const Striping& striping) override;
  void release(const Range& range) noexcept override;

 private:
  struct Piece {
    std::uint64_t address;
    std::size_t length;
    bool used;
  };
  std::size_t alignment_;
  std::mutex mutex_;
  std::vector<Piece> pieces_;  // in address order; two free ones never touch
};

class DescribedVendor final : public Vendor {
 public:
  // `arenas`: where each device's memory begins, 0: it is mapped on the host. One number a device.
  DescribedVendor(std::string name, std::string version, std::vector<VendorInfo> devices,
                  std::vector<std::uint64_t> arenas)
      : name_(std::move(name)),
        version_(std::move(version)),
        devices_(std::move(devices)),
        arenas_(std::move(arenas)) {}

  const std::string& name() const override { return name_; }
  std::string version() const override { return version_; }
  int device_count() const override { return static_cast<int>(devices_.size()); }
  VendorInfo describe(int index) const override { return devices_.at(static_cast<std::size_t>(index)); }
  std::unique_ptr<RegionSource> regions(int index, std::size_t alignment) const override;
  bool memory_is_mapped() const override {
    return std::all_of(arenas_.begin(), arenas_.end(), [](std::uint64_t begin) { return begin == 0; });
  }

 private:
  std::string name_;
  std::string version_;
  std::vector<VendorInfo> devices_;
  std::vector<std::uint64_t> arenas_;
};

}  // namespace ral
