#include "json_lines.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace ral::trace {

using namespace perfetto;

namespace {

template <typename Number>
void append(std::string& text, Number number) {
  char digits[32];
  text.append(digits, std::to_chars(std::begin(digits), std::end(digits), number).ptr);
}

bool is_plain(char character) {
  return static_cast<unsigned char>(character) >= 0x20 && character != '"' && character != '\\';
}

// Exactly, with all three decimals.
void append_microseconds(std::string& text, std::uint64_t ns) {
  append(text, ns / 1000);
  const auto rest = static_cast<unsigned>(ns % 1000);
  text += {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
           static_cast<char>('0' + rest % 10)};
}

// https://www.rfc-editor.org/rfc/rfc8259#section-7; what comes from the database is UTF-8.
void append_quoted(std::string& into, std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  into += '"';
  while (!text.empty()) {
    const auto end = static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_plain) - text.begin());
    into += text.substr(0, end);
    if (end == text.size()) {
      break;
    }
    const char character = text[end];
    if (character == '"' || character == '\\') {
      into += {'\\', character};
    } else {
      into += "\\u00";
      into += {kHex[character >> 4], kHex[character & 15]};
    }
    text.remove_prefix(end + 1);
  }
  into += '"';
}

}  // namespace

void JsonLines::begin_line() {
  chunk_ += begun_ ? ",\n" : "";
  begun_ = true;
}

void JsonLines::end_line() {
  if (chunk_.size() >= chunk_bytes_) {
    finish();
  }
}

void JsonLines::finish() {
  if (!chunk_.empty()) {
    const std::string chunk = std::exchange(chunk_, {});
    sink_(chunk);
  }
}

void JsonLines::line(std::string_view text) {
  begin_line();
  chunk_ += text;
  end_line();
}

void JsonLines::objects(ColumnStream& rows) {
  while (rows.next()) {
    const std::vector<Column> columns = columns_of(rows);
    for (std::size_t row = 0; row < rows.rows(); ++row) {
      begin_line();
      members(rows, columns, row, 0);
      end_line();
    }
  }
}

void JsonLines::members(const ColumnStream& rows, const std::vector<Column>& columns, std::size_t row,
                        std::size_t first) {
  char before = '{';
  for (std::size_t column = first; column < columns.size(); ++column) {
    if (columns[column].null(row)) {
      continue;
    }
    chunk_ += std::exchange(before, ',');
    append_quoted(chunk_, rows.name(column));
    chunk_ += ':';
    switch (rows.type(column)) {
      case kInteger:
        append(chunk_, columns[column].integer(row));
        break;
      case kText:
        append_quoted(chunk_, columns[column].text(row));
        break;
      case kBytes:
        chunk_ += columns[column].text(row);
        break;
      default:
        throw std::runtime_error("column " + std::string(rows.name(column)) + " is no BIGINT, VARCHAR or BLOB");
    }
  }
  chunk_ += before == '{' ? "{}" : "}";
}

void JsonLines::counters(ColumnStream& rows, std::int64_t zero_ns, const Frame& frame) {
  rows.expect("ll");
  const bool real = rows.columns() > 2 && rows.type(2) == kReal;
  rows.expect(real ? "llg" : "lll");
  std::optional<std::int64_t> drawn;
  std::optional<std::pair<std::string, std::string>> around;
  while (rows.next()) {
    const Column keys = rows[0], times = rows[1], values = rows[2];
    for (std::size_t row = 0; row < rows.rows(); ++row) {
      if (drawn != keys.integer(row)) {
        drawn = keys.integer(row);
        around = frame(*drawn);
      }
      if (!around) {
        continue;
      }
      begin_line();
      chunk_ += around->first;
      append_microseconds(chunk_, static_cast<std::uint64_t>(times.integer(row)) - static_cast<std::uint64_t>(zero_ns));
      chunk_ += around->second;
      if (real) {
        append(chunk_, values.real(row));
      } else {
        append(chunk_, values.integer(row));
      }
      chunk_ += "}}";
      end_line();
    }
  }
}

void JsonLines::slices(ColumnStream& rows, ColumnStream& arrows, std::int64_t zero_ns, const Place& place) {
  rows.expect(kSliceTypes);
  ArrowCursor tips(arrows);
  std::string where;
  while (rows.next()) {
    const std::vector<Column> columns = columns_of(rows);
    for (std::size_t row = 0; row < rows.rows(); ++row) {
      const std::int64_t key = columns[kTrack].integer(row);
      const std::int64_t start = columns[kStart].integer(row);
      const std::int64_t shape = columns[kShape].integer(row);
      Track& track = tracks_[key];
      std::size_t lane = 0;
      if (shape != kPoint) {
        lane = track.lanes.place(start, shape == kOpen ? kNeverEnds : end_of(start, columns[kDuration].integer(row)));
      }
      while (track.places.size() <= lane) {
        track.places.push_back(place(key, static_cast<std::int64_t>(track.places.size())));
      }
      where = track.places[lane];
      where += ",\"ts\":";
      append_microseconds(where, static_cast<std::uint64_t>(start) - static_cast<std::uint64_t>(zero_ns));
      slice(rows, columns, row, where);
      while (const auto tip = tips.next(columns[kId].integer(row))) {
        arrow(*tip, where);
      }
    }
  }
}

void JsonLines::slice(const ColumnStream& rows, const std::vector<Column>& columns, std::size_t row,
                      std::string_view where) {
  const std::int64_t shape = columns[kShape].integer(row);
  begin_line();
  chunk_ += shape == kSlice ? "{\"ph\":\"X\"," : shape == kOpen ? "{\"ph\":\"B\"," : "{\"ph\":\"i\",\"s\":\"t\",";
  chunk_ += where;
  if (shape == kSlice) {
    chunk_ += ",\"dur\":";
    append_microseconds(chunk_, static_cast<std::uint64_t>(columns[kDuration].integer(row)));
  }
  chunk_ += ",\"name\":";
  append_quoted(chunk_, columns[kName].text(row));
  chunk_ += ",\"cat\":";
  append_quoted(chunk_, columns[kCategory].text(row));
  chunk_ += ",\"args\":";
  members(rows, columns, row, kFirstAnnotation);
  chunk_ += '}';
  end_line();
}

void JsonLines::arrow(const ArrowTip& tip, std::string_view where) {
  begin_line();
  chunk_ += tip.second ? "{\"ph\":\"f\",\"bp\":\"e\",\"id\":" : "{\"ph\":\"s\",\"id\":";
  append(chunk_, tip.number);
  chunk_ += ',';
  chunk_ += where;
  chunk_ += ",\"name\":\"flow\",\"cat\":\"flow\"}";
  end_line();
}

}  // namespace ral::trace
