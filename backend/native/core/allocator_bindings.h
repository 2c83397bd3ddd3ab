// One function of the glue that module.cpp calls.
#pragma once

#include <pybind11/pybind11.h>

namespace ral {

// Adds RegionAllocator, ManualClock and their errors to the module.
void bind_allocator(pybind11::module_& m);

}  // namespace ral
