// ral_trace.backend._core: what the torch-free core shows to Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator.h"
#include "devices.h"
#include "plugin_bindings.h"
#include "ral_plugin.h"

namespace py = pybind11;

namespace ral {
namespace {

class PyAllocator {
 public:
  PyAllocator(std::size_t capacity, std::size_t region_bytes, std::uint32_t max_regions, std::size_t alignment,
              bool backed)
      : allocator_({capacity, region_bytes, max_regions, alignment}, source(backed)) {}

  std::uint64_t allocate(std::size_t bytes) {
    Block* block = allocator_.allocate(bytes);
    live_[block->address] = block;
    return block->address;
  }

  void free(std::uint64_t address) {
    Block* block = find(address);
    live_.erase(address);
    allocator_.free(block);
  }

  std::uint64_t touch(std::uint64_t address) { return ++find(address)->uses; }

  std::vector<py::tuple> regions() const {
    std::vector<py::tuple> rows;
    allocator_.visit([&](const Region& r) { rows.push_back(py::make_tuple(r.handle, r.address, r.length)); }, nullptr);
    return rows;
  }

  std::vector<py::tuple> blocks() const {
    std::vector<py::tuple> rows;
    allocator_.visit(nullptr, [&](Block& b) {
      rows.push_back(py::make_tuple(b.extent->region.handle, b.address - b.extent->region.address, b.size,
                                    b.used ? py::object(py::int_(b.requested)) : py::object(py::none())));
    });
    return rows;
  }

  RegionAllocator& allocator() { return allocator_; }

 private:
  static std::unique_ptr<RegionSource> source(bool backed) {
    if (backed) {
      return std::make_unique<MappedRegions>();
    }
    return std::make_unique<ImaginaryRegions>();
  }

  Block* find(std::uint64_t address) const {
    const auto found = live_.find(address);
    if (found == live_.end()) {
      throw py::value_error("no block in use begins at address " + std::to_string(address));
    }
    return found->second;
  }

  RegionAllocator allocator_;
  std::unordered_map<std::uint64_t, Block*> live_;
};

py::dict amount(const Amount& a) {
  py::dict result;
  result["current"] = a.current;
  result["peak"] = a.peak;
  result["allocated"] = a.added;
  result["freed"] = a.removed;
  return result;
}

py::dict stats(PyAllocator& self) {
  const AllocatorStats s = self.allocator().stats();
  py::dict result;
  result["allocated_bytes"] = amount(s.allocated_bytes);
  result["requested_bytes"] = amount(s.requested_bytes);
  result["reserved_bytes"] = amount(s.reserved_bytes);
  result["allocations"] = amount(s.allocations);
  result["regions"] = amount(s.regions);
  result["inactive_split_bytes"] = s.inactive_split_bytes.current;
  result["retries"] = s.retries;
  result["ooms"] = s.ooms;
  return result;
}

py::list list_devices(const std::string& list) {
  py::list rows;
  for (const DeviceInfo& device : DeviceManager(list).devices()) {
    py::dict row = vendor_row(device.vendor);
    row["index"] = device.index;
    rows.append(row);
  }
  return rows;
}

// Of each vendor: name, version, and its devices.
py::list list_vendors() {
  py::list rows;
  for (const Vendor* vendor : Vendors::instance().all()) {
    py::list devices;
    const int count = vendor->device_count();
    for (int i = 0; i < count; ++i) {
      devices.append(vendor_row(vendor->describe(i)));
    }
    py::dict row;
    row["vendor"] = vendor->name();
    row["version"] = vendor->version();
    row["devices"] = devices;
    rows.append(row);
  }
  return rows;
}

}  // namespace
}  // namespace ral

PYBIND11_MODULE(_core, m) {
  using ral::PyAllocator;
  py::register_exception<ral::OutOfMemory>(m, "OutOfMemory", PyExc_MemoryError);
  py::register_exception<ral::BadDeviceList>(m, "BadDeviceList", PyExc_ValueError);
  py::class_<PyAllocator>(m, "RegionAllocator")
      .def(py::init<std::size_t, std::size_t, std::uint32_t, std::size_t, bool>(), py::arg("capacity"),
           py::arg("region_bytes") = std::size_t{64} << 20, py::arg("max_regions") = 16, py::arg("alignment") = 128,
           py::arg("backed") = false)
      .def("allocate", &PyAllocator::allocate, py::arg("bytes"))
      .def("free", &PyAllocator::free, py::arg("address"))
      .def("touch", &PyAllocator::touch, py::arg("address"))
      .def("empty_cache", [](PyAllocator& self) { return self.allocator().empty_cache(); })
      .def(
          "set_limit", [](PyAllocator& self, std::size_t bytes) { self.allocator().set_limit(bytes); },
          py::arg("bytes"))
      .def("stats", &ral::stats)
      .def("reset_peaks", [](PyAllocator& self) { self.allocator().reset_peaks(); })
      .def("largest_free_block", [](PyAllocator& self) { return self.allocator().largest_free_block(); })
      .def("regions", &PyAllocator::regions)
      .def("blocks", &PyAllocator::blocks)
      .def("check", [](PyAllocator& self) { return self.allocator().check(); });
  m.def("list_devices", &ral::list_devices, py::arg("list"));
  m.def("list_vendors", &ral::list_vendors);
  m.attr("DEVICE_SLOTS") = ral::kDeviceSlots;
  m.attr("PLUGIN_ABI_VERSION") = RAL_PLUGIN_ABI_VERSION;
  ral::bind_plugins(m);
}
