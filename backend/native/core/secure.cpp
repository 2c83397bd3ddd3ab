#include "secure.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>

#include "immortal.h"

namespace ral {

namespace {

std::string hex(std::uint64_t value) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%" PRIx64, value);
  return text.data();
}

std::string span(std::uint64_t address, std::uint64_t bytes) {
  return hex(address) + " (" + std::to_string(bytes) + " bytes)";
}

std::string device_name(int device) { return "ral:" + std::to_string(device); }

// What lies at an address of one device's memory.
struct Found {
  bool used = false;
  std::uint64_t begin = 0;
  std::uint64_t requested = 0;
};

std::optional<Found> locate(const RegionAllocator& memory, std::uint64_t address) {
  std::optional<Found> found;
  memory.visit([](const Region&) {},
               [&](Block& block) {
                 if (address >= block.address && address - block.address < block.size) {
                   found = Found{block.state == BlockState::kUsed, block.address, block.requested};
                 }
               });
  return found;
}

ral_status bounds(std::uint64_t begin, std::uint64_t length, std::uint64_t address, std::uint64_t bytes) noexcept {
  if (address < begin || address - begin > length) {
    return RAL_ERROR_INVALID_POINTER;
  }
  return bytes > length - (address - begin) ? RAL_ERROR_OUT_OF_BOUNDS : RAL_OK;
}

Verdict out_of_bounds(const std::string& what, std::uint64_t beyond, std::uint64_t length, int device) {
  return refusal(RAL_ERROR_OUT_OF_BOUNDS, what + " ends " + std::to_string(beyond) + " bytes beyond its block of " +
                                              std::to_string(length) + " bytes on " + device_name(device));
}

constexpr std::uint64_t make_handle(std::uint32_t generation, std::size_t slot) {
  return std::uint64_t{generation} << 32 | static_cast<std::uint64_t>(slot);
}

}  // namespace

const char* status_name(ral_status code) {
  switch (code) {
    case RAL_OK:
      return "RAL_OK";
    case RAL_DECLINED:
      return "RAL_DECLINED";
    case RAL_FAILED:
      return "RAL_FAILED";
    case RAL_ERROR_BAD_HOST:
      return "RAL_ERROR_BAD_HOST";
    case RAL_ERROR_BAD_ARGUMENT:
      return "RAL_ERROR_BAD_ARGUMENT";
    case RAL_ERROR_NO_DEVICE:
      return "RAL_ERROR_NO_DEVICE";
    case RAL_ERROR_NOT_READY:
      return "RAL_ERROR_NOT_READY";
    case RAL_ERROR_NO_SLOT:
      return "RAL_ERROR_NO_SLOT";
    case RAL_ERROR_BAD_DESCRIPTOR:
      return "RAL_ERROR_BAD_DESCRIPTOR";
    case RAL_ERROR_OUT_OF_MEMORY:
      return "RAL_ERROR_OUT_OF_MEMORY";
    case RAL_ERROR_INVALID_POINTER:
      return "RAL_ERROR_INVALID_POINTER";
    case RAL_ERROR_OUT_OF_BOUNDS:
      return "RAL_ERROR_OUT_OF_BOUNDS";
    case RAL_ERROR_USE_AFTER_FREE:
      return "RAL_ERROR_USE_AFTER_FREE";
    case RAL_ERROR_WRONG_DEVICE:
      return "RAL_ERROR_WRONG_DEVICE";
    case RAL_ERROR_INTERNAL:
      return "RAL_ERROR_INTERNAL";
  }
  return "RAL_ERROR";
}

Verdict refusal(ral_status code, const std::string& text) {
  return {code, std::string(status_name(code)) + ": " + text};
}

SecureContext& SecureContext::instance() {
  static Immortal<SecureContext> storage;
  static SecureContext* const context = storage.emplace();
  return *context;
}

