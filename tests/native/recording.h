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
inline Calibration now_calibration() { return Calibration::identity(ticks(detect_clock_source())); }

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

inline std::size_t drain(RingReader& reader, const Calibration& clock, std::vector<Record>& scratch, Columns& into) {
  ColumnsSink sink(0, clock, into);
  return reader.drain(sink, scratch);
}

// A ring whose thread has begun.
inline RingWriter begun_ring(const std::string& path, std::uint64_t records, OnFull on_full = OnFull::kDrop) {
  RingWriter ring = RingWriter::create(path, records, on_full);
  CHECK(ring.ok());
  ring.begin(1);
  return ring;
}

// Writes a part of a file, as damage or another collector does.
template <typename T>
void patch(const std::string& path, std::size_t offset, const T& value) {
  std::FILE* file = std::fopen(path.c_str(), "r+b");
  CHECK(file != nullptr && std::fseek(file, static_cast<long>(offset), SEEK_SET) == 0);
  CHECK(std::fwrite(&value, sizeof value, 1, file) == 1 && std::fclose(file) == 0);
}

// A slot of the page, changed behind everybody's back.
template <typename Change>
void forge_slot(const Sessions& sessions, std::size_t slot, const Change& change) {
  const auto page = Rendezvous::open()->read();
  CHECK(page);
  SessionSlot forged = page->slots.at(slot);
  change(forged);
  patch(sessions.folder() + "/page", offsetof(Page, slots) + slot * sizeof(SessionSlot), forged);
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
