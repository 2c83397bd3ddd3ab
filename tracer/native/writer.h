// What an event site includes. The writer itself (thread-local state, ring registry, watcher) lives once in a process,
// in `ral_trace.tracer._native`; every other module reaches it through the function table that this header declares.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "clock.h"
#include "layout.h"

namespace ral::trace {

// Raised whenever WriterApi or ThreadView change, so that a module built against another layout refuses to load.
inline constexpr std::uint32_t kWriterApiVersion = 3;
inline constexpr const char* kWriterCapsule = "ral_trace.tracer._native._writer_api";

// What one thread knows about where it is. Plain data of the calling thread; never shared.
struct ThreadView {
  std::uint32_t visible_op;  // name id of the op that a TorchDispatchMode would see running now; 0: none
  std::uint32_t tid;
};

// Called by the writer when a session has begun or ended. `sessions` has one bit a session slot. The callback may emit
// to exactly those sessions with emit_to (a device describes itself and its live blocks to a session that has just
// begun).
// Any may be null.
struct SessionListener {
  void (*on_attach)(std::uint32_t sessions, void* context);
  void (*on_detach)(std::uint32_t remaining_sessions, void* context);
  // What is wanted (Detail bits) is something else now; 0 when nobody records.
  void (*on_details)(std::uint32_t details, void* context);
  void* context;
};

struct WriterApi {
  std::uint32_t version;
  ClockSource clock;
  // Bits of the sessions that record now. One relaxed load of this is all that an event site costs when nobody records.
  const std::atomic<std::uint32_t>* sessions;
  // What some session wants to know now (Detail bits).
  const std::atomic<std::uint32_t>* details;
  // Appends to the calling thread's ring of every recording session. `record.sequence` is filled in here.
  void (*emit)(const Record& record) noexcept;
  void (*emit_to)(std::uint32_t sessions, const Record& record) noexcept;
  // Name id of a text, for temporaries (compares contents). 0 until a session has recorded this process: do not cache a
  // 0 ...
  std::uint32_t (*intern)(const char* text, std::size_t length) noexcept;
  // ... and a process-unique correlation id, never 0.
  std::uint64_t (*next_correlation)() noexcept;
  ThreadView* (*thread_view)() noexcept;
  void (*add_listener)(const SessionListener& listener);
  // The calling thread's Python stack as an id for Record::stack; 0: it runs no Python, or there is no room for it.
  // Needs no GIL where the stack was seen before; takes it where not, so: under no lock.
  std::uint32_t (*python_stack)() noexcept;
  // Counts an event of the calling thread that was left out to stay within an overhead.
  void (*count_shed)() noexcept;
  // Adds to what recording took on the calling thread.
  void (*add_spent)(std::uint64_t ticks) noexcept;
  // Asks the collectors to write out what the rings hold, where they keep the last seconds only.
  void (*raise_alarm)(Alarm alarm) noexcept;
};

inline bool recording(const WriterApi& api) noexcept {
  return __builtin_expect(api.sessions->load(std::memory_order_relaxed) != 0, 0);
}

inline bool wants(const WriterApi& api, std::uint32_t details) noexcept {
  return (api.details->load(std::memory_order_relaxed) & details) != 0;
}

inline Record make_record(Kind kind, std::uint32_t name, std::int8_t device = kNoDevice,
                          std::uint8_t stream = 0) noexcept {
  Record record{};
  record.bytes = -1;
  record.kind = kind;
  record.name = name;
  record.device = device;
  record.stream = stream;
  return record;
}

inline void emit_instant(const WriterApi& api, Record& record) noexcept {
  record.start_ticks = record.end_ticks = ticks(api.clock);
  api.emit(record);
}

}  // namespace ral::trace
