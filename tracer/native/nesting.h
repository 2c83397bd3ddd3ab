// Which host row encloses which: the parent of a row is the innermost row of its thread that contains it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ral::trace {

inline constexpr std::int64_t kNoParent = -1;

// Rows come sorted by thread, then start, then longest first. `end` of an unknown duration equals its start.
// `tolerance_ns` lets a child overrun its parent's end by a rounding error and still be its child. Writes the id of
// each row's parent, or kNoParent, to parent[i].
void nest(const std::int32_t* thread, const std::int64_t* start_ns, const std::int64_t* end_ns, const std::int64_t* id,
          std::size_t rows, std::int64_t tolerance_ns, std::int64_t* parent);

}  // namespace ral::trace
