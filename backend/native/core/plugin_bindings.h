// What _core and _adapter both show of plugins. Each has the vendors of its own copy of the core: a probe asks _core and
// needs no torch, a program's devices live in _adapter.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "described.h"
#include "devices.h"
#include "plugins.h"

namespace ral {

inline pybind11::dict vendor_row(const VendorInfo& vendor) {
  pybind11::dict row;
  row["vendor"] = vendor.name;
  row["name"] = vendor.device_name;
  row["memory_bytes"] = vendor.memory_bytes;
  row["max_regions"] = vendor.max_regions;
  row["alignment"] = vendor.alignment;
  row["domains"] = vendor.domains;
  row["host_addressable"] = vendor.host_addressable;
  row["preferred_layout"] = vendor.preferred_layout == RAL_LAYOUT_NHWC ? "NHWC" : "NCHW";
  row["dtypes"] = vendor.dtypes;
  return row;
}

// (code, words), where the code is LOADED, or PluginError's.
inline std::pair<std::string, std::string> try_load_plugin(const std::string& library, const std::string& name) {
  const pybind11::gil_scoped_release no_gil;  // a vendor's init() may take its time, or start threads that log
  try {
    load_plugin(library, name);
    return {"LOADED", ""};
  } catch (const PluginError& error) {
    return {error.code(), error.what()};
  }
}

// One device as Python describes it: every field of ral_descriptor by its name.
inline ral_descriptor to_descriptor(const pybind11::dict& row) {
  ral_descriptor d{};
  d.struct_size = sizeof d;
  const auto text = row["name"].cast<std::string>();
  text.copy(d.name, sizeof d.name);  // one that is too long has no end, and is refused for that
  d.flags = row["flags"].cast<std::uint32_t>();
  d.memory_bytes = row["memory_bytes"].cast<std::uint64_t>();
  d.alignment = row["alignment"].cast<std::uint64_t>();
  d.stripe_bytes = row["stripe_bytes"].cast<std::uint64_t>();
  d.max_handles_pf = row["max_handles_pf"].cast<std::uint32_t>();
  d.max_handles_vf = row["max_handles_vf"].cast<std::uint32_t>();
  d.domains = row["domains"].cast<std::uint32_t>();
  d.preferred_layout = row["preferred_layout"].cast<std::uint32_t>();
  d.dtypes = row["dtypes"].cast<std::uint64_t>();
  d.pipelines = row["pipelines"].cast<std::uint32_t>();
  d.launch_ns = row["launch_ns"].cast<std::uint64_t>();
  d.memory_bytes_per_s = row["memory_bytes_per_s"].cast<std::uint64_t>();
  d.copy_latency_ns = row["copy_latency_ns"].cast<std::uint64_t>();
  d.copy_bytes_per_s = row["copy_bytes_per_s"].cast<std::uint64_t>();
  return d;
}

// What is wrong with a device that Python describes, or an empty text.
inline std::string described_fault(const pybind11::dict& row) { return descriptor_fault(to_descriptor(row)); }

// Adds a vendor that Python describes; `arenas`: where each device's memory begins, 0: mapped by us. The words of a
// fault, or an empty text.
inline std::string add_vendor(const std::string& name, const std::string& version,
                              const std::vector<pybind11::dict>& devices, std::vector<std::uint64_t> arenas) {
  std::vector<VendorInfo> infos;
  for (const pybind11::dict& row : devices) {
    const ral_descriptor descriptor = to_descriptor(row);
    if (std::string fault = descriptor_fault(descriptor); !fault.empty()) {
      return fault;
    }
    infos.push_back(to_vendor_info(name, descriptor));
  }
  auto vendor = std::make_unique<DescribedVendor>(name, version, std::move(infos), std::move(arenas));
  return Vendors::instance().add(std::move(vendor)) ? "" : "there is a vendor '" + name + "' in this process already";
}

inline void bind_plugins(pybind11::module_& m) {
  namespace py = pybind11;
  m.def("load_plugin", &try_load_plugin, py::arg("library"), py::arg("name"));
  m.def("add_vendor", &add_vendor, py::arg("name"), py::arg("version"), py::arg("devices"), py::arg("arenas"));
  m.def("described_fault", &described_fault, py::arg("device"));
  m.def("vendors", [] {
    std::vector<std::string> names;
    for (const Vendor* vendor : Vendors::instance().all()) {
      names.push_back(vendor->name());
    }
    return names;
  });
}

}  // namespace ral
