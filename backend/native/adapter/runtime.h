// The devices of this process and what belongs to each: memory, streams, random numbers, kernels.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
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
#include "hotplug.h"
#include "memory_events.h"
#include "pipelines.h"

namespace ral {

inline constexpr c10::DeviceType kRal = c10::DeviceType::PrivateUse1;
// A record's `stream`: the stream's number and the pipeline on which the work ran. Each pair is a row of the trace.
constexpr std::uint8_t stream_row(std::uint8_t number, Pipeline pipeline) {
  return static_cast<std::uint8_t>(number | static_cast<unsigned>(pipeline) << trace::kStreamBits);
}

class VendorKernels;

class Device {
 public:
  explicit Device(const DeviceInfo& info);

  const DeviceInfo& info() const { return info_; }
  std::int8_t index() const { return static_cast<std::int8_t>(info_.index); }
  c10::Device torch_device() const { return {kRal, static_cast<c10::DeviceIndex>(info_.index)}; }
  RegionAllocator& memory() { return memory_; }
  MemoryEvents& memory_events() { return memory_events_; }
  Pipelines& pipelines() { return pipelines_; }
  Stream& stream(std::uint8_t number) { return pipelines_.stream(number); }
  // The calling thread's.
  Stream& current_stream();
  std::uint8_t current_stream_row(Pipeline pipeline = Pipeline::kCompute) const;
  // Raises where the tensor reaches beyond its storage, or that lies on another device; counts the use.
  void check_access(const at::Tensor& tensor);
  void touch(const c10::Storage& storage) noexcept;
  // How many calls were routed to it, how many of them fell back to the CPU, and how loudly that was said.
  struct Load {
    std::atomic<std::uint64_t> launches{0};
    std::atomic<std::uint64_t> fallbacks{0};
    std::atomic<int> said{0};
  };
  Load& load() { return load_; }
  // Raises what a kernel threw since the last time somebody looked.
  void raise_failure();
  VendorKernels& kernels() const { return *kernels_; }
  bool host_addressable() const { return info_.vendor.host_addressable; }
  const events::Name& vendor_name() const { return vendor_name_; }
  // Not once it was withdrawn: then its memory is there until tensors let go of it, and nothing else works.
  bool online() const { return online_.load(std::memory_order_acquire); }
  void withdraw() { online_.store(false, std::memory_order_release); }

  // The device's own random numbers: a CPU generator that nothing else draws from.
  const at::Generator& default_generator() const { return generator_; }

  std::uint8_t new_stream(int priority);
  void describe(std::uint32_t sessions);
  void describe_stream(std::uint32_t sessions, std::uint8_t number);
  void forget_ended(std::uint32_t remaining);

 private:
  DeviceInfo info_;
  MemoryEvents memory_events_;
  RegionAllocator memory_;
  Pipelines pipelines_;
  std::atomic<unsigned> streams_made_{0};
  std::atomic<bool> online_{true};
  Load load_;
  VendorKernels* kernels_;
  events::Name vendor_name_;
  at::Generator generator_;
};

class Runtime final : public HotPlug {
 public:
  // The process's one runtime. Raises in a forked child of a process that had one.
  static Runtime& get();
  // Makes the devices; a second call does nothing. Throws BadDeviceList.
  static void start(const std::string& device_list);
  // The same without the check for forks, for giving memory back. Only where started().
  static Runtime& instance() noexcept;
  static bool started() noexcept;
  static bool bad_fork() noexcept;

  // range(device_count()) reaches every device that is online; one in between may be withdrawn.
  int device_count() const noexcept { return count_.load(std::memory_order_acquire); }
  // Raises an error that says which devices there are, or why this one has gone.
  Device& device(c10::DeviceIndex index);
  Device& device(const c10::Device& device) { return this->device(device.index()); }
  // Withdrawn ones too: for looking after what is left of them.
  Device& any_device(c10::DeviceIndex index);
  std::vector<DeviceInfo> devices() const { return manager_.devices(); }

  int announce(const Vendor& vendor, int vendor_index, const VendorInfo& info) override;
  bool withdraw(const Vendor& vendor, int device, const std::string& reason) override;
  // Says in this file from now on which devices there are. Throws std::runtime_error when it cannot be written.
  void keep_device_file(const std::string& path);

  // All devices, withdrawn ones too.
  template <class Visitor>
  void for_each(Visitor&& visit) const {
    for (const auto& slot : slots_) {
      if (Device* device = slot.load(std::memory_order_acquire)) {
        visit(*device);
      }
    }
  }

  explicit Runtime(const std::string& device_list);  // for start() alone

 private:
  Device& make_device(const DeviceInfo& info);
  void devices_changed();
  [[noreturn]] void raise_no_device(c10::DeviceIndex index) const;

  DeviceManager manager_;
  std::mutex changes_;  // one device comes or goes at a time
  std::vector<std::unique_ptr<Device>> made_;
  std::array<std::atomic<Device*>, kDeviceSlots> slots_{};
  std::atomic<int> count_{0};
  std::string device_file_;
};

// Ends the threads of all devices; what is queued is not run. For the end of the interpreter.
void stop_devices() noexcept;

// Drops a host tensor on a thread of the program, at its next launch or wait: its last reference may be Python's, and a
// worker must not run Python.
void give_back_on_host(at::Tensor&& tensor) noexcept;
void give_back_now();

// The number of the calling thread's current stream on a device.
std::uint8_t current_stream(c10::DeviceIndex index) noexcept;
void set_current_stream(c10::DeviceIndex index, std::uint8_t number) noexcept;

// The calling thread's current device.
c10::DeviceIndex current_device() noexcept;
void set_current_device(c10::DeviceIndex index) noexcept;

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