void SecureContext::add_device(int index, const Vendor* vendor, RegionAllocator* memory) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  devices_.at(static_cast<std::size_t>(index)) = {vendor, memory, false, ""};
}

void SecureContext::withdraw_device(int index, const std::string& reason) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  Owned& device = devices_.at(static_cast<std::size_t>(index));
  device.withdrawn = true;
  device.withdrawn_because = reason;
}

Verdict SecureContext::device_is_usable(int device) const {
  if (device < 0 || device >= kDeviceSlots || devices_[static_cast<std::size_t>(device)].memory == nullptr) {
    return refusal(RAL_ERROR_NO_DEVICE, "there is no " + device_name(device));
  }
  const Owned& owned = devices_[static_cast<std::size_t>(device)];
  if (owned.withdrawn) {
    return refusal(RAL_ERROR_NO_DEVICE, device_name(device) + " was withdrawn: " + owned.withdrawn_because);
  }
  return {};
}

ral_status SecureContext::check_block(const Block& block, const RegionAllocator& memory, std::uint64_t address,
                                      std::uint64_t bytes) noexcept {
  if (block.extent->owner != &memory) {
    return RAL_ERROR_WRONG_DEVICE;
  }
  return bounds(block.address, block.requested, address, bytes);
}

Verdict SecureContext::check(int device, std::uint64_t address, std::uint64_t bytes) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (Verdict usable = device_is_usable(device); !usable.ok()) {
    return usable;
  }
  if (const auto found = locate(*devices_[static_cast<std::size_t>(device)].memory, address)) {
    if (!found->used) {
      return refusal(RAL_ERROR_USE_AFTER_FREE, span(address, bytes) + " lies in free memory of " + device_name(device));
    }
    // Also where the address is in what rounding added to the block.
    if (bounds(found->begin, found->requested, address, bytes) != RAL_OK) {
      const std::uint64_t offset = address - found->begin;
      const std::uint64_t room = offset < found->requested ? found->requested - offset : 0;
      return out_of_bounds(span(address, bytes), bytes - room, found->requested, device);
    }
    return {};
  }
  for (int other = 0; other < kDeviceSlots; ++other) {
    const RegionAllocator* memory = devices_[static_cast<std::size_t>(other)].memory;
    if (memory != nullptr && other != device && locate(*memory, address).has_value()) {
      return refusal(RAL_ERROR_WRONG_DEVICE,
                     span(address, bytes) + " is memory of " + device_name(other) + ", not of " + device_name(device));
    }
  }
  return refusal(RAL_ERROR_INVALID_POINTER, span(address, bytes) + " is not mapped on " + device_name(device));
}

// --- buffers ---

Verdict SecureContext::allocate(const Vendor& vendor, int device, std::uint64_t bytes, Buffer* buffer) {
  std::unique_lock<std::shared_mutex> lock(mutex_);
  if (Verdict usable = device_is_usable(device); !usable.ok()) {
    return usable;
  }
  const Owned owned = devices_[static_cast<std::size_t>(device)];
  if (owned.vendor != &vendor) {
    return refusal(RAL_ERROR_WRONG_DEVICE,
                   device_name(device) + " is " + owned.vendor->name() + "'s, not " + vendor.name() + "'s");
  }
  if (bytes == 0 || bytes > owned.memory->capacity()) {
    return refusal(bytes == 0 ? RAL_ERROR_BAD_ARGUMENT : RAL_ERROR_OUT_OF_MEMORY,
                   std::to_string(bytes) + " bytes asked for, " + device_name(device) + " has " +
                       std::to_string(owned.memory->capacity()));
  }
  // It may wait for a stream, whose kernel may be asking us something.
  lock.unlock();
  Block* block = nullptr;
  try {
    block = owned.memory->allocate(bytes, kHostPool);
  } catch (const OutOfMemory& error) {
    return refusal(RAL_ERROR_OUT_OF_MEMORY, device_name(device) + ": " + error.what());
  }
  lock.lock();
  if (spare_.empty()) {
    spare_.push_back(entries_.size());
    entries_.emplace_back();
  }
  const std::size_t slot = spare_.back();
  spare_.pop_back();
  Entry& entry = entries_[slot];
  entry = {entry.generation + 1, device, &vendor, block};
  *buffer = {make_handle(entry.generation, slot), block->address};
  return {};
}

