#include "devices.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "immortal.h"

namespace ral {

namespace {

std::size_t host_memory() {
  constexpr std::size_t kFallbackBytes = std::size_t{4} << 30;
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page) : kFallbackBytes;
}

class HostVendor final : public Vendor {
 public:
  const std::string& name() const override { return name_; }
  std::string version() const override { return ""; }  // that of the package
  int device_count() const override { return kDeviceSlots; }
  VendorInfo describe(int index) const override {
    (void)index;
    VendorInfo host;
    host.name = name_;
    host.device_name = "host memory, ATen's CPU kernels";
    host.memory_bytes = host_memory();
    host.max_regions = 64;
    host.host_addressable = true;
    return host;
  }

 private:
  std::string name_ = "host";
};

std::string known_vendors() {
  std::string names;
  for (const Vendor* vendor : Vendors::instance().all()) {
    names += (names.empty() ? "" : ", ") + vendor->name();
  }
  return names;
}

[[noreturn]] void refuse(const std::string& list, const std::string& item, const std::string& reason) {
  throw BadDeviceList("RAL_DEVICES=\"" + list + "\": \"" + item + "\" " + reason +
                      "; write vendor:count pairs such as host:1,sim:1 (vendors: " + known_vendors() + ")");
}

int parse_count(const std::string& list, const std::string& item, const std::string& text) {
  const bool digits = !text.empty() && text.size() <= 2 &&
                      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stoi(text) == 0) {
    refuse(list, item, "has no count from 1 to " + std::to_string(kDeviceSlots));
  }
  return std::stoi(text);
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

// --- vendors ---

Vendors::Vendors() { vendors_.push_back(std::make_unique<HostVendor>()); }

Vendors& Vendors::instance() {
  struct Holder {
    Vendors vendors;
  };
  static Immortal<Holder> storage;
  static Holder* const holder = storage.emplace();
  return holder->vendors;
}

bool Vendors::add(std::unique_ptr<Vendor> vendor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool taken = std::any_of(vendors_.begin(), vendors_.end(),
                                 [&](const auto& present) { return present->name() == vendor->name(); });
  if (!taken) {
    vendors_.push_back(std::move(vendor));
  }
  return !taken;
}

const Vendor* Vendors::find(const std::string& name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found =
      std::find_if(vendors_.begin(), vendors_.end(), [&](const auto& vendor) { return vendor->name() == name; });
  return found == vendors_.end() ? nullptr : found->get();
}

std::vector<const Vendor*> Vendors::all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<const Vendor*> result;
  for (const auto& vendor : vendors_) {
    result.push_back(vendor.get());
  }
  return result;
}

// --- devices ---

DeviceManager::DeviceManager(const std::string& list) {
  std::istringstream items(list);
  for (std::string part; std::getline(items, part, ',');) {
    const std::string item = trimmed(part);
    const auto colon = item.find(':');
    const Vendor* vendor = Vendors::instance().find(item.substr(0, colon));
    if (vendor == nullptr) {
      refuse(list, item, "names no known vendor");
    }
    const int count = colon == std::string::npos ? 1 : parse_count(list, item, item.substr(colon + 1));
    // Where a vendor is named twice, the second name goes on with its devices.
    const auto taken = static_cast<int>(
        std::count_if(devices_.begin(), devices_.end(), [&](const auto& device) { return device.source == vendor; }));
    if (taken + count > vendor->device_count()) {
      refuse(list, item, "asks for more devices than it has: " + std::to_string(vendor->device_count()));
    }
    for (int i = taken; i < taken + count; ++i) {
      DeviceInfo device;
      device.index = static_cast<int>(devices_.size());
      device.vendor = vendor->describe(i);
      device.source = vendor;
      device.vendor_index = i;
      devices_.push_back(std::move(device));
    }
  }
  if (devices_.empty()) {
    refuse(list, "", "names no device");
  }
  if (devices_.size() > static_cast<std::size_t>(kDeviceSlots)) {
    refuse(list, list,
           "asks for " + std::to_string(devices_.size()) + " devices, there are " + std::to_string(kDeviceSlots) +
               " slots");
  }
}

std::vector<DeviceInfo> DeviceManager::devices() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return devices_;
}

int DeviceManager::count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (std::size_t i = devices_.size(); i-- > 0;) {
    if (devices_[i].state == DeviceState::kOnline) {
      return static_cast<int>(i) + 1;
    }
  }
  return 0;
}

DeviceInfo DeviceManager::place(std::size_t slot, const Vendor& vendor, int vendor_index, const VendorInfo& info) {
  if (slot == static_cast<std::size_t>(kDeviceSlots)) {
    throw NoFreeSlot("all " + std::to_string(kDeviceSlots) + " device slots are taken; withdraw a device first");
  }
  if (slot == devices_.size()) {
    devices_.emplace_back();
  }
  DeviceInfo& device = devices_[slot];
  device = {};
  device.index = static_cast<int>(slot);
  device.vendor = info;
  device.source = &vendor;
  device.vendor_index = vendor_index;
  device.announced = true;
  return device;
}

bool DeviceManager::withdraw(const Vendor& vendor, int index, const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (index < 0 || static_cast<std::size_t>(index) >= devices_.size()) {
    return false;
  }
  DeviceInfo& device = devices_[static_cast<std::size_t>(index)];
  if (device.source != &vendor || device.state != DeviceState::kOnline) {
    return false;
  }
  device.state = DeviceState::kWithdrawn;
  device.withdrawn_because = reason;
  return true;
}

}  // namespace ral
