// The scanner of Chrome's JSON: what it makes of a text does not depend on where the text is cut, and no text whatever
// makes it read outside of it, hang, or give rows that the columns cannot hold.
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "decimal.h"
#include "trace_json.h"

namespace ral::trace {

namespace {

ScanOptions options() {
  return {{{"correlation", "correlation", ArgField::Type::kInt},
           {"Addr", "address", ArgField::Type::kUint},
           {"Call stack", "call_stack", ArgField::Type::kText}},
          {"Ev Idx"},
          {"ac2g"},
          3,
          "/tmp",
          std::size_t{1} << 20};
}

std::string seen(const ArrowBatch& batch) {
  std::string text;
  for (const ArrowColumn& column : batch.columns) {
    text += column.name + ":";
    const auto* valid = static_cast<const std::uint8_t*>(column.buffers[0]);
    for (std::int64_t row = 0; row < batch.rows; ++row) {
      if (valid != nullptr && ((valid[row / 8] >> (row % 8)) & 1) == 0) {
        text += "-|";
      } else if (column.format[0] == 'u') {
        const auto* ends = static_cast<const std::int32_t*>(column.buffers[1]);
        CHECK(ends[row] <= ends[row + 1]);
        text.append(static_cast<const char*>(column.buffers[2]) + ends[row],
                    static_cast<std::size_t>(ends[row + 1] - ends[row]));
        text += '|';
      } else {
        text += std::to_string(static_cast<const std::int64_t*>(column.buffers[1])[row]) + "|";
      }
    }
  }
  return text;
}

// All rows that a consumer can see, as text.
std::string seen(const TraceScanner& scanner) {
  const auto rows = raw_rows(scanner.table(), std::vector<bool>(scanner.groups().size(), true),
                             {"name", "dur_ns", "id", "bp", "args", "correlation", "address", "call_stack"});
  std::string text;
  while (const auto batch = rows->next()) {
    text += seen(*batch);
  }
  return text;
}

std::string outcome(const TraceScanner& scanner) {
  std::string text = seen(scanner);
  for (const auto& [key, value] : scanner.metadata()) {
    text += key + "=" + value + ";";
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(Fault::kCount); ++i) {
    text += std::to_string(scanner.faults().count(static_cast<Fault>(i))) + ",";
  }
  return text + (scanner.cut_off() ? "cut" : "whole");
}

// What comes of a text that is fed in parts of these lengths; "refused" where it is no trace.
std::string scan(std::string_view text, const std::vector<std::size_t>& cuts) {
  TraceScanner scanner(options());
  try {
    std::size_t from = 0;
    for (const std::size_t to : cuts) {
      scanner.feed(std::string(text.substr(from, to - from)));  // a copy of its own: reading beyond it is seen
      from = to;
    }
    scanner.feed(std::string(text.substr(from)));
    scanner.finish();
  } catch (const NotATrace&) {
    return "refused";
  }
  return outcome(scanner);
}

std::string scan_bytewise(std::string_view text) {
  std::vector<std::size_t> cuts(text.size());
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    cuts[i] = i + 1;
  }
  return scan(text, cuts);
}

const std::vector<std::string>& texts() {
  static const std::vector<std::string> all = {
      R"({"schemaVersion": 1, "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": "1", "ts": 1712345678901234.567, "dur": 1e1,
         "args": {"Ev Idx": 3, "correlation": 7, "a": [1, {"b": null}], "a": "twice", "Addr": 18446744073709551615}},
        {"ph": "s", "id": 7, "pid": 1, "tid": 1, "ts": 5, "cat": "ac2g", "name": "ac2g"},
        {"ph": "i", "ts": "-2.0005", "name": "\ud83d\ude80 \ud800 \u0000 \q \/", "args": {"x": -Infinity, "y": nan, "z": 01}},
        {"ph": "C", "name": "c", "ts": 1, "args": {"correlation": 5, "Ev Idx": "6"}},
        {"ph": "b", "id2": {"local": "0x1"}, "scope": "s", "ts": 3, "pid": 4, "args": "text"},
        5, "x", [1, [2]], null, {}
      ], "traceName": "C:\temp\new\x.json", "deep": [[[[[]]]]], "displayTimeUnit": "ms"} tail)",
      "[{\"ph\":\"X\",\"ts\":1,\"name\":\"a\xff\xc3\x28\xe2\x82\xac\xf0\x9f\x9a\"},{\"ph\":\"B\"\"ts\":2},"
      "{\"ph\":\"E\",\"ts\":3,},,{\"name\":\"n\x01\tb\"}",
      "\xEF\xBB\xBF [ ]",
      "{\"traceEvents\":[{\"ph\":\"X\",\"ts\":1}],\"traceEvents\":[{\"ph\":\"X\",\"ts\":2}]}",
  };
  return all;
}

