// How the memory of a vendor's device is laid out in this process.
#pragma once

#include "allocator.h"
#include "devices.h"

namespace ral {

// From what the vendor says, and from two variables of the environment: RAL_MODE ("pf", or "vf" for a virtual function,
// which has fewer region handles) and RAL_ALLOC_CONF (AllocatorSettings as a text). Throws BadSettings.
AllocatorConfig memory_config(const VendorInfo& vendor);

}  // namespace ral
