// What a call brings out, without running it on the device: asked of torch once for each look of the arguments.
#pragma once

#include <optional>

#include "call.h"
#include "plan.h"

namespace ral {

// From torch's CPU kernel on zeros or from its Meta kernel. Nothing where the layout depends on the data. Raises what
// torch raises for arguments that do not fit.
std::optional<Layout> layout_without_running(const Call& call);

// Raises what PyTorch's CPU kernel raises for arguments that share their memory like that.
void refuse_as_the_cpu_does(const Call& call);

// Kernels may take it that an output shares memory with an input only as a whole, and never with itself.
bool writes_into_what_it_reads(const Call& call);

}  // namespace ral
