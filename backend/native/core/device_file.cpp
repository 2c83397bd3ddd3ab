#include "device_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace ral {

namespace {

std::string row(const DeviceInfo& device) {
  const bool online = device.state == DeviceState::kOnline;
  return R"({"index": )" + std::to_string(device.index) + R"(, "name": )" + json_text(device.vendor.device_name) +
         R"(, "vendor": )" + json_text(device.vendor.name) + R"(, "announced": )" +
         (device.announced ? "true" : "false") + R"(, "withdrawn": )" +
         (online ? "null" : json_text(device.withdrawn_because)) + "}";
}

void write_whole(const std::string& path, const std::string& text) {
  ::unlink(path.c_str());
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool written = file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (file >= 0) {
    ::close(file);
  }
  if (!written) {
    throw std::runtime_error(path + ": cannot be written (" + std::strerror(error) + ")");
  }
}

}  // namespace

std::string json_text(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < ' ') {
      std::array<char, 8> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", static_cast<unsigned>(c));
      result += escaped.data();
      continue;
    }
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += c;
  }
  return result + '"';
}

void write_device_file(const std::string& path, const std::vector<DeviceInfo>& devices) {
  std::string text;
  for (const DeviceInfo& device : devices) {
    text += (text.empty() ? "[" : ",\n ") + row(device);
  }
  // By another name first: a reader sees the old rows or the new ones.
  const std::string fresh = path + ".new";
  write_whole(fresh, text + "]\n");
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    throw std::runtime_error(path + ": cannot be replaced (" + std::strerror(errno) + ")");
  }
}

}  // namespace ral
