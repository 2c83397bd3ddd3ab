// A device's pipelines: one thread each, which takes the next item of the streams that is ready for it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "model.h"
#include "stream.h"
#include "stream_clock.h"
#include "work.h"

namespace ral {

// The device was stopped (the interpreter ends): nothing can be submitted any more.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How times are told; set by who has the event clock.
struct EventClock {
  std::uint64_t (*ticks)() noexcept;                     // now
  std::uint64_t (*ticks_at)(std::uint64_t ns) noexcept;  // of a time of CLOCK_MONOTONIC
};

// What an item threw, and where.
struct Failure {
  std::string op;
  std::string text;
  std::uint8_t stream = 0;
  std::uint64_t others = 0;    // how many more failed after it
  std::shared_ptr<void> site;  // Work::site
};

class Pipelines final : public StreamClock {
 public:
  // Each may be empty. `begin` runs first on each new thread; then `began` on the one that started it.
  struct ThreadHooks {
    std::function<void(Pipeline)> begin;
    std::function<void()> began;
    // Calls what it is given, which waits: for who must let go of something meanwhile.
    std::function<void(const std::function<void()>&)> while_waiting;
  };
  Pipelines(const DeviceModel& model, const EventClock& clock, ThreadHooks hooks);
  ~Pipelines() override;

  Stream& stream(std::uint8_t number) { return streams_[number % kStreamSlots]; }
  const Stream& stream(std::uint8_t number) const { return streams_[number % kStreamSlots]; }
  // False: it is open already, and keeps its priority.
  bool open_stream(std::uint8_t number, int priority);
  // Waits for all streams.
  void synchronize();
  // The first failure since the last call, if there was one.
  std::optional<Failure> take_failure();
  bool has_failure() const noexcept { return failed_.load(std::memory_order_acquire); }
  // Ends the threads after the items that they run now; what is queued is destroyed. Waits return.
  void stop() noexcept;

  void set_model(const DeviceModel& model);
  DeviceModel model() const;

  // StreamClock. A stream that was never opened has no work.
  std::uint64_t submitted(std::uint8_t stream) const noexcept override { return this->stream(stream).claimed(); }
  bool done(std::uint8_t stream, std::uint64_t ticket) const noexcept override {
    return this->stream(stream).done(ticket);
  }
  void wait(std::uint8_t stream, std::uint64_t ticket) override { this->stream(stream).wait_until(ticket); }

 private:
  friend class Stream;

  // A pipeline's thread sleeps here when nothing is ready for it.
  struct Lane {
    Pipeline pipeline = Pipeline::kCompute;
    std::atomic<bool> asleep{false};
    std::mutex mutex;
    std::condition_variable bell;
    std::uint64_t rung = 0;
    std::uint64_t virtual_ns = 0;
    std::once_flag started;
    std::thread thread;
  };

  void start(Lane& lane);
  void serve(Lane& lane, std::promise<void> begun);
  Stream::Slot* pick(const Lane& lane, Stream** from) noexcept;
  Stream::Slot* sleep_until_ready(Lane& lane, Stream** from);
  void run(Lane& lane, Stream& stream, Stream::Slot& slot);
  void pace(Lane& lane, std::uint64_t from_ns, std::uint64_t lasts_ns);
  Times virtual_times(Lane& lane, Stream& stream, const Work& work, std::uint64_t lasts_ns);
  void keep_failure(const Stream& stream, const Work& work, const char* text);

  void begin(Pipeline pipeline);     // its thread
  void announce(Pipeline pipeline);  // an item was submitted for it
  static void ring(Lane& lane) noexcept;
  void progressed(const Stream& stream, std::optional<Pipeline> next) noexcept;
  static void ring_everybody() noexcept;
  void wait_until_done(const Stream& stream, std::uint64_t ticket);
  // The same without ThreadHooks::while_waiting: for who holds a stream's lock, and must take nothing up again under it.
  void sleep_until_done(const Stream& stream, std::uint64_t ticket);

  EventClock clock_;
  ThreadHooks hooks_;
  mutable std::mutex model_mutex_;
  DeviceModel model_;
  std::atomic<bool> paces_{false};
  std::uint64_t virtual_begin_ns_;
  std::array<Stream, kStreamSlots> streams_;
  std::atomic<std::uint32_t> opened_{0};  // a bit a stream
  std::atomic<std::uint64_t> order_{0};
  std::array<Lane, kPipelines> lanes_;
  std::atomic<int> producer_cpu_{-1};
  std::atomic<bool> stopping_{false};
  std::mutex waiting_mutex_;
  std::condition_variable waiting_;
  bool stopped_ = false;  // under waiting_mutex_: no item runs any more
  std::atomic<int> waiters_{0};
  std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace ral
