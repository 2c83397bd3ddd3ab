// What a collector has drained, in a file of its own: it outlives the collector, and is read as often as need be.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reader.h"

namespace ral::trace {

// A block of the file: this, then `count` records.
struct SpoolBlock {
  std::uint64_t magic;
  std::int32_t process;
  std::uint32_t ring;
  std::uint32_t tid;
  std::uint32_t count;
  std::uint64_t first;  // in its ring
  std::uint64_t read;   // what was read there; `count` of these were sound
  std::uint64_t ticks;  // of when it was written
};

inline constexpr std::uint64_t kSpoolMagic = 0x2e6c6f6f70736c72;  // "rlspool."

class Spool {
 public:
  // Makes the file, or goes on with one that is there: what a dying collector had not finished is cut off. Throws
  // std::runtime_error.
  explicit Spool(std::string path);

  // False: there is no room on the disk. The file keeps what it had.
  bool append(std::int32_t process, const Drained& from, const Record* records, std::size_t count);
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  // What the file holds of each ring of a process.
  [[nodiscard]] TakenRings taken(std::int32_t process) const;

 private:
  File file_;
  std::uint64_t bytes_ = 0;
  std::map<std::int32_t, TakenRings> taken_;  // of the file as it was found
};

class SpoolSink : public RecordSink {
 public:
  SpoolSink(Spool& spool, std::int32_t process) : spool_(spool), process_(process) {}
  bool take(const Drained& from, const Record* records, std::size_t count) override {
    failed_ = failed_ || !spool_.append(process_, from, records, count);
    return !failed_;
  }
  [[nodiscard]] bool failed() const noexcept { return failed_; }

 private:
  Spool& spool_;
  std::int32_t process_;
  bool failed_ = false;
};

// Reads the file in pieces; its writer may go on.
class SpoolReader {
 public:
  // Throws std::runtime_error where there is no such file of ours.
  explicit SpoolReader(const std::string& path);
  // Appends whole blocks until there are `rows` or more; false: there is nothing left. Records that began before
  // `since_ticks` and ended before it are left out.
  bool next(const Calibration& clock, std::size_t rows, std::uint64_t since_ticks, Columns& into);

 private:
  bool read_block(SpoolBlock* block);

  File file_;
  std::uint64_t offset_ = 0;
  std::vector<Record> scratch_;
};

}  // namespace ral::trace
