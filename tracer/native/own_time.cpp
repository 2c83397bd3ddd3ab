#include "own_time.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace ral::trace {
namespace {

struct Rows {
  const std::int64_t* start_ns;
  const std::int64_t* end_ns;
  std::int64_t* own;
};

// Of rows that lie in each other: each has its duration, less those of its children. False: they run over each other.
bool nested(const Rows& rows, std::size_t begin, std::size_t end, std::int64_t tolerance_ns,
            std::vector<std::size_t>& open, std::vector<std::int64_t>& parent) {
  open.clear();
  for (std::size_t i = begin; i < end; ++i) {
    while (!open.empty()) {
      const std::size_t top = open.back();
      if (rows.start_ns[i] < rows.end_ns[top]) {
        if (rows.end_ns[i] <= rows.end_ns[top] + tolerance_ns) {
          break;
        }
        if (rows.start_ns[i] < rows.end_ns[top] - tolerance_ns) {
          return false;
        }
      }
      open.pop_back();
    }
    parent[i - begin] = open.empty() ? -1 : static_cast<std::int64_t>(open.back());
    rows.own[i] = rows.end_ns[i] - rows.start_ns[i];
    open.push_back(i);
  }
  // A row comes after the row that it lies in, so that from the last to the first each has all its children's time.
  for (std::size_t i = end; i-- > begin;) {
    const std::int64_t above = parent[i - begin];
    if (above >= 0) {
      rows.own[above] -= rows.end_ns[i] - rows.start_ns[i];
    }
  }
  // What rounding took from a row that had it not, the row around it has to give.
  for (std::size_t i = end; i-- > begin;) {
    const std::int64_t missing = std::min<std::int64_t>(rows.own[i], 0);
    rows.own[i] -= missing;
    if (missing < 0 && parent[i - begin] >= 0) {
      rows.own[parent[i - begin]] += missing;
    }
  }
  return true;
}

// Of rows in any order of ends: the open ones lie on a stack, the last started on top.
void swept(const Rows& rows, std::size_t begin, std::size_t end, std::vector<std::size_t>& open) {
  open.clear();
  std::int64_t now = 0;
  const auto advance = [&](std::int64_t until) {
    while (!open.empty() && now < until) {
      const std::size_t top = open.back();
      const std::int64_t stop = std::min(rows.end_ns[top], until);
      if (stop > now) {
        rows.own[top] += stop - now;
        now = stop;
      }
      if (rows.end_ns[top] <= now) {
        open.pop_back();
      }
    }
  };
  for (std::size_t i = begin; i < end; ++i) {
    rows.own[i] = 0;
    advance(rows.start_ns[i]);
    now = rows.start_ns[i];
    open.push_back(i);
  }
  advance(std::numeric_limits<std::int64_t>::max());
}

}  // namespace

void own_times(const std::int32_t* thread, const std::int64_t* start_ns, const std::int64_t* end_ns, std::size_t rows,
               std::int64_t tolerance_ns, std::int64_t* own) {
  const Rows all{start_ns, end_ns, own};
  std::vector<std::size_t> open;
  std::vector<std::int64_t> parent;
  for (std::size_t begin = 0, end = 0; begin < rows; begin = end) {
    end = begin + 1;
    while (end < rows && thread[end] == thread[begin]) {
      ++end;
    }
    parent.resize(end - begin);
    if (!nested(all, begin, end, tolerance_ns, open, parent)) {
      swept(all, begin, end, open);
    }
  }
}

void unions(const std::int32_t* group, const std::int64_t* start_ns, const std::int64_t* end_ns, std::size_t rows,
            std::size_t groups, std::int64_t* last, std::int64_t* covered) {
  std::fill_n(last, groups, std::numeric_limits<std::int64_t>::min());
  std::fill_n(covered, groups, 0);
  for (std::size_t i = 0; i < rows; ++i) {
    const std::int32_t g = group[i];
    const std::int64_t from = std::max(start_ns[i], last[g]);
    if (end_ns[i] > from) {
      covered[g] += end_ns[i] - from;
      last[g] = end_ns[i];
    }
  }
}

}  // namespace ral::trace
