// A recording inside the test's own process: its writer writes, its reader reads.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "check.h"
#include "reader.h"
#include "sessions.h"
#include "writer_state.h"

namespace ral::trace {

inline const Calibration kTicksAsNs = Calibration::identity();

// A calibration that is sound for ticks of now; the tests that use it look at no times.
inline Calibration now_calibration() {
  return Calibration::identity(ticks(detect_clock_source()));
}

class TestRecording {
 public:
  explicit TestRecording(std::uint64_t ring_records = 1024, std::int32_t target = 0, OnFull on_full = OnFull::kDrop) {
    static std::atomic<std::uint64_t> next{1};
    const auto failed = Writer::instance().start("", "");
    CHECK(!failed);
    session = next++;
    folder = "session-" + std::to_string(session);
    CHECK(::mkdir((sessions.folder() + "/" + folder).c_str(), 0700) == 0);
    slot = sessions.begin(session, target, ring_records, folder, kAnnotations, on_full);
    CHECK(slot >= 0);
    Writer::instance().sync();
  }

  void end() {
    sessions.end(static_cast<std::size_t>(slot));
    Writer::instance().sync();
  }

  ~TestRecording() {
    sessions.release(static_cast<std::size_t>(slot));
    Writer::instance().sync();
    std::filesystem::remove_all(path());
  }

  std::string path() const { return sessions.folder() + "/" + folder; }
  std::string process_path(pid_t pid = ::getpid()) const {
    return path() + "/" + std::to_string(pid) + "-" + std::to_string(process_started(pid));
  }
  std::unique_ptr<ProcessReader> reader() const {
    auto found = ProcessReader::open(process_path());
    CHECK(found != nullptr);
    return found;
  }

  Sessions sessions;
  std::uint64_t session;
  std::string folder;
  int slot;
};

// Drains into columns.
inline std::size_t drain(ProcessReader& reader, std::int32_t process, const Calibration& clock, Columns& into) {
  ColumnsSink sink(process, clock, into);
  return reader.drain(sink);
}

inline const WriterApi& api() { return Writer::instance().api(); }

inline void emit_numbered(std::uint64_t number) {
  Record record = make_record(Kind::kInstant, 0);
  record.arg0 = number;
  emit_instant(api(), record);
}

inline void check_balanced(const Account& account) {
  CHECK(account.written == account.received + account.dropped + account.lost);
}

}  // namespace ral::trace
