// Copies between devices and the host.
#pragma once

#include <ATen/core/Tensor.h>

#include "events.h"
#include "runtime.h"

namespace ral {

// Whether the host waits for a copy: not at all (what it copies from or to belongs to the copy), because the program
// asked, or because a fallback needs it.
enum class SyncReason { kNone, kAsked, kForced };

// What a copy is called where torch did not name it.
const events::Name& copy_from_name();

// self -> destination, either or both on a ral device; converts the dtype, broadcasts, follows strides. In the order of
// the current streams of the devices. `routed` is what torch called.
void copy(const at::Tensor& self, const at::Tensor& destination, const events::Name& routed, SyncReason sync);

// The tensor on the host, with a memory of its own; waits, and emits what copy() emits.
at::Tensor fetch(const at::Tensor& tensor, const events::Name& routed, SyncReason sync);

// A host tensor as a tensor of the device. kNone: nobody writes to it any more; else it is taken along or waited for.
at::Tensor upload(Device& device, const at::Tensor& host, SyncReason sync);

}  // namespace ral
