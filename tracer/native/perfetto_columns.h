// Columns as they come from DuckDB: batches of an Arrow C stream (https://arrow.apache.org/docs/format/CStreamInterface.html),
// read without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "arrow_abi.h"

namespace ral::trace::perfetto {

// One column of the current batch. Asking a column for a type that it does not have is the caller's error: see ColumnStream::expect.
class Column {
 public:
  explicit Column(const ArrowArray& array) noexcept
      : valid_(static_cast<const std::uint8_t*>(array.buffers[0])),
        values_(array.buffers[1]),
        characters_(array.n_buffers > 2 ? static_cast<const char*>(array.buffers[2]) : nullptr),
        offset_(static_cast<std::size_t>(array.offset)) {}

  bool null(std::size_t row) const noexcept {
    const std::size_t bit = row + offset_;
    return valid_ != nullptr && ((valid_[bit / 8] >> (bit % 8)) & 1) == 0;
  }

  std::int64_t integer(std::size_t row) const noexcept {
    return static_cast<const std::int64_t*>(values_)[row + offset_];
  }

  double real(std::size_t row) const noexcept { return static_cast<const double*>(values_)[row + offset_]; }

  std::string_view text(std::size_t row) const noexcept {
    const auto* ends = static_cast<const std::int32_t*>(values_) + row + offset_;
    return {characters_ + ends[0], static_cast<std::size_t>(ends[1] - ends[0])};
  }

 private:
  const std::uint8_t* valid_;  // one bit a row; nullptr: no NULLs
  const void* values_;         // of text: where each row ends
  const char* characters_;
  std::size_t offset_;
};

// The column types that cross here, by Arrow's format letters: BIGINT, DOUBLE, VARCHAR, BLOB.
inline constexpr char kInteger = 'l';
inline constexpr char kReal = 'g';
inline constexpr char kText = 'u';
inline constexpr char kBytes = 'z';

// Owns a stream and its current batch. Throws std::runtime_error with the stream's own words.
class ColumnStream {
 public:
  // Takes the stream over, as the interface asks: the source is left released.
  explicit ColumnStream(ArrowArrayStream& source) : stream_(source) {
    source.release = nullptr;
    if (stream_.get_schema(&stream_, &schema_) != 0) {
      const std::string why = error();
      stream_.release(&stream_);
      throw std::runtime_error(why);
    }
  }
  ColumnStream(const ColumnStream&) = delete;
  ColumnStream& operator=(const ColumnStream&) = delete;
  ~ColumnStream() {
    drop_batch();
    if (schema_.release != nullptr) {
      schema_.release(&schema_);
    }
    stream_.release(&stream_);
  }

  // Moves on to the next batch that has rows; false at the end.
  bool next() {
    do {
      drop_batch();
      if (stream_.get_next(&stream_, &batch_) != 0) {
        throw std::runtime_error(error());
      }
    } while (batch_.release != nullptr && batch_.length == 0);
    return batch_.release != nullptr;
  }

  std::size_t rows() const noexcept { return static_cast<std::size_t>(batch_.length); }
  std::size_t columns() const noexcept { return static_cast<std::size_t>(schema_.n_children); }
  std::string_view name(std::size_t column) const noexcept { return schema_.children[column]->name; }
  char type(std::size_t column) const noexcept { return schema_.children[column]->format[0]; }
  Column operator[](std::size_t column) const noexcept { return Column(*batch_.children[column]); }

  // Throws std::runtime_error unless the first columns have these types: one letter a column.
  void expect(std::string_view types) const {
    for (std::size_t column = 0; column < types.size(); ++column) {
      if (column >= columns() || type(column) != types[column]) {
        throw std::runtime_error("column " + std::to_string(column) + " should have the Arrow type " + types[column]);
      }
    }
  }

 private:
  std::string error() {
    const char* text = stream_.get_last_error(&stream_);
    return text == nullptr ? "the query failed" : text;
  }

  void drop_batch() noexcept {
    if (batch_.release != nullptr) {
      batch_.release(&batch_);
    }
    batch_.release = nullptr;
  }

  ArrowArrayStream stream_;
  ArrowSchema schema_{};
  ArrowArray batch_{};
};

}  // namespace ral::trace::perfetto
