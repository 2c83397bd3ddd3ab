// All that crosses to Python; typed in ../_native.pyi.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "nesting.h"
#include "record.h"

namespace py = pybind11;
using namespace ral::trace;

namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style>;

Column<std::int64_t> nest_columns(const Column<std::int32_t>& thread, const Column<std::int64_t>& start_ns, const Column<std::int64_t>& end_ns,
                                  const Column<std::int64_t>& id, std::int64_t tolerance_ns) {
  const auto rows = thread.size();
  if (start_ns.size() != rows || end_ns.size() != rows || id.size() != rows) {
    throw py::value_error("nest: all columns must have the same length");
  }
  Column<std::int64_t> parent(rows);
  nest(thread.data(), start_ns.data(), end_ns.data(), id.data(), static_cast<std::size_t>(rows), tolerance_ns, parent.mutable_data());
  return parent;
}

}  // namespace

void bind_perfetto(py::module_& module);

PYBIND11_MODULE(_native, module) {
  py::list kinds;
  for (const auto name : kKindNames) {
    kinds.append(py::str(name.data(), name.size()));
  }
  module.attr("KINDS") = py::tuple(kinds);
  py::dict flags;
  for (const auto& [name, bit] : kFlagNames) {
    flags[py::str(name.data(), name.size())] = bit;
  }
  module.attr("FLAGS") = flags;
  module.def("nest", &nest_columns, py::arg("thread"), py::arg("start_ns"), py::arg("end_ns"), py::arg("id"), py::arg("tolerance_ns") = 0);
  bind_perfetto(module);
}
