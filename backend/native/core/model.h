// What a modelled device takes for its work. A real device has all zeros: its work takes as long as it takes.
#pragma once

#include <cstdint>

namespace ral {

struct DeviceModel {
  std::uint64_t launch_ns = 0;           // of each kernel, before it touches memory
  std::uint64_t memory_bytes_per_s = 0;  // of a kernel's arguments and results; 0: no limit
  std::uint64_t copy_latency_ns = 0;     // of each copy, before it touches memory
  std::uint64_t copy_bytes_per_s = 0;    // of the link to the host and to other devices; 0: no limit
  bool virtual_clock = false;            // device times come from this model alone, and nothing waits for them

  std::uint64_t kernel_ns(std::uint64_t bytes) const { return launch_ns + over(bytes, memory_bytes_per_s); }
  std::uint64_t copy_ns(std::uint64_t bytes) const { return copy_latency_ns + over(bytes, copy_bytes_per_s); }
  bool paces() const {
    return virtual_clock || launch_ns + memory_bytes_per_s + copy_latency_ns + copy_bytes_per_s != 0;
  }

 private:
  static std::uint64_t over(std::uint64_t bytes, std::uint64_t per_s) {
    return per_s == 0 ? 0 : static_cast<std::uint64_t>(static_cast<__uint128_t>(bytes) * 1'000'000'000u / per_s);
  }
};

}  // namespace ral
