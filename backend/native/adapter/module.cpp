// ral_trace.backend._adapter: what the adapter shows to Python. Importing it registers the operators; nothing has the
// name `ral` until Python gives it.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>

#include "alias.h"
#include "compiled.h"
#include "events.h"
#include "fallback_storm.h"
#include "hooks.h"
#include "job_plan.h"
#include "manifest.h"
#include "memory_bindings.h"
#include "plugin_bindings.h"
#include "python_backend.h"
#include "router.h"
#include "runtime.h"

namespace py = pybind11;

namespace ral {

namespace events {

// Here because it needs Python, which the rest of the adapter does without.
void connect() {
  py::module_::import("ral_trace.tracer._native");
  const auto* api = static_cast<const trace::WriterApi*>(PyCapsule_Import(trace::kWriterCapsule, 0));
  if (api == nullptr) {
    throw py::error_already_set();
  }
  if (api->version != trace::kWriterApiVersion) {
    throw std::runtime_error("ral_trace.backend was built for version " + std::to_string(trace::kWriterApiVersion) +
                             " of the event writer, ral_trace.tracer has version " + std::to_string(api->version) +
                             ": build the package again");
  }
  writer = api;
}

}  // namespace events

namespace {

void start(const std::string& device_list) {
  Runtime::start(device_list);
  install_handing_allocator();
  if (!at::isPrivateUse1HooksRegistered()) {
    register_hooks();
  }
}

KernelSpec to_spec(const py::dict& entry) {
  KernelSpec spec;
  spec.op_name = entry["op_name"].cast<std::string>();
  for (const auto& dtype : entry["dtypes"].cast<std::vector<int>>()) {
    spec.dtypes |= std::uint64_t{1} << static_cast<unsigned>(dtype);
  }
  spec.dtypes = spec.dtypes == 0 ? ~std::uint64_t{0} : spec.dtypes;
  spec.min_rank = entry["min_rank"].cast<int>();
  spec.max_rank = entry["max_rank"].cast<int>();
  spec.requires_contiguous = entry["requires_contiguous"].cast<bool>();
  spec.library = entry["library"].cast<std::string>();
  spec.symbol = entry["symbol"].cast<std::string>();
  return spec;
}

void set_kernels(const std::string& vendor, const std::vector<py::dict>& entries) {
  std::vector<KernelSpec> specs;
  specs.reserve(entries.size());
  for (const py::dict& entry : entries) {
    specs.push_back(to_spec(entry));
  }
  VendorKernels::of(vendor).replace(std::move(specs));
}

py::dict describe_device(int index) {
  const DeviceInfo& info = Runtime::get().device(static_cast<c10::DeviceIndex>(index)).info();
  py::dict row = vendor_row(info.vendor);
  row["index"] = info.index;
  return row;
}

std::string reasons_of(const Decision& decision) {
  const std::string refused = decision.refused();
  const std::string decided = decision.kernel == nullptr ? decision.reasons.text() : "";
  return decided + (decided.empty() || refused.empty() ? "" : "; ") + refused;
}

py::list dispatch_records() {
  py::list rows;
  visit_decisions([&](const Operator& op, const Decision& decision) {
    const auto relaxed = std::memory_order_relaxed;
    py::dict row;
    row["op"] = op.name().text();
    row["device"] = c10::str(decision.device->torch_device());
    row["vendor"] = decision.device->info().vendor.name;
    row["dtypes"] = dtype_names(decision.shape.dtypes);
    row["rank"] = decision.shape.rank;
    row["contiguous"] = decision.shape.contiguous;
    row["route"] = kRouteNames[static_cast<std::size_t>(decision.route.load(relaxed))];
    row["kernel"] = decision.kernel != nullptr ? py::object(py::str(decision.kernel->name().text())) : py::none();
    row["reasons"] = reasons_of(decision);
    row["launches"] = decision.launches.load(relaxed);
    row["fallbacks"] = decision.fallbacks.load(relaxed);
    row["bytes_copied"] = decision.bytes_copied.load(relaxed);
    row["syncs_forced"] = decision.syncs_forced.load(relaxed);
    row["fallback_ns"] = decision.fallback_ns.load(relaxed);
    row["compiled"] = decision.compiled.load(relaxed);
    row["compile_ns"] = decision.compile_ns.load(relaxed);
    rows.append(row);
  });
  return rows;
}

py::dict device_model(int index) {
  const DeviceModel model = Runtime::get().device(static_cast<c10::DeviceIndex>(index)).pipelines().model();
  py::dict result;
  result["launch_ns"] = model.launch_ns;
  result["memory_bytes_per_s"] = model.memory_bytes_per_s;
  result["copy_latency_ns"] = model.copy_latency_ns;
  result["copy_bytes_per_s"] = model.copy_bytes_per_s;
  return result;
}

// The clock stays what it is: times of before would not compare with times of after.
void set_device_model(int index, std::uint64_t launch_ns, std::uint64_t memory_bytes_per_s,
                      std::uint64_t copy_latency_ns, std::uint64_t copy_bytes_per_s) {
  Pipelines& pipelines = Runtime::get().device(static_cast<c10::DeviceIndex>(index)).pipelines();
  DeviceModel model = pipelines.model();
  model.launch_ns = launch_ns;
  model.memory_bytes_per_s = memory_bytes_per_s;
  model.copy_latency_ns = copy_latency_ns;
  model.copy_bytes_per_s = copy_bytes_per_s;
  pipelines.set_model(model);
}

void synchronize(int index) {
  const py::gil_scoped_release no_gil;
  const auto* guard = c10::impl::getDeviceGuardImpl(kRal);
  guard->synchronizeDevice(Runtime::get().device(static_cast<c10::DeviceIndex>(index)).index());
}

py::object default_generator(int index) {
  return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(
      Runtime::get().any_device(static_cast<c10::DeviceIndex>(index)).default_generator()));
}

}  // namespace
}  // namespace ral

