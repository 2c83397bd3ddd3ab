// Where a reader puts what it drains.
#pragma once

#include <cstddef>
#include <cstdint>

#include "columns.h"
#include "record.h"

namespace ral::trace {

// The ring that records come from, and where they stood in it.
struct Drained {
  std::uint32_t ring;
  std::uint32_t tid;
  std::uint64_t first;  // the number of the first record read
  std::uint64_t read;   // records read; those that are handed over are sound, and may be fewer
};

class RecordSink {
 public:
  RecordSink() = default;
  RecordSink(const RecordSink&) = delete;
  RecordSink& operator=(const RecordSink&) = delete;
  virtual ~RecordSink() = default;
  // False: they could not be kept, and none of them was.
  virtual bool take(const Drained& from, const Record* records, std::size_t count) = 0;
};

class ColumnsSink : public RecordSink {
 public:
  ColumnsSink(std::int32_t process, const Calibration& clock, Columns& into)
      : process_(process), clock_(clock), into_(into) {}
  bool take(const Drained& from, const Record* records, std::size_t count) override {
    into_.append(process_, from.tid, records, count, clock_);
    return true;
  }

 private:
  std::int32_t process_;
  const Calibration& clock_;
  Columns& into_;
};

// What every later stage counts on: indices into tables, and numbers that fit the trace's columns. `near` are ticks of
// the recording's time.
bool is_sound(const Record& record, std::uint64_t near);
// Not an event: what a device says of itself, what was there before the recording, the use of a block.
bool is_fact(const Record& record);

}  // namespace ral::trace
