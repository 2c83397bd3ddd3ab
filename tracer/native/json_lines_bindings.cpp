// What of the writer of JSON lines crosses to Python; typed in ../_native.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "json_lines.h"
#include "python_bindings.h"
#include "python_streams.h"

namespace py = pybind11;

namespace ral::trace {

namespace {

std::unique_ptr<JsonLines> make_lines(py::function sink, std::size_t chunk_bytes) {
  return std::make_unique<JsonLines>(bytes_into(std::move(sink)), chunk_bytes);
}

void write_objects(JsonLines& lines, const py::object& rows) {
  const auto stream = take_stream(rows);
  const py::gil_scoped_release no_gil;
  lines.objects(*stream);
}

void write_slices(JsonLines& lines, const py::object& rows, const py::object& arrows, std::int64_t zero_ns,
                  const py::function& place) {
  const auto row_stream = take_stream(rows);
  const auto arrow_stream = take_stream(arrows);
  const auto asked = [&place](std::int64_t track, std::int64_t lane) {
    const py::gil_scoped_acquire gil;
    return place(track, lane).cast<std::string>();
  };
  const py::gil_scoped_release no_gil;
  lines.slices(*row_stream, *arrow_stream, zero_ns, asked);
}

void write_counters(JsonLines& lines, const py::object& rows, std::int64_t zero_ns, const py::function& frame) {
  const auto stream = take_stream(rows);
  const auto asked = [&frame](std::int64_t key) {
    const py::gil_scoped_acquire gil;
    return frame(key).cast<std::optional<std::pair<std::string, std::string>>>();
  };
  const py::gil_scoped_release no_gil;
  lines.counters(*stream, zero_ns, asked);
}

}  // namespace

void bind_json_lines(py::module_& module) {
  py::class_<JsonLines>(module, "JsonLines")
      .def(py::init(&make_lines), py::arg("sink"), py::kw_only(), py::arg("chunk_bytes") = 1 << 20)
      .def("line", &JsonLines::line, py::arg("text"))
      .def("objects", &write_objects, py::arg("rows"))
      .def("slices", &write_slices, py::arg("rows"), py::arg("arrows"), py::kw_only(), py::arg("zero_ns"),
           py::arg("place"))
      .def("counters", &write_counters, py::arg("rows"), py::kw_only(), py::arg("zero_ns"), py::arg("frame"))
      .def("finish", &JsonLines::finish);
}

}  // namespace ral::trace