PYBIND11_MODULE(_adapter, m) {
  ral::events::connect();
  m.def("start", &ral::start, py::arg("device_list"));
  m.def("started", &ral::Runtime::started);
  m.def("bad_fork", &ral::Runtime::bad_fork);
  m.def("device_count", [] { return ral::Runtime::started() ? ral::Runtime::get().device_count() : 0; });
  m.def("current_device", [] { return static_cast<int>(ral::current_device()); });
  m.def(
      "set_device",
      [](int index) {
        ral::set_current_device(ral::Runtime::get().device(static_cast<c10::DeviceIndex>(index)).index());
      },
      py::arg("index"));
  m.def("describe_device", &ral::describe_device, py::arg("index"));
  m.def("synchronize", &ral::synchronize, py::arg("index"));
  m.def("record_launch_sites", &ral::record_launch_sites, py::arg("on"));
  m.def("dispatch_records", &ral::dispatch_records);
  m.def("fallback_thresholds", [] {
    const ral::StormThresholds thresholds = ral::storm_thresholds();
    return py::make_tuple(thresholds.warn, thresholds.shout);
  });
  m.def(
      "set_fallback_thresholds", [](double warn, double shout) { ral::set_storm_thresholds({warn, shout}); },
      py::arg("warn"), py::arg("shout"));
  m.def("device_model", &ral::device_model, py::arg("index"));
  m.def("set_device_model", &ral::set_device_model, py::arg("index"), py::kw_only(), py::arg("launch_ns"),
        py::arg("memory_bytes_per_s"), py::arg("copy_latency_ns"), py::arg("copy_bytes_per_s"));
  m.def("stop", &ral::stop_devices, py::call_guard<py::gil_scoped_release>());
  m.def("default_generator", &ral::default_generator, py::arg("index"));
  ral::bind_memory(m);
  m.def(
      "keep_device_file", [](const std::string& path) { ral::Runtime::get().keep_device_file(path); }, py::arg("path"));
  ral::bind_plugins(m);
  ral::bind_python_backends(m);
  ral::bind_compiled(m);
  ral::bind_job_plans(m);
  m.def("set_kernels", &ral::set_kernels, py::arg("vendor"), py::arg("entries"));
  m.def(
      "kernel_count", [](const std::string& vendor) { return ral::VendorKernels::of(vendor).size(); },
      py::arg("vendor"));
  m.def(
      "time_look_ups",
      [](int index, std::size_t count) {
        const ral::LookUpTimes times =
            ral::time_look_ups(ral::Runtime::get().device(static_cast<c10::DeviceIndex>(index)), count);
        return py::make_tuple(times.read_ns, times.find_ns);
      },
      py::arg("index"), py::arg("count"));
  m.def("route_operators", &ral::route_operators, py::arg("names"));
  m.attr("TORCH_VERSION") = RAL_TORCH_VERSION;
}
