#pragma once

#include <pybind11/pybind11.h>

namespace ral::trace {

void bind_program(pybind11::module_& module);
void bind_json_lines(pybind11::module_& module);

}  // namespace ral::trace
