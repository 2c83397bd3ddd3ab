// The backend's event sites: thin helpers over the process's one writer (tracer/native/writer.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launch_site.h"
#include "writer.h"

namespace ral::events {

// Set once, when the module is loaded and before any device exists.
extern const trace::WriterApi* writer;

inline bool on() noexcept { return trace::recording(*writer); }
inline std::uint64_t now() noexcept { return trace::ticks(writer->clock); }
inline std::uint32_t intern(std::string_view text) noexcept { return writer->intern(text.data(), text.size()); }

// A text that is interned once, when it is first needed.
class Name {
 public:
  explicit Name(std::string text) : text_(std::move(text)) {}
  const std::string& text() const { return text_; }
  std::uint32_t id() const noexcept {
    std::uint32_t id = id_.load(std::memory_order_relaxed);
    if (id == 0) {
      id = intern(text_);
      id_.store(id, std::memory_order_relaxed);
    }
    return id;
  }

 private:
  std::string text_;
  mutable std::atomic<std::uint32_t> id_{0};
};

// The line of the program that an event deserves: where somebody wants it, as Record::stack. May take the GIL, so: under
// no lock.
inline std::uint32_t site_stack() noexcept {
  return __builtin_expect(trace::wants(*writer, trace::kSiteStacks), 0) ? writer->python_stack() : 0;
}

// The op that the user called, as a TorchDispatchMode sees it; outside any recorded op the routed op's own name.
inline std::uint32_t user_op(std::uint32_t otherwise) noexcept {
  const std::uint32_t visible = writer->thread_view()->visible_op;
  return visible != 0 ? visible : otherwise;
}

// One launch on the host, from construction to destruction; what it started on the device shares `correlation`.
// Does nothing where nobody recorded at its beginning.
class Launch {
 public:
  Launch(const Name& routed, std::int8_t device, std::uint8_t stream = 0) noexcept {
    if (__builtin_expect(on(), 0)) {
      begin(routed, device, stream);
    }
  }
  ~Launch() {
    if (__builtin_expect(active_, 0)) {
      finish();
    }
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  bool active() const noexcept { return active_; }
  // Where the program launches it, if that is asked for.
  const LaunchSite& site() const noexcept { return site_; }
  std::uint32_t name() const noexcept { return active_ ? record_.name : 0; }
  std::uint64_t correlation() const noexcept { return record_.correlation; }
  void set_route(const Name& route) noexcept {
    if (active_) {
      record_.arg1 = route.id();
    }
  }
  // It ends on the CPU after all, which deserves the line of the program. Under no lock.
  void note_fallback() noexcept {
    if (active_) {
      record_.stack = site_stack();
    }
  }
  // Nothing was launched after all (an error before it, a zero-size copy): no event.
  void cancel() noexcept { active_ = false; }

  // A record of the work itself: a kernel or transfer on the device's row (through Started), or the fallback that took
  // its place on the host.
  void work(trace::Kind kind, std::uint64_t start, std::uint64_t end, std::int64_t bytes, std::uint64_t arg0,
            std::uint64_t arg1) const noexcept;

 private:
  friend class Started;
  friend class Wait;
  void begin(const Name& routed, std::int8_t device, std::uint8_t stream) noexcept;
  void finish() noexcept;

  bool active_ = false;
  trace::Record record_;  // only read where active
  LaunchSite site_ = gather_launch_site();
};

// What a launch started, as a stream's item carries it: the launch itself stays with its thread.
class Started {
 public:
  explicit Started(const Launch& launch) noexcept {
    if (__builtin_expect(launch.active_, 0)) {
      record_ = launch.record_;
    }
  }
  bool active() const noexcept { return record_.has_value(); }
  // Only where active.
  void work(trace::Kind kind, std::uint64_t start, std::uint64_t end, std::int64_t bytes, std::uint64_t arg0,
            std::uint64_t arg1) const noexcept;

 private:
  std::optional<trace::Record> record_;
};

// A wait of the host for a device, from construction to destruction. Made under no lock: it takes the line of the program.
class Sync {
 public:
  Sync(std::uint32_t name, std::int8_t device, std::uint8_t stream, std::uint32_t waited_for, bool forced) noexcept;
  ~Sync();
  Sync(const Sync&) = delete;
  Sync& operator=(const Sync&) = delete;

 private:
  bool active_ = false;
  trace::Record record_;
};

// A wait of the host for the first run of a call that looks like this: what comes out of it is not known yet.
class Wait {
 public:
  Wait(const Launch& launch, std::int8_t device) noexcept;
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

 private:
  bool active_ = false;
  trace::Record record_;
};

// Throws std::runtime_error where the writer has another layout than this module was built with. Needs the GIL.
void connect();

}  // namespace ral::events
