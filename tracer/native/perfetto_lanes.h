// Where slices of one track overlap without nesting, viewers lose some of them: such slices go to further lanes of the track.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace ral::trace::perfetto {

// The end of a slice that never ends: it lasts to the end of the trace.
inline constexpr std::int64_t kNeverEnds = std::numeric_limits<std::int64_t>::max();

// Perfetto's trace processor drops in silence what lies deeper than 255 slices.
inline constexpr std::size_t kMaxDepth = 200;

// start + duration, or kNeverEnds where the sum does not fit.
inline std::int64_t end_of(std::int64_t start_ns, std::int64_t duration_ns) noexcept {
  std::int64_t end = 0;
  return __builtin_add_overflow(start_ns, duration_ns, &end) ? kNeverEnds : end;
}

// The lanes of one track. On each lane a slice either encloses another or does not touch it.
class Lanes {
 public:
  // The first lane on which [start, end] nests. Slices come by start, the longest first where starts are equal.
  std::size_t place(std::int64_t start_ns, std::int64_t end_ns) {
    for (std::size_t lane = 0; lane < open_.size(); ++lane) {
      auto& ends = open_[lane];
      while (!ends.empty() && ends.back() <= start_ns) {
        ends.pop_back();
      }
      if (ends.empty() || (end_ns <= ends.back() && ends.size() < kMaxDepth)) {
        ends.push_back(end_ns);
        return lane;
      }
    }
    open_.push_back({end_ns});
    return open_.size() - 1;
  }

 private:
  std::vector<std::vector<std::int64_t>> open_;  // for each lane the ends of its open slices, the innermost last
};

}  // namespace ral::trace::perfetto
