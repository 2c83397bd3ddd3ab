#include "allocator_settings.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace ral {

namespace {

constexpr const char* kSplit = "max_split_size_mb";
constexpr const char* kThreshold = "garbage_collection_threshold";
constexpr const char* kRegion = "region_size_mb";
constexpr const char* kFit = "fit";
constexpr unsigned kMegabyteShift = 20;
constexpr std::size_t kMostMegabytes = SIZE_MAX >> (kMegabyteShift + 1);

[[noreturn]] void refuse(const std::string& text, const std::string& reason) {
  throw BadSettings("allocator settings \"" + text + "\": " + reason + "; options are " + kSplit + ":N (N >= 1), " +
                    kThreshold + ":X (0 < X < 1), " + kRegion + ":N (N >= 1) and " + kFit +
                    ":best or first, separated by commas");
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::size_t parse_megabytes(const std::string& text, const std::string& name, const std::string& value) {
  const bool digits = !value.empty() && value.size() <= 15 &&
                      std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::size_t megabytes = digits ? std::stoull(value) : 0;
  if (megabytes == 0 || megabytes > kMostMegabytes) {
    refuse(text, name + " is \"" + value + "\", not a whole number of megabytes");
  }
  return megabytes << kMegabyteShift;
}

Fit parse_fit(const std::string& text, const std::string& value) {
  if (value != "best" && value != "first") {
    refuse(text, std::string(kFit) + " is \"" + value + "\", not best or first");
  }
  return value == "first" ? Fit::kFirst : Fit::kBest;
}

double parse_share(const std::string& text, const std::string& value) {
  char* end = nullptr;
  const double share = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !(share > 0 && share < 1)) {
    refuse(text, std::string(kThreshold) + " is \"" + value + "\", not between 0 and 1");
  }
  return share;
}

}  // namespace

AllocatorSettings parse_settings(const std::string& text) {
  AllocatorSettings settings;
  std::istringstream items(trimmed(text));
  for (std::string part; std::getline(items, part, ',');) {
    const auto colon = part.find(':');
    const std::string name = trimmed(part.substr(0, colon));
    const std::string value = colon == std::string::npos ? "" : trimmed(part.substr(colon + 1));
    if (name == kSplit) {
      settings.max_split_bytes = parse_megabytes(text, name, value);
    } else if (name == kThreshold) {
      settings.garbage_collection_threshold = parse_share(text, value);
    } else if (name == kRegion) {
      settings.region_bytes = parse_megabytes(text, name, value);
    } else if (name == kFit) {
      settings.fit = parse_fit(text, value);
    } else {
      refuse(text, "\"" + name + "\" is no option");
    }
  }
  return settings;
}

std::string to_text(const AllocatorSettings& settings) {
  std::ostringstream text;
  const auto option = [&](const char* name, const auto& value) {
    text << (text.tellp() > 0 ? "," : "") << name << ':' << value;
  };
  if (settings.max_split_bytes != SIZE_MAX) {
    option(kSplit, settings.max_split_bytes >> kMegabyteShift);
  }
  if (settings.garbage_collection_threshold > 0) {
    option(kThreshold, settings.garbage_collection_threshold);
  }
  if (settings.region_bytes != 0) {
    option(kRegion, settings.region_bytes >> kMegabyteShift);
  }
  if (settings.fit == Fit::kFirst) {
    option(kFit, "first");
  }
  return text.str();
}

}  // namespace ral
