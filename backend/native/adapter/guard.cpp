// Devices, streams and events as torch's guards see them.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <memory>

#include "runtime.h"

namespace ral {

namespace {

thread_local std::array<c10::StreamId, kDeviceSlots> current_streams{};

// torch keeps an event as a void*; this is what is behind it.
struct EventState {
  std::uint64_t time_ns = 0;
};

c10::Stream make_stream(c10::Device device, c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device, id); }

c10::Device actual(c10::Device device) { return {kRal, device.index() < 0 ? current_device() : device.index()}; }

struct RalGuard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kRal; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {kRal, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.index() >= 0 && device.index() != current_device()) {
      set_current_device(Runtime::get().device(device).index());
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) {
      set_current_device(device.index());
    }
  }
  // The number of slots, not of devices online: autograd asks once and sizes its queues by it.
  c10::DeviceIndex deviceCount() const noexcept override { return kDeviceSlots; }

  c10::Stream getStream(c10::Device device) const override {
    const c10::Device on = actual(device);
    return make_stream(on, current_streams[static_cast<std::size_t>(on.index()) % kDeviceSlots]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return make_stream(actual(device), kComputeStream);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    (void)priority;
    const c10::Device on = actual(device);
    return make_stream(on, Runtime::get().device(on).new_stream());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    c10::StreamId& slot = current_streams[static_cast<std::size_t>(stream.device_index()) % kDeviceSlots];
    return make_stream(stream.device(), std::exchange(slot, stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Runtime::get().device(stream.device()).stream(stream.id()).idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    static const events::Name name("Stream.synchronize");
    Stream& on = Runtime::get().device(stream.device()).stream(stream.id());
    const events::Sync sync(events::on() ? name.id() : 0, stream.device_index(), static_cast<std::uint8_t>(stream.id()),
                            on.last_name(), false);
    on.wait();
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    static const events::Name name("torch.ral.synchronize");
    Device& device = Runtime::get().device(index);
    const events::Sync sync(events::on() ? name.id() : 0, device.index(), kComputeStream,
                            device.stream(kComputeStream).last_name(), false);
    device.synchronize();
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex index, c10::EventFlag flag) const override {
    (void)index;
    (void)flag;
    auto state = *event != nullptr ? nullptr : std::make_unique<EventState>();
    if (state != nullptr) {
      *event = state.release();  // torch gives it back to destroyEvent
    }
    Runtime::get().device(stream.device()).stream(stream.id()).wait();
    static_cast<EventState*>(*event)->time_ns = trace::monotonic_ns();
  }
  void destroyEvent(void* event, c10::DeviceIndex index) const noexcept override {
    (void)index;
    const std::unique_ptr<EventState> owned(static_cast<EventState*>(event));
  }
  // Work runs in place: what an event marks is done when the event has been recorded.
  void block(void* event, const c10::Stream& stream) const override {
    (void)event;
    (void)stream;
  }
  bool queryEvent(void* event) const override {
    (void)event;
    return true;
  }
  void synchronizeEvent(void* event) const override {
    static const events::Name name("Event.synchronize");
    (void)event;
    const events::Sync sync(events::on() ? name.id() : 0, trace::kNoDevice, 0, 0, false);
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex index) const override {
    (void)index;
    TORCH_CHECK(first != nullptr && second != nullptr,
                "both events must be recorded before their elapsed time is read");
    const auto from = static_cast<EventState*>(first)->time_ns;
    const auto to = static_cast<EventState*>(second)->time_ns;
    return (static_cast<double>(to) - static_cast<double>(from)) / 1e6;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, RalGuard)

}  // namespace
}  // namespace ral
