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
  [[nodiscard]] const void* data() const { return nulls_ == 0 ? nullptr : bits_.data(); }
  [[nodiscard]] std::int64_t nulls() const { return nulls_; }
  [[nodiscard]] bool all_null() const { return nulls_ == static_cast<std::int64_t>(rows_); }

 private:
  std::vector<std::uint8_t> bits_;
  std::size_t rows_ = 0;
  std::int64_t nulls_ = 0;
};

// A column in which no row has a value costs nothing.
inline ArrowColumn nothing(std::string name, const Validity& validity) {
  return {std::move(name), "n", {}, validity.nulls(), nullptr};
}

class IntegerColumn {
 public:
  void add(std::optional<std::int64_t> value) {
    values_.push_back(value.value_or(0));
    validity_.add(value.has_value());
  }
  [[nodiscard]] ArrowColumn as(std::string name, const char* format) const {
    if (validity_.all_null()) {
      return nothing(std::move(name), validity_);
    }
    return {std::move(name), format, {validity_.data(), values_.data()}, validity_.nulls(), nullptr};
  }

 private:
  std::vector<std::int64_t> values_;
  Validity validity_;
};

class TextColumn {
 public:
  void add(bool given, std::string_view text) {
    if (given) {
      bytes_.append(text);
    }
    ends_.push_back(static_cast<std::int32_t>(bytes_.size()));
    validity_.add(given);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_.size(); }
  [[nodiscard]] ArrowColumn as(std::string name, const char* metadata = nullptr) const {
    if (validity_.all_null()) {
      return nothing(std::move(name), validity_);
    }
    return {std::move(name), "u", {validity_.data(), ends_.data(), bytes_.data()}, validity_.nulls(), metadata};
  }

 private:
  std::string bytes_;
  std::vector<std::int32_t> ends_ = {0};
  Validity validity_;
};

}  // namespace ral::trace
