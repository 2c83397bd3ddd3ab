// The outputs of operators that are neither in place nor structured: torch does not say their shape before it runs
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "router.h"

namespace ral {

// Makes the outputs of this call (an undefined tensor where one is not wanted). Nothing: no rule for the operator, or
// the rule does not cover these arguments.
std::optional<std::vector<at::Tensor>> make_outputs(const std::string& op, Device& device, const Stack& stack,
                                                    std::size_t argument_count);
// An out= variant to which torch hands an output that is still empty, though its shape is that of the first argument.
bool has_empty_output(const std::string& op);

}  // namespace ral
