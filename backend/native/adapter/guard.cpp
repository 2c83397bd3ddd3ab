// Devices, streams and events as torch's guards see them.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <array>
#include <memory>

#include "runtime.h"

namespace ral {

namespace {

// torch keeps an event as a void*; this is what is behind it. Empty until it is recorded.
struct EventState {
  std::shared_ptr<Mark> mark;
  Device* device = nullptr;
  std::uint8_t stream = 0;
};

EventState& recorded(void* event) {
  auto* state = static_cast<EventState*>(event);
  TORCH_CHECK(state != nullptr && state->mark != nullptr, "the event was never recorded");
  return *state;
}

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
    return make_stream(on, current_stream(on.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return make_stream(actual(device), 0); }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const c10::Device on = actual(device);
    return make_stream(on, Runtime::get().device(on).new_stream(priority));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    stream_of(stream);  // there is such a stream
    const c10::StreamId previous = current_stream(stream.device_index());
    set_current_stream(stream.device_index(), static_cast<std::uint8_t>(stream.id()));
    return make_stream(stream.device(), previous);
  }
  bool queryStream(const c10::Stream& stream) const override { return stream_of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    static const events::Name name("Stream.synchronize");
    Device& device = Runtime::get().device(stream.device());
    Stream& on = stream_of(stream);
    {
      const events::Sync sync(events::on() ? name.id() : 0, stream.device_index(),
                              stream_row(static_cast<std::uint8_t>(stream.id()), Pipeline::kCompute), on.last_name(),
                              false);
      on.wait();
    }
    give_back_now();
    device.raise_failure();
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    static const events::Name name("torch.ral.synchronize");
    Device& device = Runtime::get().device(index);
    {
      const events::Sync sync(events::on() ? name.id() : 0, device.index(), device.current_stream_row(),
                              device.current_stream().last_name(), false);
      device.pipelines().synchronize();
    }
    give_back_now();
    device.raise_failure();
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex index, c10::EventFlag flag) const override {
    (void)index;
    (void)flag;
    auto made = *event != nullptr ? nullptr : std::make_unique<EventState>();
    EventState& state = made != nullptr ? *made : *static_cast<EventState*>(*event);
    state.mark = stream_of(stream).record();
    state.device = &Runtime::get().device(stream.device());
    state.stream = static_cast<std::uint8_t>(stream.id());
    if (made != nullptr) {
      *event = made.release();  // torch gives it back to destroyEvent
    }
  }
  void destroyEvent(void* event, c10::DeviceIndex index) const noexcept override {
    (void)index;
    const std::unique_ptr<EventState> owned(static_cast<EventState*>(event));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      stream_of(stream).wait_for(recorded(event).mark);
    }
  }
  bool queryEvent(void* event) const override { return event == nullptr || recorded(event).mark->done(); }
  void synchronizeEvent(void* event) const override {
    static const events::Name name("Event.synchronize");
    if (event == nullptr) {
      return;
    }
    const EventState& state = recorded(event);
    const std::shared_ptr<Mark> mark = state.mark;
    {
      const events::Sync sync(events::on() ? name.id() : 0, state.device->index(),
                              stream_row(state.stream, Pipeline::kCompute), mark->stream->last_name(), false);
      mark->stream->wait(mark->ticket);
    }
    give_back_now();
    state.device->raise_failure();
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex index) const override {
    (void)index;
    TORCH_CHECK(first != nullptr && second != nullptr,
                "both events must be recorded before their elapsed time is read");
    const std::uint64_t from = recorded(first).mark->time_ns.load(std::memory_order_acquire);
    const std::uint64_t to = recorded(second).mark->time_ns.load(std::memory_order_acquire);
    TORCH_CHECK(from != 0 && to != 0, "both events must be completed before their elapsed time is read");
    return (static_cast<double>(to) - static_cast<double>(from)) / 1e6;
  }

 private:
  static Stream& stream_of(const c10::Stream& stream) {
    Device& device = Runtime::get().device(stream.device());
    TORCH_CHECK(stream.id() >= 0 && stream.id() < kStreamSlots &&
                    device.stream(static_cast<std::uint8_t>(stream.id())).is_open(),
                "there is no stream ", stream.id(), " on ", device.torch_device(), "; torch.Stream(device) makes one");
    return device.stream(static_cast<std::uint8_t>(stream.id()));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, RalGuard)

}  // namespace
}  // namespace ral
