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

// A bit a row: whether it has a value.
class Validity {
 public:
  void add(bool valid) {
    if (rows_ % 8 == 0) {
      bits_.push_back(0);
    }
    bits_.back() = static_cast<std::uint8_t>(bits_.back() | static_cast<unsigned>(valid) << (rows_ % 8));
    ++rows_;
    nulls_ += !valid;
  }
  // So many rows without a value, where there are no others yet.
  void begin_with_nulls(std::size_t rows) {
    bits_.assign((rows + 7) / 8, 0);
    rows_ = rows;
    nulls_ = static_cast<std::int64_t>(rows);
  }
  [[nodiscard]] const void* data() const { return nulls_ == 0 ? nullptr : bits_.data(); }
  [[nodiscard]] std::int64_t nulls() const { return nulls_; }

 private:
  std::vector<std::uint8_t> bits_;
  std::size_t rows_ = 0;
  std::int64_t nulls_ = 0;
};

// A column in which no row has a value costs nothing: its rows are only counted until one has.
inline ArrowColumn nothing(std::string name, std::size_t rows) {
  return {std::move(name), "n", {}, static_cast<std::int64_t>(rows), nullptr};
}

class IntegerColumn {
 public:
  void add(std::optional<std::int64_t> value) {
    if (values_.empty()) {
      if (!value) {
        ++nulls_first_;
        return;
      }
      values_.resize(nulls_first_);
      validity_.begin_with_nulls(nulls_first_);
    }
    values_.push_back(value.value_or(0));
    validity_.add(value.has_value());
  }
  [[nodiscard]] ArrowColumn as(std::string name, const char* format) const {
    if (values_.empty()) {
      return nothing(std::move(name), nulls_first_);
    }
    return {std::move(name), format, {validity_.data(), values_.data()}, validity_.nulls(), nullptr};
  }

 private:
  std::size_t nulls_first_ = 0;  // rows before the first one with a value
  std::vector<std::int64_t> values_;
  Validity validity_;
};

class TextColumn {
 public:
  void add(bool given, std::string_view text) {
    if (ends_.empty()) {
      if (!given) {
        ++nulls_first_;
        return;
      }
      ends_.resize(nulls_first_ + 1);
      validity_.begin_with_nulls(nulls_first_);
    }
    if (given) {
      bytes_.append(text);
    }
    ends_.push_back(static_cast<std::int32_t>(bytes_.size()));
    validity_.add(given);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_.size(); }
  [[nodiscard]] ArrowColumn as(std::string name, const char* metadata = nullptr) const {
    if (ends_.empty()) {
      return nothing(std::move(name), nulls_first_);
    }
    return {std::move(name), "u", {validity_.data(), ends_.data(), bytes_.data()}, validity_.nulls(), metadata};
  }

 private:
  std::string bytes_;
  std::size_t nulls_first_ = 0;
  std::vector<std::int32_t> ends_;
  Validity validity_;
};

}  // namespace ral::trace
