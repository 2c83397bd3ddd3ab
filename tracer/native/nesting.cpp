#include "nesting.h"

#include <vector>

namespace ral::trace {

void nest(const std::int32_t* thread, const std::int64_t* start_ns, const std::int64_t* end_ns, const std::int64_t* id,
          std::size_t rows, std::int64_t tolerance_ns, std::int64_t* parent) {
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < rows; ++i) {
    if (i > 0 && thread[i] != thread[i - 1]) {
      open.clear();
    }
    // A row that starts where another ended is its neighbour, not its child; an instant belongs to the row that it
    // touches.
    while (!open.empty()) {
      const std::size_t top = open.back();
      const bool starts_inside = start_ns[i] < end_ns[top] && end_ns[i] <= end_ns[top] + tolerance_ns;
      const bool touches = start_ns[i] == end_ns[i] && start_ns[i] == end_ns[top] && start_ns[top] < end_ns[top];
      if (starts_inside || touches) {
        break;
      }
      open.pop_back();
    }
    parent[i] = open.empty() ? kNoParent : id[open.back()];
    open.push_back(i);
  }
}

}  // namespace ral::trace
