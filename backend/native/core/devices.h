// Which devices there are: vendors, and the slots that torch sees as ral:0, ral:1, …
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"

namespace ral {

// torch's autograd engine sizes its queues once, from this number; devices come and go below it.
inline constexpr int kDeviceSlots = 16;

struct VendorInfo {
  std::string name;
  std::string device_name;
  std::size_t memory_bytes = 0;
  std::uint32_t max_regions = 16;    // handles in PF mode
  std::uint32_t max_regions_vf = 8;  // handles in VF mode (RAL_MODE=vf)
  std::size_t alignment = 128;       // of addresses and block sizes; a power of two
  std::uint32_t domains = 1;         // memory domains that a region is striped over, each with a handle of its own
  std::size_t stripe_bytes = std::size_t{1} << 20;
  // May ATen's CPU kernels work on the device's memory where it lies?
  bool host_addressable = false;
  DeviceModel model;
};

struct DeviceInfo {
  int index = 0;
  VendorInfo vendor;
};

// The text names an unknown vendor, has no proper count, or asks for more devices than there are slots.
class BadDeviceList : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class DeviceManager {
 public:
  // `list` is like "host:1,sim:2": vendors and how many devices of each, in the order of their numbers. Throws
  // BadDeviceList.
  explicit DeviceManager(const std::string& list);

  static const std::vector<VendorInfo>& vendors();
  const std::vector<DeviceInfo>& devices() const { return devices_; }

 private:
  std::vector<DeviceInfo> devices_;
};

}  // namespace ral