Verdict SecureContext::find_buffer(const Vendor& vendor, std::uint64_t handle, const Entry** found) const {
  const auto slot = static_cast<std::size_t>(handle & 0xffffffffu);
  const auto generation = static_cast<std::uint32_t>(handle >> 32);
  if (slot >= entries_.size() || generation == 0 || generation > entries_[slot].generation) {
    return refusal(RAL_ERROR_INVALID_POINTER, hex(handle) + " is no buffer");
  }
  const Entry& entry = entries_[slot];
  // First: the slot of one that was freed may be another vendor's by now.
  if (generation != entry.generation || entry.block == nullptr) {
    return refusal(RAL_ERROR_USE_AFTER_FREE, "buffer " + hex(handle) + " was freed");
  }
  if (entry.vendor != &vendor) {
    return refusal(RAL_ERROR_WRONG_DEVICE,
                   "buffer " + hex(handle) + " is not " + vendor.name() + "'s, but " + entry.vendor->name() + "'s");
  }
  *found = &entry;
  return {};
}

Verdict SecureContext::free(const Vendor& vendor, std::uint64_t handle) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  const Entry* found = nullptr;
  if (Verdict verdict = find_buffer(vendor, handle, &found); !verdict.ok()) {
    return verdict;
  }
  // Through the block: the device's number may be another device's by now.
  found->block->extent->owner->free(found->block);
  const auto slot = static_cast<std::size_t>(found - entries_.data());
  entries_[slot].block = nullptr;
  // A slot whose generations are used up is not used again: an old handle must never fit.
  if (found->generation != UINT32_MAX) {
    spare_.push_back(slot);
  }
  return {};
}

Verdict SecureContext::check_locked(const Vendor& vendor, std::uint64_t handle, std::uint64_t offset,
                                    std::uint64_t bytes, const Entry** found) const {
  if (Verdict verdict = find_buffer(vendor, handle, found); !verdict.ok()) {
    return verdict;
  }
  const std::uint64_t length = (*found)->block->requested;
  if (offset > length || bytes > length - offset) {
    const std::string what =
        "buffer " + hex(handle) + " from " + std::to_string(offset) + " (" + std::to_string(bytes) + " bytes)";
    const std::uint64_t room = offset < length ? length - offset : 0;
    return out_of_bounds(what, bytes > room ? bytes - room : offset - length, length, (*found)->device);
  }
  return {};
}

Verdict SecureContext::check(const Vendor& vendor, std::uint64_t handle, std::uint64_t offset,
                             std::uint64_t bytes) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const Entry* found = nullptr;
  return check_locked(vendor, handle, offset, bytes, &found);
}

Verdict SecureContext::copy(const Vendor& vendor, std::uint64_t to, std::uint64_t to_offset, std::uint64_t from,
                            std::uint64_t from_offset, std::uint64_t bytes) {
  // Shared: buffers cannot be freed meanwhile.
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const Entry* target = nullptr;
  const Entry* source = nullptr;
  for (const Verdict& verdict :
       {check_locked(vendor, to, to_offset, bytes, &target), check_locked(vendor, from, from_offset, bytes, &source)}) {
    if (!verdict.ok()) {
      return verdict;
    }
  }
  std::memmove(reinterpret_cast<void*>(static_cast<std::uintptr_t>(target->block->address + to_offset)),
               reinterpret_cast<const void*>(static_cast<std::uintptr_t>(source->block->address + from_offset)), bytes);
  return {};
}

}  // namespace ral
