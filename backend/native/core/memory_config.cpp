#include "memory_config.h"

#include <cstdlib>

namespace ral {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool virtual_function() {
  const std::string mode = variable("RAL_MODE");
  if (!mode.empty() && mode != "pf" && mode != "vf") {
    throw BadSettings("RAL_MODE=\"" + mode + "\" is no mode; it is pf (physical function) or vf (virtual function)");
  }
  return mode == "vf";
}

}  // namespace

AllocatorConfig memory_config(const VendorInfo& vendor) {
  AllocatorConfig config;
  config.capacity = vendor.memory_bytes;
  config.max_regions = virtual_function() ? vendor.max_regions_vf : vendor.max_regions;
  config.alignment = vendor.alignment;
  config.striping = {vendor.domains, vendor.stripe_bytes};
  config.settings = parse_settings(variable("RAL_ALLOC_CONF"));
  return config;
}

}  // namespace ral
