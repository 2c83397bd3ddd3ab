// Which devices there are: vendors, and the slots that torch sees as ral:0, ral:1, …
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"
#include "ral_plugin.h"
#include "regions.h"

namespace ral {

// torch's autograd engine sizes its queues once, from this number; devices come and go below it.
inline constexpr int kDeviceSlots = 16;

// One device as its vendor describes it.
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
  std::uint64_t dtypes = RAL_ALL_DTYPES;  // RAL_DTYPE_BIT of each
  ral_layout preferred_layout = RAL_LAYOUT_NCHW;
  std::uint32_t pipelines = RAL_PIPELINE_COMPUTE | RAL_PIPELINE_COPY_IN | RAL_PIPELINE_COPY_OUT;
  DeviceModel model;
};

// Who makes devices: built in, a plugin, or a Python class. Lives as long as the process.
class Vendor {
 public:
  virtual ~Vendor() = default;
  virtual const std::string& name() const = 0;
  virtual std::string version() const = 0;
  // How many devices it can give, and each of them from 0 on. Throws PluginError where a plugin answers nonsense.
  virtual int device_count() const = 0;
  virtual VendorInfo describe(int index) const = 0;
  // The memory of one of them, or of one that it has announced under this index.
  virtual std::unique_ptr<RegionSource> regions(int index, std::size_t alignment) const {
    (void)index, (void)alignment;
    return std::make_unique<MappedRegions>();
  }
  // Does that memory lie in this process, so that code of the host can read it? Not where the vendor gives addresses.
  virtual bool memory_is_mapped() const { return true; }
  // Moves bytes by the vendor's own means. False: it has none, copy through the addresses. Throws PluginError.
  virtual bool copy(int index, ral_direction direction, std::uint64_t to, std::uint64_t from, std::size_t bytes) const {
    (void)index, (void)direction, (void)to, (void)from, (void)bytes;
    return false;
  }
};

// The vendors of this process, by name. `host` is always there.
class Vendors {
 public:
  static Vendors& instance();

  // False: there is one of that name already, and it stays.
  bool add(std::unique_ptr<Vendor> vendor);
  const Vendor* find(const std::string& name) const;
  std::vector<const Vendor*> all() const;

 private:
  Vendors();

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Vendor>> vendors_;
};

enum class DeviceState { kOnline, kWithdrawn };

struct DeviceInfo {
  int index = 0;  // N of ral:N
  VendorInfo vendor;
  const Vendor* source = nullptr;
  int vendor_index = 0;  // the vendor's own number for it
  DeviceState state = DeviceState::kOnline;
  bool announced = false;  // it came while the process was running
  std::string withdrawn_because;
};

// The text names an unknown vendor, has no proper count, or asks for more devices than there are.
class BadDeviceList : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class NoFreeSlot : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The slots and who is in them. A device keeps its number for as long as the process lives; the slot of a withdrawn one
// may be given away again, when its owner says that nobody needs it any more.
class DeviceManager {
 public:
  // `list` is like "host:1,sim:2": vendors and how many devices of each, in the order of their numbers. Throws
  // BadDeviceList.
  explicit DeviceManager(const std::string& list);

  // Of all devices, withdrawn ones too, by number.
  std::vector<DeviceInfo> devices() const;
  // One more than the highest number of a device that is online: range(count) reaches them all.
  int count() const;

  // A device comes; `reusable(index)` says whether a withdrawn one's slot may go to it. Throws NoFreeSlot.
  template <class Reusable>
  DeviceInfo announce(const Vendor& vendor, int vendor_index, const VendorInfo& info, Reusable&& reusable) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::size_t slot = devices_.size();
    if (slot == static_cast<std::size_t>(kDeviceSlots)) {
      for (slot = 0; slot < devices_.size(); ++slot) {
        if (devices_[slot].state == DeviceState::kWithdrawn && reusable(static_cast<int>(slot))) {
          break;
        }
      }
    }
    return place(slot, vendor, vendor_index, info);
  }
  // False: there is no such device of this vendor online.
  bool withdraw(const Vendor& vendor, int index, const std::string& reason);

 private:
  DeviceInfo place(std::size_t slot, const Vendor& vendor, int vendor_index, const VendorInfo& info);

  mutable std::mutex mutex_;
  std::vector<DeviceInfo> devices_;  // by number, at most kDeviceSlots
};

}  // namespace ral
