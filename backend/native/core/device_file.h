// What a process says about its devices to others of its user: a small JSON file, read by `ralctl list-devices`.
#pragma once

#include <string>
#include <vector>

#include "devices.h"

namespace ral {

// The text as a JSON string.
std::string json_text(const std::string& text);

// Replaces the file whole, with mode 0600. Throws std::runtime_error that names it.
void write_device_file(const std::string& path, const std::vector<DeviceInfo>& devices);

}  // namespace ral
