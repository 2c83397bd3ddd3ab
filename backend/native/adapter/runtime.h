// The devices of this process and what belongs to each: memory, streams, random numbers, kernels.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator.h"
#include "devices.h"
#include "events.h"
#include "memory_events.h"
#include "stream.h"

namespace ral {

inline constexpr c10::DeviceType kRal = c10::DeviceType::PrivateUse1;
inline constexpr int kStreamSlots = 32;

enum StreamNumber : std::uint8_t { kComputeStream = 0, kCopyInStream = 1, kCopyOutStream = 2, kFirstUserStream = 3 };

class VendorKernels;

class Device {
 public:
  explicit Device(const DeviceInfo& info);

  const DeviceInfo& info() const { return info_; }
  std::int8_t index() const { return static_cast<std::int8_t>(info_.index); }
  c10::Device torch_device() const { return {kRal, static_cast<c10::DeviceIndex>(info_.index)}; }
  RegionAllocator& memory() { return memory_; }
  MemoryEvents& memory_events() { return memory_events_; }
  Stream& stream(std::int64_t number) { return streams_[static_cast<std::size_t>(number) % kStreamSlots]; }
  VendorKernels& kernels() const { return *kernels_; }
  bool host_addressable() const { return info_.vendor.host_addressable; }
  const events::Name& vendor_name() const { return vendor_name_; }

  // The device's own random numbers: a CPU generator that nothing else draws from.
  const at::Generator& default_generator() const { return generator_; }

  std::uint8_t new_stream();
  void synchronize();
  void describe(std::uint32_t sessions);
  void forget_ended(std::uint32_t remaining);

 private:
  DeviceInfo info_;
  MemoryEvents memory_events_;
  RegionAllocator memory_;
  std::array<Stream, kStreamSlots> streams_;
  std::atomic<unsigned> streams_made_{0};
  VendorKernels* kernels_;
  events::Name vendor_name_;
  at::Generator generator_;
};

class Runtime {
 public:
  // The process's one runtime. Raises in a forked child of a process that had one.
  static Runtime& get();
  // Makes the devices; a second call does nothing. Throws BadDeviceList.
  static void start(const std::string& device_list);
  // The same without the check for forks, for giving memory back. Only where started().
  static Runtime& instance() noexcept;
  static bool started() noexcept;
  static bool bad_fork() noexcept;

  int device_count() const { return static_cast<int>(devices_.size()); }
  // The block of any device that begins at this address, or nullptr. Slow.
  Block* find_block(const void* data) noexcept;
  // Raises an error that says which devices there are.
  Device& device(c10::DeviceIndex index);
  Device& device(const c10::Device& device) { return this->device(device.index()); }

  explicit Runtime(const std::string& device_list);  // for start() alone

 private:
  std::vector<std::unique_ptr<Device>> devices_;
};

// The calling thread's current device.
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index) noexcept;

// The stream on which the calling thread's next work for the device goes.
std::uint8_t current_stream(c10::DeviceIndex index) noexcept;

// The block behind a storage's data, or nullptr (empty, or memory that is not ours).
Block* block_of(const c10::DataPtr& data) noexcept;
// A block in use; raises torch.OutOfMemoryError, which names the device and what it has.
Block* allocate_block(Device& device, std::size_t bytes);
// DataPtr over a block that is in use.
c10::DataPtr own_block(Block* block, c10::Device label) noexcept;
// Memory of `device`, labelled with `label`: the device itself, or the CPU for a kernel of ATen that runs on it in
// place.
c10::DataPtr allocate_on(Device& device, std::size_t bytes, c10::Device label);

}  // namespace ral
