#pragma once

#include <pybind11/pybind11.h>

namespace ral {

void bind_replay(pybind11::module_& m);

}  // namespace ral
