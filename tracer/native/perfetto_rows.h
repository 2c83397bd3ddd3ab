// The rows of exporters/drawn.py, which timeline writers take: slices and points, and beside them the ends of arrows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "perfetto_columns.h"

namespace ral::trace::perfetto {

// Positions of the columns of a slice; each further one is an annotation with the column's name, where it is not NULL.
enum SliceColumn : std::size_t { kId, kTrack, kStart, kDuration, kShape, kName, kCategory, kFirstAnnotation };
// Their types, in Arrow's letters.
inline constexpr std::string_view kSliceTypes = "llllluu";

// What a row becomes.
enum Shape : std::int64_t { kSlice = 0, kOpen = 1, kPoint = 2 };

inline std::vector<Column> columns_of(const ColumnStream& rows) {
  std::vector<Column> columns;
  for (std::size_t column = 0; column < rows.columns(); ++column) {
    columns.push_back(rows[column]);
  }
  return columns;
}

// An end of an arrow, and whether it is the arrow's second.
struct ArrowTip {
  std::uint64_t number;
  bool second;
};

// Walks the ends of arrows beside the slices. An arrow points from the slice that begins first to the other.
class ArrowCursor {
 public:
  explicit ArrowCursor(ColumnStream& rows) : rows_(rows) { rows_.expect("ll"); }

  // The next end that belongs to event `id`, if there is one more.
  std::optional<ArrowTip> next(std::int64_t id) {
    if (row_ >= count_ && !load()) {
      return std::nullopt;
    }
    if (event_->integer(row_) != id) {
      return std::nullopt;
    }
    const std::int64_t arrow = number_->integer(row_++);
    const auto [found, first] = open_.try_emplace(arrow, given_ + 1);
    if (first) {
      return ArrowTip{++given_, false};
    }
    const ArrowTip tip{found->second, true};
    open_.erase(found);
    return tip;
  }

 private:
  bool load() {
    if (done_ || !rows_.next()) {
      done_ = true;
      return false;
    }
    row_ = 0;
    count_ = rows_.rows();
    event_ = rows_[0];
    number_ = rows_[1];
    return true;
  }

  ColumnStream& rows_;
  std::optional<Column> event_, number_;
  std::size_t row_ = 0, count_ = 0;
  bool done_ = false;
  std::uint64_t given_ = 0;
  std::unordered_map<std::int64_t, std::uint64_t>
      open_;  // the caller's number of an arrow whose second end is to come: its number here
};

}  // namespace ral::trace::perfetto
