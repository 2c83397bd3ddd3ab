// Whose a moment is: the time of rows that lie in each other, or run over each other, shared out without counting any
// of it twice.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ral::trace {

// Writes to own[i] the nanoseconds of row i that belong to no row within it. Rows come sorted by thread (or whatever
// they share), then start, then longest first. Each moment is the row's that started last, so that own times are never
// negative and add up to the union of the rows of a thread.
// `tolerance_ns` is what the rows' times are rounded to: a row that ends so much after the row that it lies in keeps
// its time, and the other loses it.
void own_times(const std::int32_t* thread, const std::int64_t* start_ns, const std::int64_t* end_ns, std::size_t rows,
               std::int64_t tolerance_ns, std::int64_t* own);

// Writes to covered[g], for each group, how much time the rows of group[i] = g cover together. Rows come sorted by
// start; `last` is room for as many numbers as `covered`.
void unions(const std::int32_t* group, const std::int64_t* start_ns, const std::int64_t* end_ns, std::size_t rows,
            std::size_t groups, std::int64_t* last, std::int64_t* covered);

}  // namespace ral::trace
