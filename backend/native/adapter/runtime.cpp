#include "runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include "generator.h"
#include "immortal.h"
#include "manifest.h"
#include "memory_config.h"

namespace ral {

namespace {

thread_local c10::DeviceIndex current = 0;
Immortal<Runtime> the_runtime;
std::atomic<Runtime*> ready{nullptr};
std::atomic<bool> forked{false};

void after_fork_in_child() {
  forked.store(ready.load(std::memory_order_relaxed) != nullptr, std::memory_order_relaxed);
}

[[noreturn]] void refuse_fork() {
  TORCH_CHECK(false,
              "the ral device cannot be used in a forked process whose parent used it; "
              "start workers with torch.multiprocessing's 'spawn' method");
}

std::string json_text(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += c;
  }
  return result + '"';
}

}  // namespace

// --- device
// ------------------------------------------------------------------------------------------------------------

Device::Device(const DeviceInfo& info)
    : info_(info),
      memory_events_(static_cast<std::int8_t>(info.index)),
      memory_(memory_config(info.vendor), std::make_unique<MappedRegions>(), &memory_events_),
      kernels_(&VendorKernels::of(info.vendor.name)),
      vendor_name_(info.vendor.name),
      generator_(make_generator(static_cast<c10::DeviceIndex>(info.index))) {}

std::uint8_t Device::new_stream() {
  constexpr unsigned kUserStreams = kStreamSlots - kFirstUserStream;
  return static_cast<std::uint8_t>(kFirstUserStream + streams_made_.fetch_add(1) % kUserStreams);
}

void Device::synchronize() {
  for (const Stream& stream : streams_) {
    stream.wait();
  }
}

void Device::describe(std::uint32_t sessions) {
  const std::string json = R"({"type":"ral","vendor":)" + json_text(info_.vendor.name) + R"(,"name":)" +
                           json_text(info_.vendor.device_name) + "}";
  trace::Record record = trace::make_record(trace::Kind::kDevice, events::intern(json), index());
  record.bytes = static_cast<std::int64_t>(info_.vendor.memory_bytes);
  record.start_ticks = record.end_ticks = events::now();
  events::writer->emit_to(sessions, record);
  constexpr std::array<std::string_view, 3> kPipelines = {"compute", "copy_in", "copy_out"};
  for (std::uint8_t number = 0; number < kPipelines.size(); ++number) {
    trace::Record stream =
        trace::make_record(trace::Kind::kStream, events::intern(kPipelines[number]), index(), number);
    stream.bytes = 0;
    stream.start_ticks = stream.end_ticks = record.start_ticks;
    events::writer->emit_to(sessions, stream);
  }
  memory_.visit([&](const Region& region) { memory_events_.announce(sessions, region); },
                [&](Block& block) { memory_events_.announce(sessions, block); });
}

void Device::forget_ended(std::uint32_t remaining) {
  memory_.visit([&](const Region& region) { memory_events_.forget_ended(remaining, region); },
                [&](Block& block) { block.announced &= remaining; });
}

// --- runtime
// -----------------------------------------------------------------------------------------------------------

Runtime::Runtime(const std::string& device_list) {
  const DeviceManager manager(device_list);
  for (const DeviceInfo& info : manager.devices()) {
    devices_.push_back(std::make_unique<Device>(info));
  }
}

void Runtime::start(const std::string& device_list) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (the_runtime.get() != nullptr) {
    return;
  }
  the_runtime.emplace(device_list);
  ready.store(the_runtime.get(), std::memory_order_release);
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  events::writer->add_listener({[](std::uint32_t sessions, void* context) {
                                  for (const auto& device : static_cast<Runtime*>(context)->devices_) {
                                    device->describe(sessions);
                                  }
                                },
                                [](std::uint32_t remaining, void* context) {
                                  for (const auto& device : static_cast<Runtime*>(context)->devices_) {
                                    device->forget_ended(remaining);
                                  }
                                },
                                the_runtime.get()});
}

Runtime& Runtime::get() {
  Runtime* runtime = ready.load(std::memory_order_acquire);
  if (C10_UNLIKELY(runtime == nullptr || forked.load(std::memory_order_relaxed))) {
    TORCH_CHECK(runtime != nullptr, "the ral device is not enabled: call ral_trace.backend.enable() first");
    refuse_fork();
  }
  return *runtime;
}

Runtime& Runtime::instance() noexcept { return *ready.load(std::memory_order_acquire); }

bool Runtime::started() noexcept { return ready.load(std::memory_order_acquire) != nullptr; }
bool Runtime::bad_fork() noexcept { return forked.load(std::memory_order_relaxed); }

Device& Runtime::device(c10::DeviceIndex index) {
  const c10::DeviceIndex actual = index < 0 ? current : index;
  TORCH_CHECK(static_cast<std::size_t>(actual) < devices_.size(), "there is no ral:", static_cast<int>(actual), ": ",
              devices_.size(), " ral device(s) are online (RAL_DEVICES names them)");
  return *devices_[static_cast<std::size_t>(actual)];
}

Block* Runtime::find_block(const void* data) noexcept {
  for (const auto& device : devices_) {
    if (Block* block = device->memory().find(reinterpret_cast<std::uintptr_t>(data))) {
      return block;
    }
  }
  return nullptr;
}

c10::DeviceIndex current_device() noexcept { return current; }
void set_current_device(c10::DeviceIndex index) noexcept { current = index; }

}  // namespace ral
