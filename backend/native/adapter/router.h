// Every operator that no one registered for `ral` comes here: op + device + what its arguments look like → a plan, made
// once and cached, and carried out in one of these ways.
//
//   view       → an alias, no work, no event
//   native     → the vendor's kernel: C code from its library, or ATen's CPU kernel in place
//   reference  → ATen's CPU kernel in place, where the host can address the device's memory
//   composed   → torch composes it of other operators, which are routed one by one
//   cpu        → PyTorch's CPU kernel with copies: a fallback event with the chain of reasons
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ral {

class Device;

// Routes these operators ("aten::add.Tensor") here although torch has composite kernels for them.
void route_operators(const std::vector<std::string>& names);

// What a routed call costs before anything is launched: reading its arguments, and finding the plan that is known for
// them. Means over `count` adds of 4 x 4 on the device. For benchmarks.
struct LookUpTimes {
  double read_ns = 0;
  double find_ns = 0;
};
LookUpTimes time_look_ups(Device& device, std::size_t count);

}  // namespace ral
