// Vendors' shared libraries: opened, asked, checked, and then vendors like any other. All or nothing: a library that is
// refused leaves nothing behind but its mapping.
#pragma once

#include <stdexcept>
#include <string>

#include "devices.h"
#include "ral_plugin.h"

namespace ral {

// Why a plugin cannot be used: a code for programs, and words. `ralctl plugin-status` shows both.
class PluginError : public std::runtime_error {
 public:
  PluginError(std::string code, const std::string& text) : std::runtime_error(text), code_(std::move(code)) {}
  // MISSING_DEPS, NO_LIBRARY, NO_SYMBOL, BAD_ABI, BAD_DESCRIPTOR, INIT_FAILED
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

// Opens the library and adds its vendor to Vendors. The same library again gives the same vendor. `expected_name`: what
// the vendor must call itself. Throws PluginError.
const Vendor& load_plugin(const std::string& library, const std::string& expected_name);

// What is inconsistent about a descriptor, or an empty text.
std::string descriptor_fault(const ral_descriptor& descriptor);
// Only for a descriptor without fault.
VendorInfo to_vendor_info(const std::string& vendor, const ral_descriptor& descriptor);
// A copy of what the writer's version of a struct holds; what that did not know is zero.
ral_descriptor read_descriptor(const ral_descriptor& written);

// Is it a name that RAL_DEVICES can hold: a lower-case letter, then lower-case letters, digits and _?
bool is_vendor_name(const std::string& name);

}  // namespace ral
