#include "longest_path.h"

#include <limits>
#include <vector>

namespace ral::trace {

namespace {

// The numbers come from files of others.
std::int64_t clamped_sum(std::int64_t left, std::int64_t right) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(left, right, &sum)) {
    return sum;
  }
  return right < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

bool lead_upwards(std::size_t nodes, const Edges& edges) {
  for (std::size_t edge = 0; edge < edges.count; ++edge) {
    const std::int32_t from = edges.from[edge];
    const std::int32_t to = edges.to[edge];
    if (from < 0 || to <= from || static_cast<std::size_t>(to) >= nodes) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool longest_paths(std::size_t nodes, const Edges& edges, std::int64_t* value, std::int64_t* via) {
  if (!lead_upwards(nodes, edges)) {
    return false;
  }
  // The edges by the node that they lead to, in their order: a counting sort.
  std::vector<std::size_t> begin(nodes + 1, 0);
  for (std::size_t edge = 0; edge < edges.count; ++edge) {
    ++begin[static_cast<std::size_t>(edges.to[edge]) + 1];
  }
  for (std::size_t node = 0; node < nodes; ++node) {
    begin[node + 1] += begin[node];
  }
  std::vector<std::size_t> sorted(edges.count);
  std::vector<std::size_t> next(begin.begin(), begin.end());
  for (std::size_t edge = 0; edge < edges.count; ++edge) {
    sorted[next[static_cast<std::size_t>(edges.to[edge])]++] = edge;
  }
  for (std::size_t node = 0; node < nodes; ++node) {
    via[node] = kNoEdge;
    for (std::size_t place = begin[node]; place < begin[node + 1]; ++place) {
      const std::size_t edge = sorted[place];
      const std::int64_t reached = clamped_sum(value[edges.from[edge]], edges.weight[edge]);
      if (reached >= value[node]) {
        value[node] = reached;
        via[node] = static_cast<std::int64_t>(edge);
      }
    }
  }
  return true;
}

}  // namespace ral::trace
