// ral_trace.backend._core: what the torch-free core shows to Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "allocator_bindings.h"
#include "devices.h"
#include "kernel_abi.h"

namespace py = pybind11;

namespace ral {
namespace {

py::dict vendor_row(const VendorInfo& vendor) {
  py::dict row;
  row["vendor"] = vendor.name;
  row["name"] = vendor.device_name;
  row["memory_bytes"] = vendor.memory_bytes;
  row["max_regions"] = vendor.max_regions;
  row["host_addressable"] = vendor.host_addressable;
  return row;
}

py::list list_devices(const std::string& list) {
  py::list rows;
  const DeviceManager manager(list);
  for (const DeviceInfo& device : manager.devices()) {
    py::dict row = vendor_row(device.vendor);
    row["index"] = device.index;
    rows.append(row);
  }
  return rows;
}

py::list list_vendors() {
  py::list rows;
  for (const VendorInfo& vendor : DeviceManager::vendors()) {
    rows.append(vendor_row(vendor));
  }
  return rows;
}

}  // namespace
}  // namespace ral

PYBIND11_MODULE(_core, m) {
  ral::bind_allocator(m);
  py::register_exception<ral::BadDeviceList>(m, "BadDeviceList", PyExc_ValueError);
  m.def("list_devices", &ral::list_devices, py::arg("list"));
  m.def("list_vendors", &ral::list_vendors);
  m.attr("DEVICE_SLOTS") = ral::kDeviceSlots;
  m.attr("KERNEL_ABI_VERSION") = RAL_KERNEL_ABI_VERSION;
}
