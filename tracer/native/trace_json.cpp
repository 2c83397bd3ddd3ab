#include "trace_json.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "decimal.h"

namespace ral::trace {

namespace {

// Times and durations from here on are none: so an end, with the base of a file's times in it too, fits 64 bits.
constexpr std::int64_t kLatest = std::int64_t{1} << 61;  // ns: 73 years
constexpr std::size_t kLongestEvent = 64 << 20;
constexpr std::size_t kLongestMember = 4 << 20;
constexpr std::size_t kMostGroups = 100'000;
constexpr std::size_t kMostMetadata = 64 << 20;
constexpr std::size_t kShownBytes = 100;
constexpr std::ptrdiff_t kLookAhead = 1024;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// In parts whose sums fit a byte: so the compiler counts many bytes at once.
std::uint64_t lines_in(const char* from, const char* until) {
  std::uint64_t lines = 0;
  while (from != until) {
    const std::ptrdiff_t some = std::min<std::ptrdiff_t>(until - from, 255);
    std::uint8_t sum = 0;
    for (std::ptrdiff_t i = 0; i < some; ++i) {
      sum = static_cast<std::uint8_t>(sum + (from[i] == '\n'));
    }
    lines += sum;
    from += some;
  }
  return lines;
}

template <std::size_t N>
bool is_one_of(std::string_view text, const std::array<std::string_view, N>& all) {
  return std::find(all.begin(), all.end(), text) != all.end();
}

// Keys with which an event begins, and with which a member of the file may follow the list: where to go on after text
// that is not JSON.
constexpr std::array<std::string_view, 15> kEventKeys = {"ph", "name", "cat",  "pid",   "tid", "ts",   "dur", "id",
                                                         "s",  "bp",   "args", "cname", "tts", "tdur", "id2"};
constexpr std::array<std::string_view, 14> kFileKeys = {
    "traceName",       "displayTimeUnit",    "baseTimeNanoseconds", "schemaVersion",     "deviceProperties",
    "distributedInfo", "metadata",           "otherData",           "systemTraceEvents", "stackFrames",
    "samples",         "viztracer_metadata", "file_info",           "trace_id"};

}  // namespace

TraceScanner::TraceScanner(ScanOptions options)
    : options_(std::move(options)),
      table_(std::make_shared<TraceTable>(options_.fields, options_.spill_folder, options_.most_text)) {
  for (std::size_t i = 0; i < options_.fields.size(); ++i) {
    const ArgField& field = options_.fields[i];
    fields_by_length_[std::min<std::size_t>(field.key.size(), 31)].emplace_back(i, table_->column_of(field.column));
  }
  for (std::size_t i = 0; i < options_.leave_out.size(); ++i) {
    left_out_by_length_[std::min<std::size_t>(options_.leave_out[i].size(), 31)].push_back(i);
  }
  event_.spot.resize(table_->spot_size());
  event_.integers.resize(table_->integers.size());
  event_.texts.resize(table_->texts.size());
  recent_.fill(-1);
}

JsonText TraceScanner::text_here() { return {buffer_.data() + position_, buffer_.data() + buffer_.size(), faults_}; }

void TraceScanner::consumed(const char* until) {
  const auto bytes = static_cast<std::size_t>(until - (buffer_.data() + position_));
  offset_ += bytes;
  position_ += bytes;
  retry_at_ = 0;
  faults_.keep();
}

void TraceScanner::count_lines() {
  const char* from = buffer_.data() + counted_;
  const char* until = buffer_.data() + position_;
  if (const auto lines = lines_in(from, until); lines > 0) {
    lines_ += lines;
    const char* line = std::find(std::make_reverse_iterator(until), std::make_reverse_iterator(from), '\n').base();
    line_begin_ = offset_ - static_cast<std::uint64_t>(until - line);
  }
  counted_ = position_;
}

std::string TraceScanner::place(const char* at) {
  count_lines();
  const char* from = buffer_.data() + position_;
  const auto lines = lines_in(from, at);
  const std::uint64_t offset = offset_ + static_cast<std::uint64_t>(at - from);
  const char* line = std::find(std::make_reverse_iterator(at), std::make_reverse_iterator(from), '\n').base();
  const std::uint64_t column = lines > 0 ? static_cast<std::uint64_t>(at - line) : offset - line_begin_;
  return "line " + std::to_string(lines_ + lines) + ", column " + std::to_string(column + 1);
}

void TraceScanner::feed(std::string_view data) {
  count_lines();
  buffer_.erase(0, position_);
  position_ = counted_ = 0;
  buffer_.append(data);
  run(false);
}

void TraceScanner::finish() {
  if (finished_) {
    return;
  }
  finished_ = true;
  retry_at_ = 0;
  run(true);
  if (state_ == State::kStart || (in_object_ && !has_list_ && state_ == State::kEnd)) {
    throw NotATrace(state_ == State::kStart ? "holds nothing but space" : "has no list traceEvents");
  }
  cut_off_ = state_ != State::kEnd;
  table_->finish(first_row_);
}

void TraceScanner::run(bool last) {
  bool more = true;
  while (more) {
    if (buffer_.size() - position_ < retry_at_) {
      return;
    }
    try {
      more = state_ == State::kResync ? resync(last) : step();
    } catch (const Incomplete&) {
      faults_.forget();
      const std::size_t waiting = buffer_.size() - position_;
      const bool member = state_ == State::kMembers;
      if (waiting > (member ? kLongestMember : kLongestEvent)) {
        skip_from_here(member ? Fault::kMetadataTooLong : Fault::kTooLong, state_);
        continue;
      }
      // Long ones are tried again when there is half as much more: their cost stays linear.
      retry_at_ = waiting + waiting / 2;
      return;
    } catch (const Malformed& wrong) {
      if (state_ != State::kEvents) {
        throw NotATrace("is not JSON at " + place(wrong.at));
      }
      const char* from = buffer_.data() + position_;
      faults_.add(Fault::kMalformed, place(wrong.at));
      consumed(std::max(from + 1, wrong.at));
      state_ = State::kResync;
    }
  }
}

bool TraceScanner::step() {
  switch (state_) {
    case State::kStart:
      return start();
    case State::kMembers:
      return step_members();
    case State::kEvents:
      return step_events();
    case State::kSkip:
      return skip();
    case State::kResync:
    case State::kEnd:
      break;
  }
  JsonText text = text_here();
  text.skip_space();
  consumed(text.at());
  if (position_ < buffer_.size()) {
    if (faults_.count(Fault::kTrailing) == 0) {
      faults_.add(Fault::kTrailing, place(text.at()));
    }
    consumed(buffer_.data() + buffer_.size());
  }
  return false;
}

bool TraceScanner::start() {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (offset_ == 0) {
    const std::string_view begin = std::string_view(buffer_).substr(position_, 3);
    if (begin.size() < 3 && !finished_ && kByteOrderMark.substr(0, begin.size()) == begin) {
      return false;
    }
    if (begin == kByteOrderMark) {
      consumed(buffer_.data() + position_ + 3);
      line_begin_ = 3;
    }
  }
  JsonText text = text_here();
  text.skip_space();
  consumed(text.at());
  if (position_ == buffer_.size()) {
    return false;
  }
  const char first = text.peek();
  if (first != '[' && first != '{') {
    const bool shown = first > ' ' && first < '\x7f';
    const std::string what = shown ? std::string{'\'', first, '\''} : "byte " + std::to_string(first & 0xFF);
    throw NotATrace("is no JSON list or object: at " + place(text.at()) + " it has " + what);
  }
  in_object_ = first == '{';
  has_list_ = !in_object_;
  state_ = in_object_ ? State::kMembers : State::kEvents;
  consumed(text.at() + 1);
  return true;
}

bool TraceScanner::step_members() {
  JsonText text = text_here();
  while (true) {
    text.skip_space();
    const char c = text.peek();
    if (c == '}') {
      text.skip_byte();
      state_ = State::kEnd;
      consumed(text.at());
      return true;
    }
    if (c != ',') {
      break;
    }
    text.skip_byte();
  }
  if (text.peek() != '"') {
    throw Malformed{text.at()};
  }
  Text key;
  text.read_text(key);
  text.skip_space();
  if (text.peek() != ':') {
    throw Malformed{text.at()};
  }
  text.skip_byte();
  text.skip_space();
  if (key.view == "traceEvents" && text.peek() == '[') {
    has_list_ = true;
    first_row_ = table_->rows();
    state_ = State::kEvents;
    text.skip_byte();
  } else {
    std::string value;
    text.copy_value(value);
    text.skip_space();
    if (text.peek() != ',' && text.peek() != '}') {
      throw Malformed{text.at()};
    }
    metadata_bytes_ += value.size() + key.view.size();
    if (metadata_bytes_ > kMostMetadata) {
      faults_.add(Fault::kMetadataTooLong, key.view);
    } else {
      const auto [same, fresh] = metadata_places_.emplace(key.view, metadata_.size());
      if (fresh) {
        metadata_.emplace_back(key.view, std::move(value));
      } else {
        metadata_[same->second].second = std::move(value);
      }
    }
  }
  consumed(text.at());
  return true;
}

bool TraceScanner::step_events() {
  JsonText text = text_here();
  while (true) {
    text.skip_space();
    consumed(text.at());
    const char c = text.peek();
    if (c == '{') {
      read_event(text);
      consumed(text.at());
      add_event();
    } else if (c == ',') {
      text.skip_byte();
    } else if (c == ']') {
      text.skip_byte();
      state_ = in_object_ ? State::kMembers : State::kEnd;
      consumed(text.at());
      return true;
    } else {
      const char* begin = text.at();
      text.skip_value();
      faults_.add(Fault::kNotAnEvent, {begin, std::min<std::size_t>(text.at() - begin, kShownBytes)});
      consumed(text.at());
    }
  }
}

// Goes to the next text that looks like the beginning of an event, or like the end of the list.
bool TraceScanner::resync(bool last) {
  const char* end = buffer_.data() + buffer_.size();
  const auto over_space = [end](const char* at) { return std::find_if_not(at, end, &is_space); };
  const auto key_at = [&](const char* at) -> std::optional<std::string_view> {
    if (at == end || *at != '"') {
      return std::nullopt;
    }
    const char* stop = std::find(at + 1, end, '"');
    if (stop == end) {
      return std::nullopt;
    }
    return std::string_view(at + 1, static_cast<std::size_t>(stop - at - 1));
  };
  const char* at = buffer_.data() + position_;
  for (; (at = static_cast<const char*>(std::memchr(at, '}', end - at))) != nullptr; ++at) {
    const char* next = over_space(at + 1);
    if (next != end && *next == ',') {
      next = over_space(next + 1);
      if (next != end && *next == '{') {
        if (const auto key = key_at(over_space(next + 1)); key && is_one_of(*key, kEventKeys)) {
          consumed(next);
          state_ = State::kEvents;
          return true;
        }
      }
    } else if (next != end && *next == ']') {
      const char* list_end = next;
      next = over_space(next + 1);
      const bool object_ends = next != end && *next == '}' && over_space(next + 1) == end && last;
      const bool member_follows = next != end && *next == ',' && [&] {
        const auto key = key_at(over_space(next + 1));
        return key && is_one_of(*key, kFileKeys);
      }();
      if ((next == end && last) || object_ends || member_follows) {
        consumed(list_end);
        state_ = State::kEvents;
        return true;
      }
    }
    if (!last && end - at < kLookAhead) {
      break;  // what follows the brace may not be here yet
    }
  }
  consumed(at == nullptr ? end : at);
  return false;
}

void TraceScanner::skip_from_here(Fault fault, State after) {
  const char* from = buffer_.data() + position_;
  const char* end = buffer_.data() + buffer_.size();
  // The comma before it is not the one behind it, where skipping ends.
  from = std::find_if(from, end, [](char c) { return std::strchr(", \t\r\n", c) == nullptr || c == '\0'; });
  faults_.add(fault, place(from));
  consumed(from);
  skip_depth_ = 0;
  skip_in_string_ = skip_escaped_ = false;
  after_skip_ = after;
  state_ = State::kSkip;
  retry_at_ = 0;
}

// Over one event, or over one member of the file up to the comma or brace behind it.
bool TraceScanner::skip() {
  const char* end = buffer_.data() + buffer_.size();
  for (const char* at = buffer_.data() + position_; at != end; ++at) {
    const char c = *at;
    if (skip_escaped_) {
      skip_escaped_ = false;
    } else if (skip_in_string_) {
      skip_escaped_ = c == '\\';
      skip_in_string_ = c != '"';
    } else if (c == '"') {
      skip_in_string_ = true;
    } else if (skip_depth_ == 0 && (c == ',' || c == '}' || c == ']')) {
      state_ = after_skip_;
      consumed(at);
      return true;
    } else if (c == '{' || c == '[') {
      ++skip_depth_;
    } else if (c == '}' || c == ']') {
      --skip_depth_;
    }
  }
  consumed(end);
  return false;
}

void TraceScanner::read_event(JsonText& text) {
  Event& event = event_;
  for (Text* one : {&event.phase, &event.category, &event.name, &event.id, &event.id2, &event.scope, &event.binding,
                    &event.pid, &event.tid, &event.time, &event.duration}) {
    one->clear();
  }
  event.has_args = event.local_id = false;
  forget_fields();
  const auto place_of = [&event](std::string_view key) -> Text* {
    switch (key.size()) {
      case 2:
        return key == "ph"   ? &event.phase
               : key == "ts" ? &event.time
               : key == "id" ? &event.id
               : key == "bp" ? &event.binding
                             : nullptr;
      case 3:
        return key == "cat"   ? &event.category
               : key == "pid" ? &event.pid
               : key == "tid" ? &event.tid
               : key == "dur" ? &event.duration
                              : nullptr;
      case 4:
        return key == "name" ? &event.name : nullptr;
      case 5:
        return key == "scope" ? &event.scope : nullptr;
      default:
        return nullptr;
    }
  };
  std::optional<JsonText> args_at;
  text.each_member([&](std::string_view key) {
    if (Text* place = place_of(key)) {
      text.read_text(*place);
    } else if (key == "args") {
      args_at = text;
      read_args(text);
    } else if (key == "id2" && text.peek() == '{') {
      text.each_member([&](std::string_view kind) {
        event.local_id = kind == "local";
        text.read_text(event.id2);
      });
    } else {
      text.skip_value();
    }
  });
  // All members of these are names of series or of places: none is a field.
  if (args_at && event.has_fields && (event.phase.view == "C" || event.phase.view == "M")) {
    event.args.clear();
    args_at->copy_value(event.args);
    event.has_args = true;
  }
}

void TraceScanner::read_args(JsonText& text) {
  std::string& out = event_.args;
  out.clear();
  event_.has_args = true;
  forget_fields();
  if (text.peek() != '{') {
    text.copy_value(out);
    event_.has_args = out != "null";
    return;
  }
  out += '{';
  MemberList members(out);
  text.each_member([&](std::string_view key) {
    const std::size_t length = std::min<std::size_t>(key.size(), 31);
    for (const auto& [field, column] : fields_by_length_[length]) {
      if (options_.fields[field].key == key) {
        if (take_field(text, options_.fields[field], column)) {
          return;
        }
        break;
      }
    }
    for (const std::size_t i : left_out_by_length_[length]) {
      if (options_.leave_out[i] == key) {
        event_.has_fields = true;
        text.skip_value();
        return;
      }
    }
    const std::size_t begin = out.size();
    JsonText::append_quoted(out, key);
    const std::size_t key_bytes = out.size() - begin;
    out += ':';
    text.copy_value(out, 1);
    out += ',';
    members.added(begin, key_bytes);
  });
  members.finish();
  if (out.size() == 1) {
    event_.has_args = false;
    return;
  }
  out.back() = '}';
}

void TraceScanner::forget_fields() {
  if (!event_.has_fields) {
    return;
  }
  event_.has_fields = false;
  std::fill(event_.spot.begin(), event_.spot.end(), std::nullopt);
  std::fill(event_.integers.begin(), event_.integers.end(), std::nullopt);
  for (Text& one : event_.texts) {
    one.clear();
  }
}

// Takes a value of the field's type. False: it is another, and belongs to the text of args.
bool TraceScanner::take_field(JsonText& text, const ArgField& field, std::size_t column) {
  const char c = text.peek();
  if (c == '{' || c == '[' || (field.type == ArgField::Type::kText && c != '"')) {
    return false;
  }
  JsonText ahead = text;
  const std::size_t place = table_->place_of(column);
  if (field.type == ArgField::Type::kText) {
    ahead.read_text(event_.texts[place]);
  } else {
    Text& value = event_.number;
    ahead.read_text(value);
    const auto number = whole_number(value.view, field.type == ArgField::Type::kUint);
    if (!number && value.given) {
      return false;
    }
    (field.type == ArgField::Type::kLabel ? event_.spot : event_.integers)[place] = number;
  }
  event_.has_fields = true;
  text = ahead;
  return true;
}

std::int64_t TraceScanner::track_of(const Event& event) {
  std::string key(1, event.pid.given ? '1' : '0');
  key += event.tid.given ? '1' : '0';
  key.append(event.pid.view).append(1, '\0').append(event.tid.view);
  return track_numbers_.emplace(std::move(key), static_cast<std::int64_t>(track_numbers_.size())).first->second;
}

bool TraceScanner::is_of(const Group& group, const Event& event) {
  const auto same = [](const std::optional<std::string>& one, const Text& other) {
    return one.has_value() == other.given && (!other.given || *one == other.view);
  };
  return group.phase == event.phase.view && same(group.tid, event.tid) && same(group.category, event.category) &&
         same(group.pid, event.pid);
}

std::int64_t TraceScanner::group_of(const Event& event) {
  const std::string_view tid = event.tid.view;
  const std::size_t hash = event.category.view.size() + (tid.empty() ? 0 : static_cast<unsigned char>(tid.back())) +
                           (event.phase.view.empty() ? 0 : static_cast<unsigned char>(event.phase.view[0]));
  std::int64_t& recent = recent_[hash % recent_.size()];
  if (recent < 0 || !is_of(groups_[static_cast<std::size_t>(recent)], event)) {
    std::string& key = group_key_;
    key.assign(1, static_cast<char>('0' + event.pid.given + 2 * event.tid.given + 4 * event.category.given));
    key.append(event.phase.view).append(1, '\0').append(event.category.view).append(1, '\0');
    key.append(event.pid.view).append(1, '\0').append(event.tid.view);
    const auto [found, fresh] = group_numbers_.emplace(key, static_cast<std::int64_t>(groups_.size()));
    if (fresh) {
      if (groups_.size() == kMostGroups) {
        throw NotATrace("has more than 100,000 combinations of phase, category, process and thread");
      }
      const auto text = [](const Text& one) { return one.given ? std::optional(std::string(one.view)) : std::nullopt; };
      groups_.push_back({track_of(event), text(event.pid), text(event.tid), text(event.category),
                         std::string(event.phase.view), 0, is_skipped(event)});
    }
    recent = found->second;
  }
  ++groups_[static_cast<std::size_t>(recent)].rows;
  return recent;
}

bool TraceScanner::is_skipped(const Event& event) const {
  const std::string_view phase = event.phase.view;
  const auto& skipped = options_.skip_arrows;
  return (phase == "s" || phase == "t" || phase == "f") && event.category.given &&
         std::find(skipped.begin(), skipped.end(), event.category.view) != skipped.end();
}

void TraceScanner::add_event() {
  Event& event = event_;
  if (!event.phase.given) {
    if (event.name.given || event.time.given || event.has_args) {
      faults_.add(Fault::kNotAnEvent, event.name.view);
    }
    return;  // an empty object ends the lists of some writers
  }
  const std::int64_t group = group_of(event);
  if (groups_[static_cast<std::size_t>(group)].skipped) {
    return;
  }
  const auto nanoseconds = [&](const Text& text) {
    const auto value = text.given ? scaled_decimal(text.view, options_.nanoseconds_exponent) : std::nullopt;
    const std::int64_t known = value.value_or(TraceTable::kNone);
    if (known >= kLatest || known <= -kLatest) {
      return TraceTable::kNone;
    }
    whole_microseconds_ = whole_microseconds_ && known % 1000 == 0;
    return known;
  };
  TraceTable& table = *table_;
  const std::uint32_t label =
      table.label(static_cast<std::uint32_t>(group), table.spot(event.spot), event.name.given, event.name.view);
  const std::int64_t ts_ns = nanoseconds(event.time);
  const Row row = table.add(label, ts_ns, nanoseconds(event.duration));
  add_id(row);
  if (event.binding.given) {
    table.binding.add(row, event.binding.view);
  }
  if (event.has_args) {
    table.args.add(row, event.args);
  }
  if (!event.has_fields) {
    return;
  }
  for (std::size_t i = 0; i < event.integers.size(); ++i) {
    if (event.integers[i]) {
      table.integers[i].set(row, *event.integers[i]);
    }
  }
  for (std::size_t i = 0; i < event.texts.size(); ++i) {
    if (event.texts[i].given) {
      table.text_numbers[i].resize(row, Texts::kNone);
      table.text_numbers[i].push_back(table.texts[i].number(event.texts[i].view));
    }
  }
}

void TraceScanner::add_id(Row row) {
  const Event& event = event_;
  const Text& id = event.id2.given ? event.id2 : event.id;
  if (!id.given) {
    return;
  }
  if (!event.scope.given && !(event.id2.given && event.local_id)) {
    table_->id.add(row, id.view);
    return;
  }
  std::string whole(id.view);
  if (event.local_id) {
    whole.append("@").append(event.pid.view);
  }
  table_->id.add(row, whole.append("/").append(event.scope.view));
}

}  // namespace ral::trace
