// Decimal text to integers, without a float in between.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace ral::trace {

// `text` times 10^shift, rounded half away from zero. None when it is no decimal number or does not fit.
inline std::optional<std::int64_t> scaled_decimal(std::string_view text, int shift) {
  constexpr int kShortDigits = 18;  // fit 64 bits, which are quicker
  constexpr int kMaxDigits = 36;    // fit 128 bits with a digit to spare
  std::size_t i = 0;
  const bool negative = !text.empty() && text[0] == '-';
  i += !text.empty() && (text[0] == '-' || text[0] == '+');
  std::uint64_t head = 0;
  unsigned __int128 value = 0;
  int kept = 0, scale = shift;
  bool any = false, fraction = false;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !fraction) {
      fraction = true;
      continue;
    }
    if (c < '0' || c > '9') {
      break;
    }
    any = true;
    if (kept < kShortDigits) {
      head = head * 10 + static_cast<unsigned>(c - '0');
      value = head;
      kept += head != 0;
      scale -= fraction;
    } else if (kept < kMaxDigits) {
      value = value * 10 + static_cast<unsigned>(c - '0');
      ++kept;
      scale -= fraction;
    } else {
      scale += !fraction;
    }
  }
  if (!any) {
    return std::nullopt;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    const bool down = i < text.size() && text[i] == '-';
    i += i < text.size() && (text[i] == '-' || text[i] == '+');
    int exponent = 0;
    const std::size_t first = i;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
      exponent = exponent < 100'000 ? exponent * 10 + (text[i] - '0') : exponent;
    }
    if (i == first) {
      return std::nullopt;
    }
    scale += down ? -exponent : exponent;
  }
  if (i != text.size()) {
    return std::nullopt;
  }
  constexpr auto kMost = static_cast<unsigned __int128>(std::numeric_limits<std::int64_t>::max());
  for (; scale > 0 && value != 0; --scale) {
    value *= 10;
    if (value > kMost) {
      return std::nullopt;
    }
  }
  unsigned last = 0;
  for (; scale < 0 && (value != 0 || last != 0); ++scale) {
    last = static_cast<unsigned>(value % 10);
    value /= 10;
  }
  value += last >= 5;
  if (value > kMost) {
    return std::nullopt;
  }
  const auto positive = static_cast<std::int64_t>(value);
  return negative ? -positive : positive;
}

// Decimal or 0x... digits as 64 bits: of an unsigned number in two's complement. None where it does not fit.
inline std::optional<std::int64_t> whole_number(std::string_view text, bool is_unsigned) {
  const bool negative = !text.empty() && text[0] == '-';
  std::string_view digits = text.substr(negative);
  unsigned base = 10;
  if (digits.size() > 2 && digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')) {
    base = 16;
    digits.remove_prefix(2);
  }
  if (digits.empty()) {
    return std::nullopt;
  }
  std::uint64_t value = 0;
  for (const char c : digits) {
    const unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                           : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a') + 10
                           : c >= 'A' && c <= 'F' ? static_cast<unsigned>(c - 'A') + 10
                                                  : 16;
    if (digit >= base || __builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
      return std::nullopt;
    }
  }
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (negative ? is_unsigned || value > kMost : !is_unsigned && value > kMost) {
    return std::nullopt;
  }
  return negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

}  // namespace ral::trace
