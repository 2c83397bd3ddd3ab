// ral_trace.backend._core: what the torch-free core shows to Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "allocator_bindings.h"
#include "devices.h"
#include "plugin_bindings.h"
#include "ral_plugin.h"
#include "replay_bindings.h"

namespace py = pybind11;

namespace ral {
namespace {

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
  ral::bind_allocator(m);
  ral::bind_replay(m);
  py::register_exception<ral::BadDeviceList>(m, "BadDeviceList", PyExc_ValueError);
  m.def("list_devices", &ral::list_devices, py::arg("list"));
  m.def("list_vendors", &ral::list_vendors);
  m.attr("DEVICE_SLOTS") = ral::kDeviceSlots;
  m.attr("PLUGIN_ABI_VERSION") = RAL_PLUGIN_ABI_VERSION;
  ral::bind_plugins(m);
}
