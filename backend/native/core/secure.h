// Who may touch which memory: owner, bounds, freed or not. Every pointer and handle that comes from outside goes through
// here before anything looks behind it.
#pragma once

#include <array>
#include <cstdint>
#include <shared_mutex>
#include <string>
#include <vector>

#include "allocator.h"
#include "devices.h"
#include "ral_plugin.h"

namespace ral {

// How a check went: RAL_OK, or a code and "RAL_ERROR_…: what, where, by how much".
struct Verdict {
  ral_status code = RAL_OK;
  std::string text;
  bool ok() const { return code == RAL_OK; }
};

const char* status_name(ral_status code);
Verdict refusal(ral_status code, const std::string& text);

class SecureContext {
 public:
  // The process's one, over the devices of its runtime.
  static SecureContext& instance();

  // The device's memory from now on; a number that was another's before is this one's. `memory` lives as long as the
  // process.
  void add_device(int index, const Vendor* vendor, RegionAllocator* memory);
  void withdraw_device(int index, const std::string& reason);

  // May `device` touch these bytes of its memory? Walks its regions: for what comes from outside, not for each launch.
  Verdict check(int device, std::uint64_t address, std::uint64_t bytes) const;
  // The same where the block is known already: quick, no lock. The block must be in use.
  static ral_status check_block(const Block& block, const RegionAllocator& memory, std::uint64_t address,
                                std::uint64_t bytes) noexcept;

  // Buffers of a vendor: a handle carries a generation, so that one that was freed is recognised. Another vendor's are
  // refused.
  struct Buffer {
    std::uint64_t handle = 0;
    std::uint64_t address = 0;
  };
  Verdict allocate(const Vendor& vendor, int device, std::uint64_t bytes, Buffer* buffer);
  Verdict free(const Vendor& vendor, std::uint64_t handle);
  Verdict check(const Vendor& vendor, std::uint64_t handle, std::uint64_t offset, std::uint64_t bytes) const;
  // Through the addresses.
  Verdict copy(const Vendor& vendor, std::uint64_t to, std::uint64_t to_offset, std::uint64_t from,
               std::uint64_t from_offset, std::uint64_t bytes);

 private:
  struct Owned {
    const Vendor* vendor = nullptr;
    RegionAllocator* memory = nullptr;
    bool withdrawn = false;
    std::string withdrawn_because;
  };
  struct Entry {
    std::uint32_t generation = 0;
    int device = 0;
    const Vendor* vendor = nullptr;
    Block* block = nullptr;  // nullptr: freed
  };

  Verdict device_is_usable(int device) const;
  Verdict find_buffer(const Vendor& vendor, std::uint64_t handle, const Entry** found) const;
  Verdict check_locked(const Vendor& vendor, std::uint64_t handle, std::uint64_t offset, std::uint64_t bytes,
                       const Entry** found) const;

  mutable std::shared_mutex mutex_;
  std::array<Owned, kDeviceSlots> devices_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> spare_;
};

}  // namespace ral
