#include "devices.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace ral {

namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

std::size_t host_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page) : 4 * kGiB;
}

std::string known_vendors() {
  std::string names;
  for (const VendorInfo& vendor : DeviceManager::vendors()) {
    names += (names.empty() ? "" : ", ") + vendor.name;
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

const std::vector<VendorInfo>& DeviceManager::vendors() {
  static const std::vector<VendorInfo> known = [] {
    VendorInfo host;
    host.name = "host";
    host.device_name = "host memory, ATen's CPU kernels";
    host.memory_bytes = host_memory();
    host.max_regions = 64;
    host.host_addressable = true;
    VendorInfo sim;
    sim.name = "sim";
    sim.device_name = "sim accelerator model";
    sim.memory_bytes = 4 * kGiB;
    return std::vector<VendorInfo>{host, sim};
  }();
  return known;
}

DeviceManager::DeviceManager(const std::string& list) {
  std::istringstream items(list);
  for (std::string part; std::getline(items, part, ',');) {
    const std::string item = trimmed(part);
    const auto colon = item.find(':');
    const std::string name = item.substr(0, colon);
    const auto vendor = std::find_if(vendors().begin(), vendors().end(), [&](const auto& v) { return v.name == name; });
    if (vendor == vendors().end()) {
      refuse(list, item, "names no known vendor");
    }
    const int count = colon == std::string::npos ? 1 : parse_count(list, item, item.substr(colon + 1));
    for (int i = 0; i < count; ++i) {
      devices_.push_back({static_cast<int>(devices_.size()), *vendor});
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

}  // namespace ral
