// Kernels that Inductor makes of an operator's decomposition, for calls that would otherwise go to the CPU with copies.
// Off until somebody switches it on: the first call of each kind waits for a compiler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "call.h"
#include "decision.h"
#include "events.h"

namespace pybind11 {
class module_;
}

namespace ral {

bool compiled_on() noexcept;
void set_compiled(bool on) noexcept;

// Runs the call on the device's compute pipeline, with the results on the stack in place of the arguments. The first call
// that looks like this makes the kernel, or takes it from the cache on disk, on the calling thread. False: there is no such
// kernel, nothing was done, `reason` says why.
bool run_compiled(Call& call, const Decision& decision, Stack& stack, events::Launch& launch, std::string* reason);

// What came of making a kernel.
struct MadeKernel {
  std::string library;         // empty: there is none
  std::string refused;         // why not
  std::uint64_t spent_ns = 0;  // 0: it was in the cache
};
// Asks compiled.py for a kernel that makes what the layout says. Takes the GIL.
MadeKernel make_kernel(const Call& call, const Layout& layout);

// Adds set_compiled(), compiled_on() and set_compiler() to the module.
void bind_compiled(pybind11::module_& m);

}  // namespace ral
