// How an allocator behaves, as people write it: "max_split_size_mb:128,garbage_collection_threshold:0.8,fit:first".
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace ral {

// Of several free blocks that are large enough, which one serves a request.
enum class Fit : std::uint8_t {
  kBest,   // the smallest
  kFirst,  // the one in the oldest range, and there at the lowest address
};

struct AllocatorSettings {
  // Free blocks above this are not split: they serve large requests only. SIZE_MAX: all are split.
  std::size_t max_split_bytes = SIZE_MAX;
  // Share of the limit above which unused regions are given back before another is opened. 0: never.
  double garbage_collection_threshold = 0;
  // Length of the first range, instead of the device's own; later ones grow from it. 0: the device's own.
  std::size_t region_bytes = 0;
  Fit fit = Fit::kBest;
};

class BadSettings : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Options that the text does not name have their defaults. Throws BadSettings, which says what is wrong and which
// options there are.
AllocatorSettings parse_settings(const std::string& text);
// What parse_settings takes; options at their defaults are left out.
std::string to_text(const AllocatorSettings& settings);

}  // namespace ral
