#include "runtime.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <pthread.h>

#include <cstdio>

#include "device_file.h"
#include "generator.h"
#include "immortal.h"
#include "manifest.h"
#include "memory_config.h"
#include "secure.h"
#include "waiting.h"

namespace ral {

namespace {

thread_local c10::DeviceIndex current = 0;
thread_local std::array<std::uint8_t, kDeviceSlots> current_streams{};

struct GivenBack {
  std::mutex mutex;
  std::vector<at::Tensor> tensors;
  std::atomic<bool> any{false};
};
Immortal<GivenBack> given_back;
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

// Half of the machine for a device's kernels: the program launches meanwhile, and other devices compute.
void begin_worker(const std::string& name, Pipeline pipeline) {
  pthread_setname_np(pthread_self(), name.c_str());
  // For the whole life of the thread: kernels run below autograd, and their own calls are nobody's ops.
  const c10::DispatchKeySet beneath =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ = keys.excluded_ | beneath;
  c10::impl::_force_tls_local_dispatch_key_set(keys);
  c10::GradMode::set_enabled(false);
  at::enableRecordFunction(false);
  const int threads = at::get_num_threads();
  at::set_num_threads(pipeline == Pipeline::kCompute ? std::max(1, threads / 2) : 1);
}

// at::set_num_threads() also sets what threads begin with that do not exist yet: `began` puts that back.
Pipelines::ThreadHooks worker_hooks(int index) {
  const std::string device = "ral:" + std::to_string(index) + " ";
  return {[device](Pipeline pipeline) {
            begin_worker(device + std::string(kPipelineNames[static_cast<std::size_t>(pipeline)]), pipeline);
          },
          [] { at::set_num_threads(at::get_num_threads()); },
          [](const std::function<void()>& wait) {
            const WithoutGil no_gil;
            wait();
          }};
}

// One past the last element that the tensor reaches, counted from the start of its storage.
std::int64_t reach(const at::Tensor& tensor) {
  std::int64_t last = tensor.storage_offset();
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) == 0) {
      return 0;
    }
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return last + 1;
}

std::uint64_t event_ticks() noexcept { return events::now(); }

// By the rate between the two clocks since the devices began; only for devices whose clock is a model.
std::uint64_t event_ticks_at(std::uint64_t ns) noexcept {
  static const std::uint64_t ns_then = trace::monotonic_ns();
  static const std::uint64_t ticks_then = events::now();
  const std::uint64_t ns_now = trace::monotonic_ns();
  const double ticks_per_ns =
      ns_now > ns_then ? static_cast<double>(events::now() - ticks_then) / static_cast<double>(ns_now - ns_then) : 1.0;
  const auto since = static_cast<double>(static_cast<std::int64_t>(ns - ns_then));
  return ticks_then + static_cast<std::uint64_t>(static_cast<std::int64_t>(since * ticks_per_ns));
}

constexpr EventClock kEventClock = {event_ticks, event_ticks_at};

}  // namespace

// --- device
// ------------------------------------------------------------------------------------------------------------

Device::Device(const DeviceInfo& info)
    : info_(info),
      memory_events_(static_cast<std::int8_t>(info.index)),
      memory_(memory_config(info.vendor), info.source->regions(info.vendor_index, info.vendor.alignment),
              &memory_events_, &pipelines_),
      pipelines_(info.vendor.model, kEventClock, worker_hooks(info.index)),
      kernels_(&VendorKernels::of(info.vendor.name)),
      vendor_name_(info.vendor.name),
      generator_(make_generator(static_cast<c10::DeviceIndex>(info.index))) {}

// New ones while there are any, then round and round over those of that priority, as torch.cuda's pools.
std::uint8_t Device::new_stream(int priority) {
  constexpr unsigned kMost = kHostPool - 1;  // beside the default stream
  for (unsigned tried = 0; tried < 2 * kMost; ++tried) {
    const auto number = static_cast<std::uint8_t>(1 + streams_made_.fetch_add(1) % kMost);
    if (pipelines_.open_stream(number, priority)) {
      describe_stream(events::writer->sessions->load(std::memory_order_relaxed), number);
      return number;
    }
    if (stream(number).priority() == priority && tried >= kMost) {
      return number;
    }
  }
  TORCH_CHECK(false, torch_device(), " has its ", kMost, " streams already, none of them of priority ", priority);
  return 0;
}

