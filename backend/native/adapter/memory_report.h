// What a person is told when a device has no memory left.
#pragma once

#include <string>

#include "runtime.h"

namespace ral {

// In torch's words: what was asked for, what there is, and who holds the most. Not under the allocator's lock.
std::string describe_out_of_memory(Device& device, const OutOfMemory::Facts& facts);

// "1.50 GiB".
std::string format_size(std::size_t bytes);

}  // namespace ral
