// What of the trace scanner crosses to Python; typed in ../_native.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <tuple>

#include "python_streams.h"
#include "trace_json.h"

namespace py = pybind11;
using namespace ral::trace;

void bind_trace_json(py::module_& module);
void bind_trace_events(py::module_& module);

namespace {

using Fields = std::vector<std::tuple<std::string, std::string, std::string>>;

std::unique_ptr<TraceScanner> make_scanner(const Fields& fields, std::vector<std::string> leave_out,
                                           std::vector<std::string> skip_arrows, int nanoseconds_exponent,
                                           std::string spill_folder, std::size_t most_text) {
  ScanOptions options{
      {}, std::move(leave_out), std::move(skip_arrows), nanoseconds_exponent, std::move(spill_folder), most_text};
  for (const auto& [key, column, type] : fields) {
    if (type != "int" && type != "uint" && type != "text" && type != "label") {
      throw py::value_error("a field's type is int, uint, text or label, not " + type);
    }
    const auto kind = type == "int"    ? ArgField::Type::kInt
                      : type == "uint" ? ArgField::Type::kUint
                      : type == "text" ? ArgField::Type::kText
                                       : ArgField::Type::kLabel;
    options.fields.push_back({key, column, kind});
  }
  return std::make_unique<TraceScanner>(std::move(options));
}

// Examples are cut at any byte of what may not be UTF-8.
py::str shown(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

py::list faults_of(const TraceScanner& scanner) {
  py::list all;
  for (std::size_t i = 0; i < static_cast<std::size_t>(Fault::kCount); ++i) {
    const auto fault = static_cast<Fault>(i);
    if (const std::uint64_t count = scanner.faults().count(fault); count > 0) {
      all.append(py::make_tuple(sentence(fault), count, shown(scanner.faults().example(fault))));
    }
  }
  return all;
}

py::list groups_of(const TraceScanner& scanner) {
  py::list all;
  for (const TraceScanner::Group& group : scanner.groups()) {
    all.append(
        py::make_tuple(group.track, group.phase, group.category, group.pid, group.tid, group.rows, group.skipped));
  }
  return all;
}

void finish(TraceScanner& scanner) {
  const py::gil_scoped_release no_gil;
  scanner.finish();
}

void feed(TraceScanner& scanner, const py::bytes& data) {
  const std::string_view view = data;
  const py::gil_scoped_release no_gil;
  scanner.feed(view);
}

}  // namespace

void bind_trace_json(py::module_& module) {
  py::register_exception<NotATrace>(module, "NotATrace", PyExc_ValueError);
  bind_trace_events(module);
  py::class_<TraceScanner>(module, "TraceJsonScanner")
      .def(py::init(&make_scanner), py::kw_only(), py::arg("fields") = Fields(),
           py::arg("leave_out") = std::vector<std::string>(), py::arg("skip_arrows") = std::vector<std::string>(),
           py::arg("nanoseconds_exponent") = 3, py::arg("spill_folder") = "/tmp",
           py::arg("most_text") = std::size_t{256} << 20)
      .def("feed", &feed, py::arg("data"))
      .def("finish", &finish)
      .def_property_readonly("table", &TraceScanner::table)
      .def("groups", &groups_of)
      .def("metadata", &TraceScanner::metadata)
      .def("faults", &faults_of)
      .def_property_readonly("cut_off", &TraceScanner::cut_off)
      .def_property_readonly("whole_microseconds", &TraceScanner::whole_microseconds);
}
