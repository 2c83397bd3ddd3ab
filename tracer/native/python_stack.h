// The Python stack of the calling thread, as a node of the process's stack table.
#pragma once

#include <cstdint>

namespace ral::trace {

// For Writer::set_python_stack. 0: the thread runs no Python, the interpreter ends, there are subinterpreters, or there is
// no room. Where the stack was seen before on this thread it takes no GIL (on Pythons whose frames we know); where not it
// does, so: under no lock. Innermost kMaxStackFrames lines. May be called again from inside itself.
std::uint32_t python_stack() noexcept;

// Reads frames through Python's public API, as on Pythons whose frames we do not know.
void use_public_frames(bool use) noexcept;

}  // namespace ral::trace
