// Columns that are filled a row at a time and handed over through the Arrow C interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrow_stream.h"

namespace ral::trace {

// Metadata of a column of JSON: one pair, ARROW:extension:name and arrow.json. So the text is not parsed once more.
inline constexpr char kJsonColumn[] = "\x01\0\0\0\x14\0\0\0ARROW:extension:name\x0a\0\0\0arrow.json";

// A batch ends with the row whose text brings it there: so offsets of 32 bits do.
inline constexpr std::size_t kTextABatch = 64 << 20;

// A bit a row: whether it has a value.
class Validity {
 public:
  void reserve(std::size_t rows) { bits_.reserve(rows / 8 + 1); }
  void add(bool valid) {
    if (rows_ % 8 == 0) {
      bits_.push_back(0);
    }
    bits_.back() = static_cast<std::uint8_t>(bits_.back() | static_cast<unsigned>(valid) << (rows_ % 8));
    ++rows_;
    nulls_ += !valid;
  }
  [[nodiscard]] const void* data() const { return nulls_ == 0 ? nullptr : bits_.data(); }
  [[nodiscard]] std::int64_t nulls() const { return nulls_; }

 private:
  std::vector<std::uint8_t> bits_;
  std::size_t rows_ = 0;
  std::int64_t nulls_ = 0;
};

template <typename T>
class NumberColumn {
 public:
  void reserve(std::size_t rows) {
    values_.reserve(rows);
    validity_.reserve(rows);
  }
  void add(T value) { add(true, value); }
  void add(bool given, T value) {
    values_.push_back(value);
    validity_.add(given);
  }
  void add(std::optional<T> value) { add(value.has_value(), value.value_or(T{})); }
  [[nodiscard]] ArrowColumn as(std::string name, const char* format) const {
    return {std::move(name), format, {validity_.data(), values_.data()}, validity_.nulls(), nullptr};
  }

 private:
  std::vector<T> values_;
  Validity validity_;
};

using IntegerColumn = NumberColumn<std::int64_t>;

class TextColumn {
 public:
  void reserve(std::size_t rows) {
    ends_.reserve(rows + 1);
    validity_.reserve(rows);
  }
  void add(std::optional<std::string_view> text) {
    if (text) {
      bytes_.append(*text);
    }
    ends_.push_back(static_cast<std::int32_t>(bytes_.size()));
    validity_.add(text.has_value());
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_.size(); }
  [[nodiscard]] ArrowColumn as(std::string name, const char* metadata = nullptr) const {
    return {std::move(name), "u", {validity_.data(), ends_.data(), bytes_.data()}, validity_.nulls(), metadata};
  }

 private:
  std::string bytes_;
  std::vector<std::int32_t> ends_ = {0};
  Validity validity_;
};

}  // namespace ral::trace
