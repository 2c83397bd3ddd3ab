// One function of the glue that module.cpp calls.
#pragma once

#include <pybind11/pybind11.h>

namespace ral {

// Adds what backend/memory.py needs of the devices' allocators.
void bind_memory(pybind11::module_& m);

}  // namespace ral
