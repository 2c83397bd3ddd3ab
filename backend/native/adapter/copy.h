// Copies between devices and the host.
#pragma once

#include <ATen/core/Tensor.h>

#include "events.h"
#include "runtime.h"

namespace ral {

enum class SyncReason { kNone, kAsked, kForced };

// self -> destination, either or both on a ral device; converts the dtype, broadcasts, follows strides. `routed` is
// what torch called. A copy to the host blocks: `sync` says whether the program asked for that wait.
void copy(const at::Tensor& self, const at::Tensor& destination, const events::Name& routed, SyncReason sync);

// The tensor on the host, with a memory of its own; emits what copy() emits.
at::Tensor fetch(const at::Tensor& tensor, const events::Name& routed, SyncReason sync);

}  // namespace ral