TEST(a_text_means_the_same_wherever_it_is_cut) {
  for (const std::string& text : texts()) {
    const std::string whole = scan(text, {});
    CHECK(scan_bytewise(text) == whole);
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      CHECK(scan(text, {cut}) == whole);
    }
  }
}

TEST(every_beginning_of_a_text_keeps_the_whole_events_in_it) {
  const std::string& text = texts()[0];
  Row rows = 0;
  for (std::size_t size = 0; size < text.size(); ++size) {
    TraceScanner scanner(options());
    try {
      scanner.feed(std::string(text.substr(0, size)));
      scanner.finish();
    } catch (const NotATrace&) {
      CHECK(size < 2);  // nothing but space
      continue;
    }
    CHECK(scanner.table()->rows() >= rows);
    rows = scanner.table()->rows();
    CHECK(scanner.cut_off() == (size < text.size() - 5));
  }
  CHECK(rows == 4);
}

TEST(no_text_breaks_the_scanner) {
  std::mt19937 random(20261130);
  constexpr std::string_view kBytes = "{}[]\",:\\ue0-+.1tnIN \xff\x80\xc3\x00\n";
  for (int round = 0; round < 4000; ++round) {
    std::string text = texts()[random() % texts().size()];
    for (unsigned change = random() % 6 + 1; change > 0; --change) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = kBytes[random() % kBytes.size()];
          break;
        case 1:
          text.erase(at, random() % 9 + 1);
          break;
        case 2:
          text.insert(at, 1, kBytes[random() % kBytes.size()]);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
      }
      if (text.empty()) {
        text = "[";
      }
    }
    const std::string whole = scan(text, {});
    CHECK(scan_bytewise(text) == whole);
  }
}

TEST(depth_and_length_do_no_harm) {
  const std::string deep =
      "[{\"ph\":\"X\",\"args\":" + std::string(100'000, '[') + std::string(100'000, ']') + "},{\"ph\":\"i\"}]";
  CHECK(scan(deep, {}).find("whole") != std::string::npos);
  CHECK(scan("[" + std::string(1'000'000, '['), {}).find("cut") != std::string::npos);
  std::string keys = "[{\"ph\":\"X\",\"args\":{";
  for (int i = 0; i < 200'000; ++i) {
    keys += "\"k" + std::to_string(i % 100'000) + "\":" + std::to_string(i) + ",";
  }
  TraceScanner scanner(options());
  scanner.feed(keys + "}}]");
  scanner.finish();
  const std::string text = seen(scanner);
  CHECK(text.find("\"k99999\":199999") != std::string::npos);
  CHECK(text.find("\"k7\":7,") == std::string::npos);
}

TEST(times_are_exact) {
  const auto ns = [](std::string_view text) { return scaled_decimal(text, 3); };
  CHECK(ns("1712345678901234.567") == 1712345678901234567);
  CHECK(ns("-1700000000000030.0") == -1700000000000030000);
  CHECK(ns("0.0005") == 1);  // halves away from zero
  CHECK(ns("-0.0005") == -1);
  CHECK(ns("0.00049999999999999999999999999999999999999999999999") == 0);
  CHECK(ns("1.5e3") == 1500000);
  CHECK(ns("15E-4") == 2);
  CHECK(ns("9223372036854775.807") == 9223372036854775807);
  CHECK(ns("+.5") == 500);
  CHECK(ns("000000000000000000000000000000000000000000000000001") == 1000);
  CHECK(ns("1e-400") == 0);
  CHECK(ns("0e999999999999") == 0);
  for (const char* bad :
       {"9223372036854775.808", "1e300", "1e99999999999999", "", "-", ".", "1.2.3", "1e", "0x10", "NaN"}) {
    CHECK(!ns(bad));
  }
}

TEST(whole_numbers_keep_every_bit) {
  CHECK(whole_number("0x7fc7357f8000", true) == 0x7fc7357f8000);
  CHECK(whole_number("18446744073709551615", true) == -1);
  CHECK(whole_number("-9223372036854775807", false) == -9223372036854775807);
  for (const char* bad : {"18446744073709551616", "1.0", "", "-", "0x", "12a", "-18446744073709551615", "-1"}) {
    CHECK(!whole_number(bad, true));
  }
  CHECK(!whole_number("9223372036854775808", false));
}

}  // namespace

}  // namespace ral::trace
