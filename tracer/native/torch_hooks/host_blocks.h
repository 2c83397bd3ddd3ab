// Allocations of the host's memory through torch's CPU allocator.
#pragma once

#include "writer.h"

namespace ral::trace {

// Puts ourselves before torch's CPU allocator where kHostBlocks is wanted, and takes us away again where it is not.
// Blocks that came through us are given back correctly ever after. Under the caller's lock; other threads may allocate
// meanwhile.
void watch_host_blocks(const WriterApi& api, std::uint32_t details);

}  // namespace ral::trace
