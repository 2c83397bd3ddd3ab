#include "json_text.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

namespace ral::trace {

namespace {

constexpr int kDeepest = 64;
constexpr std::size_t kExampleBytes = 120;
constexpr std::size_t kFewMembers = 16, kManyMembers = 48;
constexpr std::uint32_t kReplacement = 0xFFFD;

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 63));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 63));
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  }
}

// As it stands in a string of JSON.
void append_escaped(std::string& out, std::uint32_t code) {
  if (code >= 32 && code != '"' && code != '\\') {
    append_utf8(out, code);
    return;
  }
  constexpr const char* kHex = "0123456789abcdef";
  out += '\\';
  switch (code) {
    case '"':
    case '\\':
      out += static_cast<char>(code);
      break;
    case '\n':
      out += 'n';
      break;
    case '\t':
      out += 't';
      break;
    case '\r':
      out += 'r';
      break;
    default:
      out += "u00";
      out += kHex[code >> 4];
      out += kHex[code & 15];
  }
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_json_number(std::string_view text) {
  std::size_t i = !text.empty() && text[0] == '-';
  const auto digits = [&] {
    const std::size_t first = i;
    while (i < text.size() && is_digit(text[i])) {
      ++i;
    }
    return i - first;
  };
  const std::size_t first = i;
  const std::size_t whole = digits();
  if (whole == 0 || (whole > 1 && text[first] == '0')) {
    return false;
  }
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) {
      return false;
    }
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    i += i < text.size() && (text[i] == '-' || text[i] == '+');
    if (digits() == 0) {
      return false;
    }
  }
  return i == text.size();
}

// inf, -Infinity, NaN, nan(ind), 1.#INF: what printf and Python write for what is no number.
bool is_not_finite(std::string_view text) {
  std::string low;
  for (const char c : text.substr(0, 16)) {
    low += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  const std::string_view bare = std::string_view(low).substr(!low.empty() && (low[0] == '-' || low[0] == '+'));
  return bare.substr(0, 3) == "inf" || bare.substr(0, 3) == "nan" || bare.find(".#") != std::string_view::npos;
}

// What bare words are made of: letters, digits, and +-._#().
constexpr std::array<bool, 256> word_bytes() {
  std::array<bool, 256> found{};
  for (unsigned c = 0; c < 256; ++c) {
    found[c] = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' ||
               c == '.' || c == '_' || c == '#' || c == '(' || c == ')';
  }
  return found;
}

constexpr std::array<bool, 256> kWordBytes = word_bytes();

}  // namespace

void Faults::add(Fault fault, std::string_view example) {
  const auto i = static_cast<std::size_t>(fault);
  if (counts_[i]++ == 0) {
    examples_[i] = example.substr(0, kExampleBytes);
  }
}

const char* sentence(Fault fault) {
  switch (fault) {
    case Fault::kBadUtf8:
      return "bytes that are not UTF-8: shown as U+FFFD";
    case Fault::kBadEscape:
      return "backslashes that begin no escape of JSON: kept as backslashes";
    case Fault::kSurrogate:
      return "NUL characters and halves of surrogate pairs: shown as U+FFFD";
    case Fault::kNotFinite:
      return "numbers that are infinite or not a number: read as unknown";
    case Fault::kBareWord:
      return "values that are no JSON: kept as text";
    case Fault::kTooDeep:
      return "values nested deeper than 64 levels: left out";
    case Fault::kMalformed:
      return "events that are not JSON: left out";
    case Fault::kNotAnEvent:
      return "entries of the list that are no events: left out";
    case Fault::kTooLong:
      return "events longer than 64 MiB: left out";
    case Fault::kMetadataTooLong:
      return "members of the file longer than 4 MiB: left out";
    case Fault::kTrailing:
      return "text after the end of the trace: left out";
    case Fault::kCount:
      break;
  }
  return "";
}

