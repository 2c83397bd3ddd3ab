// From the rows of a scanned trace, and what each of their labels means, to rows of `event`: durations and flags, which
// host call launched what, parents by nesting, steps. Times are nanoseconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nesting.h"
#include "record.h"
#include "trace_table.h"

namespace ral::trace {

// What the rows of a label are. Ids are the caller's; -1: none.
struct Meaning {
  // Beside kinds of events: calls that may have launched something, which become launches, syncs or runtime calls.
  static constexpr std::uint8_t kCall = 128, kSyncCall = 129, kLeftOut = 255;
  enum Trait : std::uint8_t {
    kPoint = 1,           // without a duration
    kComplete = 2,        // says its duration itself: without one it is unfinished
    kOperator = 4,        // backward where it says a thread that went forward
    kMemory = 8,          // alloc or free by the sign of its bytes, where it has some
    kMayBeNegative = 16,  // its bytes
    kArrowEnd = 32,       // no event: an end of an arrow
    kCounted = 64,        // what is wrong with its times is told
  };
  std::uint8_t kind = kLeftOut;
  std::uint8_t depth = 0;  // of rows with the same times, the one with the least depth encloses the others
  std::uint8_t traits = 0;
  std::int32_t category = -1;
  std::int32_t process = -1, thread = -1, device = -1, stream = -1;
  static constexpr std::int64_t kNoStep = -2;
  std::int64_t step = -1;  // that its rows state; kNoStep: one that is no number

  [[nodiscard]] bool is(Trait trait) const { return (traits & trait) != 0; }
};

// When a step was, in a process.
struct StepInterval {
  std::int32_t process;
  std::int64_t step, start_ns, end_ns;
};

// What is wrong with some rows: how often, and the first row, with the value that is wrong.
struct OddRows {
  std::uint64_t count = 0;
  Row example = UINT32_MAX;
  std::int64_t value = TraceTable::kNone;
};

class TraceEvents {
 public:
  static constexpr Row kNoRow = UINT32_MAX;

  // The methods are to be called in this order. `inner_first`: of rows with the same times and depth, the inner one
  // was written first.
  TraceEvents(std::shared_ptr<TraceTable> table, std::vector<Meaning> meanings, bool inner_first);

  // What rows get besides what they say of themselves; a duration TraceTable::kNone: none.
  void amend(Row row, std::int64_t dur_ns, std::uint8_t flags, std::string args);
  // Calls of Python (the rows of `labels`) whose return was not seen: the profiler ends them when it stops, and so do all
  // that follow them. They are unfinished, and end where the next call of the same caller begins, where the file says who
  // called. `stop_ns` TraceTable::kNone: it stopped at the last end, if several calls have it.
  void end_overruns(const std::vector<bool>& labels, std::int64_t stop_ns);
  void settle();
  [[nodiscard]] const OddRows& timeless() const { return timeless_; }
  [[nodiscard]] const OddRows& negative() const { return negative_; }
  [[nodiscard]] const OddRows& odd_bytes() const { return odd_bytes_; }
  // Rows on devices that ended until `start_ns`, and of whose correlation no thread has a row, become invalid.
  OddRows flag_leftovers(std::int64_t start_ns);
  // The first start on a thread, or of all; TraceTable::kNone where there is none.
  [[nodiscard]] std::int64_t first_start(bool on_threads) const;
  // Of the calls with the correlation of work on a device, the first is its launch.
  void find_launches();
  // The steps of a process are sorted by their start.
  void place(const std::vector<StepInterval>& steps, std::int64_t tolerance_ns);
  // An event whose parent nesting does not say has the operator of its `external` number, where it is a call, or work on
  // a device that nobody launched.
  void state_parents();

  // The columns of `event` that have values. The ids are first + row, stacks stack_first + number.
  [[nodiscard]] static std::unique_ptr<ArrowSource> rows(std::shared_ptr<TraceEvents> events, std::int64_t first,
                                                         std::int64_t stack_first, std::vector<std::string> categories,
                                                         std::int32_t backward, std::int64_t rows_a_batch);
  // Launches, and what they started.
  [[nodiscard]] std::vector<std::pair<Row, Row>> launched() const;
  // Of each end of an arrow: the row that encloses it, and the next one that begins.
  struct ArrowEnd {
    Row row, parent, next;
  };
  [[nodiscard]] const std::vector<ArrowEnd>& arrow_ends() const { return arrow_ends_; }

 private:
  friend class EventRows;

  // Calls and work on devices with one correlation.
  struct Launch {
    std::int32_t process;
    std::int64_t correlation;
    Row call = kNoRow;
    std::int32_t device = -1;  // of all that it started; -2: there are several
  };
  struct Span {
    std::int64_t start_ns, dur_ns, order;
    Row row;
  };

  [[nodiscard]] const Meaning& of(Row row) const { return meanings_[table_->label_of[row]]; }
  [[nodiscard]] bool is_event(Row row) const {
    return of(row).kind != Meaning::kLeftOut && table_->ts_ns[row] != TraceTable::kNone;
  }
  [[nodiscard]] static bool is_call(const Meaning& meaning) {
    return meaning.kind == Meaning::kCall || meaning.kind == Meaning::kSyncCall;
  }
  [[nodiscard]] static bool is_work(const Meaning& meaning) {
    return meaning.kind == static_cast<std::uint8_t>(Kind::kKernel) ||
           meaning.kind == static_cast<std::uint8_t>(Kind::kTransfer);
  }
  [[nodiscard]] std::int64_t duration(Row row) const {
    return table_->dur_ns[row] == TraceTable::kNone ? 0 : table_->dur_ns[row];
  }
  [[nodiscard]] std::int64_t correlation(Row row) const;  // 0: none
  void check_bytes(Row row, const Meaning& meaning);
  // The number of the launch with a correlation, from 1; 0: there is none, and none is to be made.
  std::uint32_t launch_number(std::int32_t process, std::int64_t correlation, bool make);
  void grow_launches();
  [[nodiscard]] std::vector<std::vector<Span>> spans() const;
  void place_thread(std::int32_t thread, const std::vector<Span>& spans, std::int64_t tolerance_ns);
  void find_next(const std::vector<Span>& spans);
  void find_steps(const std::vector<StepInterval>& steps);

  std::shared_ptr<TraceTable> table_;
  std::vector<Meaning> meanings_;  // a label
  bool inner_first_;
  RowIntegers nothing_;
  RowIntegers *correlations_, *externals_, *bytes_, *forward_threads_, *python_ids_, *python_parents_;  // or nothing_
  const std::vector<std::uint32_t>* stacks_ = nullptr;
  std::vector<std::uint8_t> flags_;  // a row
  std::unordered_map<Row, std::string> amended_args_;
  std::unordered_map<Row, std::int64_t> amended_;
  OddRows timeless_, negative_, odd_bytes_;
  std::vector<Launch> launches_;
  std::vector<std::uint32_t> launch_slots_;
  std::vector<std::uint32_t> launch_of_;  // a row on a device, or a launch: the number of its Launch, from 1
  std::vector<Row> parent_;               // a row
  std::vector<std::int64_t> step_;        // a row; -1: none
  std::vector<ArrowEnd> arrow_ends_;
};

}  // namespace ral::trace
