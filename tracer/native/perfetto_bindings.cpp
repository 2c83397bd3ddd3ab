// What of the Perfetto encoder crosses to Python; typed in ../_native.pyi.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <unordered_map>

#include "perfetto_encoder.h"
#include "python_streams.h"

namespace py = pybind11;
using namespace ral::trace;
using namespace ral::trace::perfetto;

void bind_perfetto(py::module_& module);

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;

std::unique_ptr<Encoder> make_encoder(py::function sink, bool unix_epoch, std::size_t chunk_bytes,
                                      std::size_t intern_bytes) {
  return std::make_unique<Encoder>(bytes_into(std::move(sink)), unix_epoch, chunk_bytes, intern_bytes);
}

void encode_slices(Encoder& encoder, const py::object& rows, const py::object& arrows) {
  const auto row_stream = take_stream(rows);
  const auto arrow_stream = take_stream(arrows);
  const py::gil_scoped_release no_gil;
  encoder.slices(*row_stream, *arrow_stream);
}

void encode_counters(Encoder& encoder, const py::object& rows) {
  const auto stream = take_stream(rows);
  const py::gil_scoped_release no_gil;
  encoder.counters(*stream);
}

// The lanes of several tracks, for writers of other formats than Perfetto's own.
class TrackLanes {
 public:
  Array<std::int64_t> place(const Array<std::int64_t>& track, const Array<std::int64_t>& start_ns,
                            const Array<std::int64_t>& end_ns) {
    const auto rows = track.size();
    if (start_ns.size() != rows || end_ns.size() != rows) {
      throw py::value_error("place: all columns must have the same length");
    }
    Array<std::int64_t> lanes(rows);
    for (py::ssize_t row = 0; row < rows; ++row) {
      lanes.mutable_data()[row] =
          static_cast<std::int64_t>(tracks_[track.data()[row]].place(start_ns.data()[row], end_ns.data()[row]));
    }
    return lanes;
  }

 private:
  std::unordered_map<std::int64_t, Lanes> tracks_;
};

}  // namespace

void bind_perfetto(py::module_& module) {
  py::class_<Encoder>(module, "PerfettoEncoder")
      .def(py::init(&make_encoder), py::arg("sink"), py::kw_only(), py::arg("unix_epoch"),
           py::arg("chunk_bytes") = 1 << 20, py::arg("intern_bytes") = 16 << 20)
      .def("add_process", &Encoder::add_process, py::arg("key"), py::arg("pid"), py::arg("name"), py::arg("rank"),
           py::arg("command_line"), py::arg("labels"))
      .def("add_thread", &Encoder::add_thread, py::arg("key"), py::arg("pid"), py::arg("tid"), py::arg("name"),
           py::arg("rank"))
      .def("add_track", &Encoder::add_track, py::arg("key"), py::arg("parent"), py::arg("name"), py::arg("rank"))
      .def("add_counter", &Encoder::add_counter, py::arg("key"), py::arg("parent"), py::arg("name"), py::arg("unit"))
      .def("slices", &encode_slices, py::arg("rows"), py::arg("arrows"))
      .def("counters", &encode_counters, py::arg("rows"))
      .def("finish", &Encoder::finish);
  py::class_<TrackLanes>(module, "TrackLanes")
      .def(py::init<>())
      .def("place", &TrackLanes::place, py::arg("track"), py::arg("start_ns"), py::arg("end_ns"));
  module.attr("PERFETTO_NO_PARENT") = Encoder::kNoParent;
}
