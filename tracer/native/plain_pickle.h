#pragma once

#include <pybind11/pybind11.h>

namespace ral::trace {

void bind_plain_pickle(pybind11::module_& module);

}  // namespace ral::trace
