// Random numbers of a device.
#pragma once

#include <ATen/core/Generator.h>

namespace ral {

// A generator labelled ral:<index>, over a CPU generator of its own.
at::Generator make_generator(c10::DeviceIndex index);
// The CPU generator inside one that make_generator made; any other generator is returned as it is.
at::Generator cpu_generator_of(const at::Generator& generator);

}  // namespace ral