std::int32_t JsonText::hex4(const char* from) const {
  std::int32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    if (from + i == end_) {
      throw Incomplete{};
    }
    const char c = from[i];
    if (is_digit(c)) {
      value = value * 16 + (c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + (c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      value = value * 16 + (c - 'A' + 10);
    } else {
      return -1;
    }
  }
  return value;
}

void JsonText::emit(std::string& out, As as, std::uint32_t code) {
  if (code == 0) {
    faults_->add(Fault::kSurrogate, "NUL");
    code = kReplacement;
  }
  if (as == As::kText) {
    append_utf8(out, code);
  } else {
    append_escaped(out, code);
  }
}

void JsonText::read_escape(std::string& out, As as) {
  if (at_ + 1 == end_) {
    throw Incomplete{};
  }
  static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeaning = "\"\\/\b\f\n\r\t";
  const std::size_t i = kLetters.find(at_[1]);
  if (i != std::string_view::npos) {
    at_ += 2;
    emit(out, as, static_cast<unsigned char>(kMeaning[i]));
  } else if (at_[1] == 'u' && hex4(at_ + 2) >= 0) {
    read_unicode_escape(out, as);
  } else {
    faults_->add(Fault::kBadEscape, std::string_view(at_, std::min<std::size_t>(end_ - at_, 24)));
    ++at_;
    emit(out, as, '\\');
  }
}

void JsonText::read_unicode_escape(std::string& out, As as) {
  const auto first = static_cast<std::uint32_t>(hex4(at_ + 2));
  std::size_t bytes = 6;
  std::uint32_t code = first;
  if (first >= 0xD800 && first < 0xE000) {
    code = kReplacement;
    if (first < 0xDC00) {
      if (at_ + 6 == end_ || (at_[6] == '\\' && at_ + 7 == end_)) {
        throw Incomplete{};
      }
      const std::int32_t second = at_[6] == '\\' && at_[7] == 'u' ? hex4(at_ + 8) : -1;
      if (second >= 0xDC00 && second < 0xE000) {
        code = 0x10000 + ((first - 0xD800) << 10) + (static_cast<std::uint32_t>(second) - 0xDC00);
        bytes = 12;
      }
    }
    if (code == kReplacement) {
      faults_->add(Fault::kSurrogate, std::string_view(at_, 6));
    }
  }
  at_ += bytes;
  emit(out, as, code);
}

void JsonText::read_multibyte(std::string& out) {
  const auto lead = static_cast<unsigned char>(*at_);
  const int more = lead >= 0xC2 && lead < 0xE0   ? 1
                   : lead >= 0xE0 && lead < 0xF0 ? 2
                   : lead >= 0xF0 && lead < 0xF5 ? 3
                                                 : 0;
  int good = 0;
  for (; good < more; ++good) {
    if (at_ + 1 + good == end_) {
      throw Incomplete{};
    }
    const auto next = static_cast<unsigned char>(at_[1 + good]);
    // The second byte says whether the form is overlong, a surrogate, or beyond Unicode.
    const unsigned least = good > 0 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned most = good > 0 ? 0xBF : lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (next < least || next > most) {
      break;
    }
  }
  if (more > 0 && good == more) {
    out.append(at_, static_cast<std::size_t>(more) + 1);
  } else {
    faults_->add(Fault::kBadUtf8, out.size() < kExampleBytes ? std::string_view(out) : std::string_view());
    append_utf8(out, kReplacement);
  }
  at_ += 1 + good;
}

void JsonText::read_string(std::string& out, As as) {
  ++at_;  // the quote
  while (true) {
    const char* stop = plain_end(at_, end_);
    out.append(at_, static_cast<std::size_t>(stop - at_));
    at_ = stop;
    const char c = peek();
    if (c == '"') {
      ++at_;
      return;
    }
    if (c == '\\') {
      read_escape(out, as);
    } else if (static_cast<unsigned char>(c) < 32) {
      ++at_;
      emit(out, as, static_cast<unsigned char>(c));
    } else {
      read_multibyte(out);
    }
  }
}

std::string_view JsonText::bare_word() {
  const char* first = at_;
  while (kWordBytes[static_cast<unsigned char>(peek())]) {
    ++at_;
  }
  if (at_ == first) {
    throw Malformed{at_};
  }
  return {first, static_cast<std::size_t>(at_ - first)};
}

// No string, or one with escapes or what is not ASCII.
void JsonText::read_odd_text(Text& out) {
  out.clear();
  const char c = peek();
  if (c == '{' || c == '[') {
    skip_container();
    return;
  }
  if (c != '"') {
    out.view = bare_word();
    out.quoted = false;
    out.given = out.view != "null";
    return;
  }
  out.quoted = true;
  out.scratch.clear();
  read_string(out.scratch, As::kText);
  out.view = out.scratch;
  out.given = true;
}

void JsonText::skip_string() {
  ++at_;
  while (peek() != '"') {
    if (*at_ == '\\') {
      ++at_;
      static_cast<void>(peek());
    }
    ++at_;
    at_ = std::find_if(at_, end_, [](char c) { return c == '"' || c == '\\'; });
  }
  ++at_;
}

void JsonText::skip_container() {
  std::size_t depth = 0;
  do {
    const char c = peek();
    if (c == '"') {
      skip_string();
      continue;
    }
    depth += c == '{' || c == '[';
    depth -= c == '}' || c == ']';
    ++at_;
  } while (depth > 0);
}

void JsonText::skip_value() {
  const char c = peek();
  if (c == '"') {
    skip_string();
  } else if (c == '{' || c == '[') {
    skip_container();
  } else {
    static_cast<void>(bare_word());
  }
}

void JsonText::append_quoted(std::string& out, std::string_view text) {
  const char* end = text.data() + text.size();
  out += '"';
  for (const char* at = text.data(); at != end;) {
    const char* stop = plain_end(at, end);
    out.append(at, static_cast<std::size_t>(stop - at));
    at = stop;
    if (at != end) {
      // What is above ASCII was decoded before: it is UTF-8.
      if (static_cast<unsigned char>(*at) < 128) {
        append_escaped(out, static_cast<unsigned char>(*at));
      } else {
        out += *at;
      }
      ++at;
    }
  }
  out += '"';
}

void JsonText::copy_bare_word(std::string& out) {
  const std::string_view word = bare_word();
  if (is_json_number(word) || word == "true" || word == "false" || word == "null") {
    out += word;
  } else if (is_not_finite(word)) {
    faults_->add(Fault::kNotFinite, word);
    out += "null";
  } else {
    faults_->add(Fault::kBareWord, word);
    out += '"';
    out += word;
    out += '"';
  }
}

void JsonText::copy_value(std::string& out, int depth) {
  const char c = peek();
  if (c == '"') {
    out += '"';
    read_string(out, As::kJson);
    out += '"';
  } else if (c != '{' && c != '[') {
    copy_bare_word(out);
  } else if (depth >= kDeepest) {
    faults_->add(Fault::kTooDeep, {});
    skip_container();
    out += "null";
  } else if (c == '{') {
    copy_object(out, depth + 1);
  } else {
    copy_array(out, depth + 1);
  }
}

void JsonText::copy_object(std::string& out, int depth) {
  out += '{';
  const std::size_t first = out.size();
  MemberList members(out);
  each_member([&](std::string_view key) {
    const std::size_t begin = out.size();
    append_quoted(out, key);
    const std::size_t key_bytes = out.size() - begin;
    out += ':';
    copy_value(out, depth);
    out += ',';
    members.added(begin, key_bytes);
  });
  members.finish();
  if (out.size() > first) {
    out.pop_back();
  }
  out += '}';
}

void JsonText::copy_array(std::string& out, int depth) {
  out += '[';
  ++at_;
  bool any = false;
  while (true) {
    skip_space();
    const char c = peek();
    if (c == ']') {
      break;
    }
    if (c == ',') {
      ++at_;
      continue;
    }
    if (any) {
      out += ',';
    }
    any = true;
    copy_value(out, depth);
    skip_space();
    if (peek() != ',' && peek() != ']') {
      throw Malformed{at_};
    }
  }
  ++at_;
  out += ']';
}

std::size_t MemberList::find(std::string_view wanted) {
  if (members_.size() < kManyMembers) {
    for (std::size_t i = members_.size(); i-- > 0;) {
      if (members_[i].key_bytes == wanted.size() && key(members_[i]) == wanted) {
        return i;
      }
    }
    return members_.size();
  }
  if (slots_.size() < members_.size() * 2) {
    slots_.assign(members_.size() * 4, 0);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      std::size_t slot = std::hash<std::string_view>{}(key(members_[i])) % slots_.size();
      while (slots_[slot] != 0) {
        slot = (slot + 1) % slots_.size();
      }
      slots_[slot] = static_cast<std::uint32_t>(i + 1);
    }
  }
  std::size_t slot = std::hash<std::string_view>{}(wanted) % slots_.size();
  while (slots_[slot] != 0 && key(members_[slots_[slot] - 1]) != wanted) {
    slot = (slot + 1) % slots_.size();
  }
  if (slots_[slot] != 0) {
    return slots_[slot] - 1;
  }
  slots_[slot] = static_cast<std::uint32_t>(members_.size() + 1);
  return members_.size();
}

void MemberList::added(std::size_t begin, std::size_t key_bytes) {
  const Member added{begin, key_bytes, out_.size()};
  const std::size_t same = find(std::string_view(out_).substr(begin, key_bytes));
  if (same == members_.size()) {
    if (members_.empty()) {
      members_.reserve(kFewMembers);
    }
    members_.push_back(added);
    return;
  }
  superseded_.emplace_back(members_[same].begin, members_[same].end);
  members_[same] = added;
}

void MemberList::finish() {
  std::sort(superseded_.begin(), superseded_.end());
  std::size_t removed = 0;
  for (std::size_t i = 0; i < superseded_.size(); ++i) {
    const std::size_t from = superseded_[i].second;
    const std::size_t to = i + 1 < superseded_.size() ? superseded_[i + 1].first : out_.size();
    removed += superseded_[i].second - superseded_[i].first;
    std::memmove(out_.data() + from - removed, out_.data() + from, to - from);
  }
  out_.resize(out_.size() - removed);
}

}  // namespace ral::trace