Stream& Device::current_stream() { return pipelines_.stream(ral::current_stream(torch_device().index())); }

std::uint8_t Device::current_stream_row(Pipeline pipeline) const {
  return stream_row(ral::current_stream(torch_device().index()), pipeline);
}

void Device::touch(const c10::Storage& storage) noexcept {
  if (Block* block = block_of(storage.data_ptr())) {
    block->touch(events::on() ? events::now() : 0);
  }
}

void Device::check_access(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const std::size_t bytes = static_cast<std::size_t>(reach(tensor)) * tensor.itemsize();
  TORCH_CHECK(bytes <= storage.nbytes(), "RAL_ERROR_OUT_OF_BOUNDS: a tensor reaches ", bytes - storage.nbytes(),
              " bytes beyond its storage of ", storage.nbytes(), " bytes on ", torch_device());
  if (Block* block = block_of(storage.data_ptr())) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage.data());
    if (C10_UNLIKELY(SecureContext::check_block(*block, memory_, address, bytes) != RAL_OK)) {
      TORCH_CHECK(false, SecureContext::instance().check(index(), address, bytes).text);
    }
    block->touch(events::on() ? events::now() : 0);
  }
}

void Device::raise_failure() {
  if (C10_LIKELY(!pipelines_.has_failure())) {
    return;
  }
  if (const auto failure = pipelines_.take_failure()) {
    const std::string site = describe_site(failure->site);
    TORCH_CHECK(false, failure->op, " on ", torch_device(), ", stream ", static_cast<int>(failure->stream), ": ",
                failure->text, site.empty() ? "" : " (launched at " + site + ")",
                failure->others == 0 ? "" : " (" + std::to_string(failure->others) + " later failures not shown)");
  }
}

void Device::describe_stream(std::uint32_t sessions, std::uint8_t number) {
  for (std::size_t pipeline = 0; sessions != 0 && pipeline < kPipelines; ++pipeline) {
    trace::Record record = trace::make_record(trace::Kind::kStream, events::intern(kPipelineNames[pipeline]), index(),
                                              stream_row(number, static_cast<Pipeline>(pipeline)));
    record.bytes = stream(number).priority();
    record.start_ticks = record.end_ticks = events::now();
    events::writer->emit_to(sessions, record);
  }
}

