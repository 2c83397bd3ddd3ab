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

inline const Calibration kTicksAsNs{0, 0, std::uint64_t{1} << 32};

// A calibration that is sound for ticks of now; the tests that use it look at no times.
inline Calibration now_calibration() {
  const std::uint64_t now = ticks(detect_clock_source());
  return {now, 0, std::uint64_t{1} << 32};
}

class TestRecording {
 public:
  explicit TestRecording(std::uint64_t ring_records = 1024, std::int32_t target = 0) {
    static std::atomic<std::uint64_t> next{1};
    const auto failed = Writer::instance().start("", "");
    CHECK(!failed);
    session = next++;
    folder = "session-" + std::to_string(session);
    CHECK(::mkdir((sessions.folder() + "/" + folder).c_str(), 0700) == 0);
    slot = sessions.begin(session, target, ring_records, folder);
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
