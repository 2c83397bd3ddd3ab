// Operators that a Python class runs: `@register_backend` hands us one callable a vendor.
#pragma once

#include <ATen/core/stack.h>

#include <string>

#include "events.h"
#include "operator.h"
#include "runtime.h"

namespace pybind11 {
class module_;
}

namespace ral {

// Quick: for each launch.
bool has_python_backend(const Device& device) noexcept;

// Calls the vendor's Python class with CPU aliases of the operator's tensors. True: its results are on the stack in place
// of the arguments. False: it is not the class's, `reason` says so, and the stack is as it was. What the class raises
// becomes the operator's error, under the class's name. Waits for the device first; takes the GIL.
bool dispatch_python(const Operator& op, Device& device, Stack& stack, const events::Launch& launch,
                     std::string* reason);

// Adds set_python_backend(vendor, dispatch) to the module.
void bind_python_backends(pybind11::module_& m);

}  // namespace ral
