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

namespace {

using Fields = std::vector<std::tuple<std::string, std::string, std::string>>;

std::unique_ptr<TraceScanner> make_scanner(const Fields& fields, std::vector<std::string> leave_out,
                                           std::vector<std::string> skip_arrows, int nanoseconds_exponent) {
  ScanOptions options{{}, std::move(leave_out), std::move(skip_arrows), nanoseconds_exponent};
  for (const auto& [key, column, type] : fields) {
    if (type != "int" && type != "uint" && type != "text") {
      throw py::value_error("a field's type is int, uint or text, not " + type);
    }
    const auto kind = type == "int"    ? ArgField::Type::kInt
                      : type == "uint" ? ArgField::Type::kUint
                                       : ArgField::Type::kText;
    options.fields.push_back({key, column, kind});
  }
  return std::make_unique<TraceScanner>(std::move(options));
}

// DuckDB asks for the stream more than once (for the schema, for the rows).
class TraceBatch {
 public:
  explicit TraceBatch(std::shared_ptr<const ArrowBatch> batch) : batch_(std::move(batch)) {}
  [[nodiscard]] std::int64_t rows() const { return batch_->rows; }
  [[nodiscard]] std::vector<std::string> filled() const {
    std::vector<std::string> names;
    for (const ArrowColumn& column : batch_->columns) {
      if (column.nulls < batch_->rows) {
        names.push_back(column.name);
      }
    }
    return names;
  }
  [[nodiscard]] py::capsule stream() const { return give_stream(batch_); }

 private:
  std::shared_ptr<const ArrowBatch> batch_;
};

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

void feed(TraceScanner& scanner, const py::bytes& data) {
  const std::string_view view = data;
  const py::gil_scoped_release no_gil;
  scanner.feed(view);
}

}  // namespace

void bind_trace_json(py::module_& module) {
  py::register_exception<NotATrace>(module, "NotATrace", PyExc_ValueError);
  py::class_<TraceBatch>(module, "TraceBatch")
      .def("__len__", &TraceBatch::rows)
      .def_property_readonly("filled", &TraceBatch::filled)
      .def(
          "__arrow_c_stream__", [](const TraceBatch& self, const py::object& /*schema*/) { return self.stream(); },
          py::arg("requested_schema") = py::none());
  py::class_<TraceScanner>(module, "TraceJsonScanner")
      .def(py::init(&make_scanner), py::kw_only(), py::arg("fields") = Fields(),
           py::arg("leave_out") = std::vector<std::string>(), py::arg("skip_arrows") = std::vector<std::string>(),
           py::arg("nanoseconds_exponent") = 3)
      .def("feed", &feed, py::arg("data"))
      .def("finish", &TraceScanner::finish)
      .def("take", [](TraceScanner& self) { return TraceBatch(self.take()); })
      .def_property_readonly("rows", &TraceScanner::rows)
      .def_property_readonly("text_bytes", &TraceScanner::text_bytes)
      .def("groups", &groups_of)
      .def("metadata", &TraceScanner::metadata)
      .def("faults", &faults_of)
      .def_property_readonly("cut_off", &TraceScanner::cut_off)
      .def_property_readonly("whole_microseconds", &TraceScanner::whole_microseconds)
      .def_property_readonly("first_row", &TraceScanner::first_row);
}
