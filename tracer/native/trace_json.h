// A streaming scanner of Chrome's trace format in JSON
// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): bytes in, cut anywhere; rows out,
// as columns. It holds no more of the text than one event, and survives what real files have wrong.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json_text.h"
#include "trace_table.h"

namespace ral::trace {

struct ScanOptions {
  std::vector<ArgField> fields;
  std::vector<std::string> leave_out;    // members of args that nobody needs
  std::vector<std::string> skip_arrows;  // arrows of these categories become no rows
  int nanoseconds_exponent = 3;          // a unit of ts and dur is 10^this ns
  std::string spill_folder = "/tmp";     // where the text of args goes that is too much
  std::size_t most_text = 256 << 20;     // bytes of it that stay in memory
};

// The text is no trace at all.
struct NotATrace : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class TraceScanner {
 public:
  explicit TraceScanner(ScanOptions options);

  // Throws NotATrace, and what SpillingTexts throws.
  void feed(std::string_view data);
  void finish();
  // The rows; complete after finish().
  [[nodiscard]] const std::shared_ptr<TraceTable>& table() const { return table_; }

  // What many rows have in common, in the order of their numbers.
  struct Group {
    std::int64_t track = 0;  // one a pid and tid; "7" and 7 are one
    std::optional<std::string> pid, tid, category;
    std::string phase;
    std::int64_t rows = 0;
    bool skipped = false;
  };
  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }
  // Members of the file besides traceEvents, as JSON.
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  [[nodiscard]] const Faults& faults() const { return faults_; }
  // The text ended before its list, or its object, was closed.
  [[nodiscard]] bool cut_off() const { return cut_off_; }
  // No time had a part below a microsecond.
  [[nodiscard]] bool whole_microseconds() const { return whole_microseconds_; }

 private:
  enum class State { kStart, kMembers, kEvents, kResync, kSkip, kEnd };

  struct Event {
    Text phase, category, name, id, id2, scope, binding, pid, tid, time, duration, number;
    bool local_id = false;
    std::string args;
    bool has_args = false;
    bool has_fields = false;  // some members of args are not in its text
    TraceTable::Spot spot;
    std::vector<std::optional<std::int64_t>> integers;
    std::vector<Text> texts;
  };

  void run(bool last);
  // One step of the state; false: more text is needed. May throw Incomplete, Malformed.
  bool step();
  bool start();
  bool step_members();
  bool step_events();
  bool resync(bool last);
  bool skip();
  void read_event(JsonText& text);
  void read_args(JsonText& text);
  bool take_field(JsonText& text, const ArgField& field, std::size_t column);
  void forget_fields();
  void add_event();
  void add_id(Row row);
  static bool is_of(const Group& group, const Event& event);
  std::int64_t group_of(const Event& event);
  [[nodiscard]] bool is_skipped(const Event& event) const;
  std::int64_t track_of(const Event& event);
  [[nodiscard]] JsonText text_here();
  void consumed(const char* until);
  void skip_from_here(Fault fault, State after);
  // Brings lines_ and line_begin_ up to position_.
  void count_lines();
  [[nodiscard]] std::string place(const char* at);

  ScanOptions options_;
  std::shared_ptr<TraceTable> table_;
  std::array<std::vector<std::pair<std::size_t, std::size_t>>, 32> fields_by_length_;  // key's length: field, column
  std::array<std::vector<std::size_t>, 32> left_out_by_length_;

  State state_ = State::kStart;
  State after_skip_ = State::kEvents;
  std::string buffer_;  // the text that is not consumed yet begins at position_
  std::size_t position_ = 0;
  std::size_t retry_at_ = 0;  // bytes from position_ on before the next try is worth it
  bool in_object_ = false;    // the list is a member of an object
  bool has_list_ = false;
  bool cut_off_ = false;
  bool finished_ = false;
  bool whole_microseconds_ = true;
  std::size_t skip_depth_ = 0;
  bool skip_in_string_ = false, skip_escaped_ = false;
  std::uint64_t offset_ = 0;                  // of position_
  std::uint64_t lines_ = 1, line_begin_ = 0;  // of counted_, up to which lines are counted: it costs less in one go
  std::size_t counted_ = 0;
  Row first_row_ = 0;  // those before come from a list that a later one of the same name supersedes

  Event event_;
  std::vector<Group> groups_;
  std::unordered_map<std::string, std::int64_t> group_numbers_, track_numbers_;
  std::array<std::int64_t, 16> recent_{};  // groups by a hash of what is cheap to look at; -1: none
  std::string group_key_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::unordered_map<std::string, std::size_t> metadata_places_;
  std::size_t metadata_bytes_ = 0;
  Faults faults_;
};

}  // namespace ral::trace