void Device::describe(std::uint32_t sessions) {
  const std::string json = R"({"type":"ral","vendor":)" + json_text(info_.vendor.name) + R"(,"name":)" +
                           json_text(info_.vendor.device_name) + "}";
  trace::Record record = trace::make_record(trace::Kind::kDevice, events::intern(json), index());
  record.bytes = static_cast<std::int64_t>(info_.vendor.memory_bytes);
  record.start_ticks = record.end_ticks = events::now();
  events::writer->emit_to(sessions, record);
  for (std::uint8_t number = 0; number < kStreamSlots; ++number) {
    if (stream(number).is_open()) {
      describe_stream(sessions, number);
    }
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

Runtime::Runtime(const std::string& device_list) : manager_(device_list) {
  for (const DeviceInfo& info : manager_.devices()) {
    make_device(info);
  }
}

Device& Runtime::make_device(const DeviceInfo& info) {
  made_.push_back(std::make_unique<Device>(info));
  Device& device = *made_.back();
  SecureContext::instance().add_device(info.index, info.source, &device.memory());
  slots_[static_cast<std::size_t>(info.index)].store(&device, std::memory_order_release);
  count_.store(manager_.count(), std::memory_order_release);
  return device;
}

int Runtime::announce(const Vendor& vendor, int vendor_index, const VendorInfo& info) {
  const std::lock_guard<std::mutex> lock(changes_);
  const auto nobody_needs = [&](int index) {
    Device* device = slots_[static_cast<std::size_t>(index)].load(std::memory_order_acquire);
    return device->memory().stats().allocated_bytes.current == 0;
  };
  Device& device = make_device(manager_.announce(vendor, vendor_index, info, nobody_needs));
  if (const std::uint32_t sessions = events::writer->sessions->load(); sessions != 0) {
    device.describe(sessions);
  }
  devices_changed();
  return device.index();
}

bool Runtime::withdraw(const Vendor& vendor, int device, const std::string& reason) {
  const std::lock_guard<std::mutex> lock(changes_);
  if (!manager_.withdraw(vendor, device, reason)) {
    return false;
  }
  SecureContext::instance().withdraw_device(device, reason);
  slots_[static_cast<std::size_t>(device)].load(std::memory_order_acquire)->withdraw();
  count_.store(manager_.count(), std::memory_order_release);
  devices_changed();
  return true;
}

void Runtime::keep_device_file(const std::string& path) {
  const std::lock_guard<std::mutex> lock(changes_);
  write_device_file(path, manager_.devices());
  device_file_ = path;
}

// The devices are what they are, whether or not others learn of it.
void Runtime::devices_changed() {
  if (device_file_.empty()) {
    return;
  }
  try {
    write_device_file(device_file_, manager_.devices());
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "ral: ralctl list-devices does not learn of a change of devices: %s\n", error.what());
  }
}

void Runtime::start(const std::string& device_list) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (the_runtime.get() != nullptr) {
    return;
  }
  given_back.emplace();
  the_runtime.emplace(device_list);
  ready.store(the_runtime.get(), std::memory_order_release);
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  HotPlug::set(the_runtime.get());
  events::writer->add_listener(
      {[](std::uint32_t sessions, void* context) {
         static_cast<Runtime*>(context)->for_each([&](Device& device) { device.describe(sessions); });
       },
       [](std::uint32_t remaining, void* context) {
         static_cast<Runtime*>(context)->for_each([&](Device& device) { device.forget_ended(remaining); });
       },
       nullptr, the_runtime.get()});
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

Device& Runtime::any_device(c10::DeviceIndex index) {
  const auto actual = static_cast<std::size_t>(index < 0 ? current : index);
  Device* device = actual < slots_.size() ? slots_[actual].load(std::memory_order_acquire) : nullptr;
  if (C10_UNLIKELY(device == nullptr)) {
    raise_no_device(index);
  }
  return *device;
}

Device& Runtime::device(c10::DeviceIndex index) {
  Device& device = any_device(index);
  if (C10_UNLIKELY(!device.online())) {
    raise_no_device(device.index());
  }
  return device;
}

void Runtime::raise_no_device(c10::DeviceIndex index) const {
  const int actual = index < 0 ? current : index;
  int online = 0;
  for (const DeviceInfo& info : manager_.devices()) {
    TORCH_CHECK(info.index != actual || info.state == DeviceState::kOnline, "ral:", actual, " (", info.vendor.name,
                ") was withdrawn: ", info.withdrawn_because, "; its tensors can only be freed, use another device");
    online += info.state == DeviceState::kOnline ? 1 : 0;
  }
  TORCH_CHECK(false, "there is no ral:", actual, ": ", online, " ral device(s) are online (RAL_DEVICES names them)");
  std::abort();
}

void stop_devices() noexcept {
  if (Runtime::started() && !Runtime::bad_fork()) {
    Runtime::instance().for_each([](Device& device) {
      device.pipelines().stop();
      if (const auto failure = device.pipelines().take_failure()) {
        std::fprintf(stderr, "ral: nobody waited to hear that %s failed on ral:%d: %s\n", failure->op.c_str(),
                     static_cast<int>(device.index()), failure->text.c_str());
      }
    });
  }
}

void give_back_on_host(at::Tensor&& tensor) noexcept {
  if (tensor.defined()) {
    GivenBack& all = *given_back.get();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.tensors.push_back(std::move(tensor));
    all.any.store(true, std::memory_order_release);
  }
}

void give_back_now() {
  GivenBack& all = *given_back.get();
  if (C10_UNLIKELY(all.any.load(std::memory_order_acquire))) {
    std::vector<at::Tensor> tensors;
    const std::lock_guard<std::mutex> lock(all.mutex);
    tensors.swap(all.tensors);
    all.any.store(false, std::memory_order_relaxed);
  }
}

std::uint8_t current_stream(c10::DeviceIndex index) noexcept {
  return current_streams[static_cast<std::size_t>(index < 0 ? current : index) % kDeviceSlots];
}
void set_current_stream(c10::DeviceIndex index, std::uint8_t number) noexcept {
  current_streams[static_cast<std::size_t>(index < 0 ? current : index) % kDeviceSlots] = number;
}

c10::DeviceIndex current_device() noexcept { return current; }
void set_current_device(c10::DeviceIndex index) noexcept { current = index; }

}  // namespace ral
