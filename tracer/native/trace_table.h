// The events of a scanned trace, in memory until it is known what they mean: a few integers a row, what many rows have
// in common once, and the text of `args`, which goes to a file where it is too much.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "arrow_stream.h"
#include "files.h"
#include "trace_columns.h"

namespace ral::trace {

using Row = std::uint32_t;  // counted from 0, in the order of the file

// A member of `args` that gets a column of its own, and is left out of the text of `args`.
struct ArgField {
  enum class Type : std::uint8_t { kInt, kUint, kText, kLabel };
  std::string key;
  std::string column;      // several keys may fill one column
  Type type = Type::kInt;  // kLabel: an integer that many rows have in common
};

// Texts, each once.
class Texts {
 public:
  static constexpr std::uint32_t kNone = 0;
  // Numbers begin with 1.
  std::uint32_t number(std::string_view text);
  [[nodiscard]] std::string_view operator[](std::uint32_t number) const { return *all_[number - 1]; }
  [[nodiscard]] std::size_t size() const { return all_.size(); }

 private:
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::vector<const std::string*> all_;
};

// Integers of rows, of which many, or the most, have none.
class RowIntegers {
 public:
  void set(Row row, std::int64_t value);
  [[nodiscard]] bool has(Row row) const { return row < values_.size() && (given_[row / 64] >> row % 64 & 1) != 0; }
  [[nodiscard]] std::optional<std::int64_t> get(Row row) const {
    return has(row) ? std::optional(values_[row]) : std::nullopt;
  }
  // Of a row that has one.
  [[nodiscard]] std::int64_t operator[](Row row) const { return values_[row]; }
  void unset(Row row) { given_[row / 64] &= ~(std::uint64_t{1} << row % 64); }
  [[nodiscard]] bool any() const { return !values_.empty(); }

 private:
  std::vector<std::int64_t> values_;
  std::vector<std::uint64_t> given_;
};

// Texts that few rows have.
class RowTexts {
 public:
  void add(Row row, std::string_view text);
  [[nodiscard]] std::optional<std::string_view> get(Row row) const;
  [[nodiscard]] bool any() const { return !rows_.empty(); }

 private:
  std::vector<Row> rows_;
  std::vector<std::size_t> ends_;
  std::string bytes_;
};

// Long texts of all rows, most of which go to a file in `folder` once there are more than `most` bytes of them. Throws
// std::system_error where the file cannot be written or read.
class SpillingTexts {
 public:
  SpillingTexts(std::string folder, std::size_t most) : folder_(std::move(folder)), most_(most) {}
  void add(Row row, std::string_view text);
  // Valid until the next call. Quick for rows in order.
  [[nodiscard]] std::optional<std::string_view> get(Row row);
  [[nodiscard]] bool any() const { return !chunks_.empty(); }

 private:
  struct Chunk {
    Row first = 0;
    std::vector<std::uint32_t> ends;  // of the rows from `first` on; the top bit: it has none
    std::string bytes;
    std::int64_t at = -1;  // in the file
    std::size_t size = 0;
  };
  void spill(Chunk& chunk);
  const char* bytes_of(const Chunk& chunk);

  std::string folder_;
  std::size_t most_;
  std::size_t held_ = 0;
  std::vector<Chunk> chunks_;
  File file_;
  std::int64_t file_end_ = 0;
  std::size_t current_ = 0;  // chunk that was read last
  const Chunk* loaded_ = nullptr;
  std::string loaded_bytes_;
};

// What many rows have in common.
struct Label {
  std::uint32_t group = 0;
  std::uint32_t spot = 0;  // which values of the fields kLabel
  std::optional<std::string_view> name;
  std::uint64_t rows = 0;
  std::uint64_t timed = 0;  // of them, those that have a time
};

class TraceTable {
 public:
  static constexpr std::int64_t kNone = INT64_MIN;  // no time or duration is that
  using Spot = std::vector<std::optional<std::int64_t>>;

  TraceTable(const std::vector<ArgField>& fields, std::string spill_folder, std::size_t most_text);

  [[nodiscard]] const std::vector<std::string>& columns() const { return columns_; }
  [[nodiscard]] const std::vector<ArgField::Type>& types() const { return types_; }
  // Which of columns() a field fills, and its place among those of its kind: spot, integers, texts.
  [[nodiscard]] std::size_t column_of(std::string_view name) const;
  [[nodiscard]] std::size_t place_of(std::size_t column) const { return places_[column]; }
  [[nodiscard]] std::size_t spot_size() const { return spot_size_; }

  std::uint32_t spot(const Spot& values);
  std::uint32_t label(std::uint32_t group, std::uint32_t spot, bool named, std::string_view name);
  Row add(std::uint32_t label, std::int64_t ts_ns, std::int64_t dur_ns);
  // Rows before `first` are of a list that another supersedes. Counts the rows of labels.
  void finish(Row first);

  [[nodiscard]] Row rows() const { return static_cast<Row>(label_of.size()); }
  [[nodiscard]] Row first() const { return first_; }
  [[nodiscard]] std::size_t labels() const { return labels_.size(); }
  [[nodiscard]] Label label(std::uint32_t number) const;
  [[nodiscard]] const Spot& spot(std::uint32_t number) const { return spots_[number]; }

  std::vector<std::uint32_t> label_of;  // a row
  std::vector<std::int64_t> ts_ns, dur_ns;
  std::vector<RowIntegers> integers;                     // a column
  std::vector<std::vector<std::uint32_t>> text_numbers;  // a column, and row up to the last that has one
  std::vector<Texts> texts;
  RowTexts id, binding;
  SpillingTexts args;

 private:
  struct Stored {
    std::uint32_t group, spot;
    std::uint64_t name_at;
    std::uint32_t name_size;  // kUnnamed: none
    std::uint32_t hash;
    std::uint64_t rows, timed;
  };
  static constexpr std::uint32_t kUnnamed = UINT32_MAX;
  [[nodiscard]] std::string_view name_of(const Stored& one) const {
    return std::string_view(names_).substr(one.name_at, one.name_size == kUnnamed ? 0 : one.name_size);
  }
  void grow();

  std::vector<std::string> columns_;
  std::vector<ArgField::Type> types_;
  std::vector<std::size_t> places_;
  std::size_t spot_size_ = 0;
  Row first_ = 0;
  std::vector<Stored> labels_;
  std::vector<std::uint32_t> slots_;  // of a hash table: label + 1, or 0
  std::string names_;
  std::vector<Spot> spots_;
  std::unordered_map<std::string, std::uint32_t> spot_numbers_;
  std::uint32_t recent_spot_ = 0;
};

// The events of some groups as they stand in the file: n, grp, and those of the columns `wanted` that have values.
std::unique_ptr<ArrowSource> raw_rows(std::shared_ptr<TraceTable> table, std::vector<bool> groups,
                                      std::vector<std::string> wanted);

}  // namespace ral::trace
