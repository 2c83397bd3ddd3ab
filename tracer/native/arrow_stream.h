// The Arrow C data and stream interfaces (https://arrow.apache.org/docs/format/CStreamInterface.html), as far as
// Columns need them.
#pragma once

#include <cstdint>
#include <memory>

#include "arrow_abi.h"
#include "columns.h"

namespace ral::trace {

// A stream of one batch. The columns live as long as any array that points into them.
void export_stream(std::shared_ptr<const Columns> columns, ArrowArrayStream* out);

}  // namespace ral::trace
