// `sim` as a plugin: what the modelled accelerator is, from the environment's RAL_SIM.
//
//   RAL_SIM="memory_mb=4096,copy_gb_per_s=12,copy_latency_us=5,launch_us=1,clock=virtual,domains=2,stripe_kb=64"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

#include "ral_plugin.h"

namespace {

constexpr int kMaxDevices = 16;

// What RAL_SIM may set: a name, the limits of its number, and the field that the number goes to, times `scale`.
struct Setting {
  const char* name;
  double least;
  double most;
  double scale;
  void (*set)(ral_descriptor&, std::uint64_t);
};

constexpr double kMiB = 1024.0 * 1024.0;
constexpr Setting kSettings[] = {
    {"memory_mb", 1, kMiB, kMiB, [](ral_descriptor& d, std::uint64_t n) { d.memory_bytes = n; }},
    {"memory_gb_per_s", 0, 1e6, 1e9, [](ral_descriptor& d, std::uint64_t n) { d.memory_bytes_per_s = n; }},
    {"copy_gb_per_s", 0, 1e6, 1e9, [](ral_descriptor& d, std::uint64_t n) { d.copy_bytes_per_s = n; }},
    {"copy_latency_us", 0, 1e6, 1e3, [](ral_descriptor& d, std::uint64_t n) { d.copy_latency_ns = n; }},
    {"launch_us", 0, 1e6, 1e3, [](ral_descriptor& d, std::uint64_t n) { d.launch_ns = n; }},
    {"domains", 1, RAL_MAX_DOMAINS, 1,
     [](ral_descriptor& d, std::uint64_t n) { d.domains = static_cast<std::uint32_t>(n); }},
    {"stripe_kb", 1, kMiB, 1024, [](ral_descriptor& d, std::uint64_t n) { d.stripe_bytes = n; }},
    {"handles", 1, RAL_MAX_HANDLES, 1,
     [](ral_descriptor& d, std::uint64_t n) { d.max_handles_pf = static_cast<std::uint32_t>(n); }},
    {"handles_vf", 1, RAL_MAX_HANDLES, 1,
     [](ral_descriptor& d, std::uint64_t n) { d.max_handles_vf = static_cast<std::uint32_t>(n); }},
};

// By default copies take about what a PCIe link takes, and launches nothing.
ral_descriptor default_device() {
  ral_descriptor d = {};
  d.struct_size = sizeof d;
  std::snprintf(d.name, sizeof d.name, "sim accelerator model");
  d.memory_bytes = std::uint64_t{4} << 30;
  d.alignment = 128;
  d.stripe_bytes = std::uint64_t{1} << 20;
  d.max_handles_pf = 16;
  d.max_handles_vf = 8;
  d.domains = 1;
  d.preferred_layout = RAL_LAYOUT_NCHW;
  d.dtypes = RAL_ALL_DTYPES;
  d.pipelines = RAL_PIPELINE_COMPUTE | RAL_PIPELINE_COPY_IN | RAL_PIPELINE_COPY_OUT;
  d.copy_latency_ns = 2'000;
  d.copy_bytes_per_s = 16'000'000'000;
  return d;
}

[[noreturn]] void refuse(const std::string& item, const std::string& reason) {
  throw std::invalid_argument("RAL_SIM: \"" + item + "\" " + reason);
}

std::string known_settings() {
  std::string names = "clock";
  for (const Setting& setting : kSettings) {
    names += std::string(", ") + setting.name;
  }
  return names;
}

double parse_number(const std::string& item, const std::string& text, const Setting& setting) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= setting.least && value <= setting.most)) {
    std::ostringstream limits;
    limits << "must be a number from " << setting.least << " to " << setting.most;
    refuse(item, limits.str());
  }
  return value;
}

void apply_clock(const std::string& item, const std::string& value, ral_descriptor& device) {
  if (value != "virtual" && value != "real") {
    refuse(item, "must be clock=real or clock=virtual");
  }
  device.flags = value == "virtual" ? RAL_VIRTUAL_CLOCK : 0;
}

void apply(const std::string& item, ral_descriptor& device) {
  const auto equals = item.find('=');
  const std::string name = item.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
  if (name == "clock") {
    apply_clock(item, value, device);
    return;
  }
  for (const Setting& setting : kSettings) {
    if (name == setting.name) {
      setting.set(device, static_cast<std::uint64_t>(std::llround(parse_number(item, value, setting) * setting.scale)));
      return;
    }
  }
  refuse(item, "is no setting; there are " + known_settings());
}

ral_descriptor parse(const char* text) {
  ral_descriptor device = default_device();
  std::istringstream items(text == nullptr ? "" : text);
  for (std::string item; std::getline(items, item, ',');) {
    apply(item, device);
  }
  return device;
}

// Read once, by init().
ral_descriptor the_device;

int init(const ral_host* host, char* error, size_t error_size) {
  (void)host;
  try {
    the_device = parse(std::getenv("RAL_SIM"));
    return RAL_OK;
  } catch (const std::invalid_argument& refused) {
    std::snprintf(error, error_size, "%s", refused.what());
    return RAL_FAILED;
  }
}

int device_count() { return kMaxDevices; }

int describe(int32_t index, ral_descriptor* descriptor) {
  if (index < 0 || index >= kMaxDevices) {
    return RAL_FAILED;
  }
  const std::uint32_t room = descriptor->struct_size;
  std::memcpy(descriptor, &the_device, room < sizeof the_device ? room : sizeof the_device);
  return RAL_OK;
}

}  // namespace

extern "C" RAL_PLUGIN_EXPORT const ral_plugin* ral_plugin_entry() {
  static const ral_plugin table = {
      sizeof(ral_plugin),
      RAL_PLUGIN_ABI_VERSION,
      "sim",
      "1.0",
      init,
      nullptr,
      device_count,
      describe,
      nullptr,
      nullptr,
      nullptr,
  };
  return &table;
}
