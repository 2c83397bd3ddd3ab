// Longest paths through a graph whose nodes are numbered so that every edge leads to a higher number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ral::trace {

inline constexpr std::int64_t kNoEdge = -1;

struct Edges {
  const std::int32_t* from;
  const std::int32_t* to;
  const std::int64_t* weight;
  std::size_t count;
};

// value[node] becomes the larger of what it was and the best of value[from] + weight over its incoming edges; via[node]
// the edge that decided, or kNoEdge where the first value stays. Of edges that are as good the last one counts, and it
// counts before the first value.
// False where an edge does not lead upwards or names no node; then nothing is promised of value and via.
bool longest_paths(std::size_t nodes, const Edges& edges, std::int64_t* value, std::int64_t* via);

}  // namespace ral::trace
