// A tolerant reader of JSON text that lies in memory. What it repairs it counts; what it copies is valid JSON.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ral::trace {

enum class Fault : std::uint8_t {
  kBadUtf8,
  kBadEscape,
  kSurrogate,
  kNotFinite,
  kBareWord,
  kTooDeep,
  kMalformed,
  kNotAnEvent,
  kTooLong,
  kMetadataTooLong,
  kTrailing,
  kCount
};

// What was met, how often, and the first example of each.
class Faults {
 public:
  void add(Fault fault, std::string_view example);
  // Forgets what was added since the last keep(): the text is read once more.
  void forget() { counts_ = kept_; }
  void keep() { kept_ = counts_; }
  [[nodiscard]] std::uint64_t count(Fault fault) const { return counts_[static_cast<std::size_t>(fault)]; }
  [[nodiscard]] const std::string& example(Fault fault) const { return examples_[static_cast<std::size_t>(fault)]; }

 private:
  std::array<std::uint64_t, static_cast<std::size_t>(Fault::kCount)> counts_{}, kept_{};
  std::array<std::string, static_cast<std::size_t>(Fault::kCount)> examples_;
};

// One sentence for `quality`.
const char* sentence(Fault fault);

// Thrown where the text ends too early: more of it may come.
struct Incomplete {};

// Thrown where the text cannot be JSON, however much of it comes.
struct Malformed {
  const char* at;
};

// A string or a bare word, decoded. It points into the text or into its own scratch.
struct Text {
  bool given = false;
  bool quoted = false;
  std::string_view view;
  std::string scratch;

  void clear() {
    given = false;
    view = {};
  }
};

// The first byte that is not plain text of a string: a quote, a backslash, a control character, or above ASCII.
inline const char* plain_end(const char* at, const char* end) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte is the lowest of a word");
  constexpr std::uint64_t kOnes = 0x0101010101010101, kHighs = 0x8080808080808080;
  for (; end - at >= 8; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    const std::uint64_t quote = word ^ (kOnes * '"'), slash = word ^ (kOnes * '\\');
    // A byte's high bit comes out set where it was 0 (the first two), below 32 (the third), or above ASCII.
    const std::uint64_t found =
        (((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash) | (word - kOnes * 32) | word) & kHighs;
    if (found != 0) {
      // What is borrowed can only spoil bytes behind the first.
      return at + __builtin_ctzll(found) / 8;
    }
  }
  while (at != end && *at != '"' && *at != '\\' && static_cast<unsigned char>(*at) >= 32 &&
         static_cast<unsigned char>(*at) < 128) {
    ++at;
  }
  return at;
}

class JsonText {
 public:
  JsonText(const char* begin, const char* end, Faults& faults) : at_(begin), end_(end), faults_(&faults) {}

  [[nodiscard]] const char* at() const { return at_; }
  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) {
      ++at_;
    }
  }
  void skip_byte() { ++at_; }
  // The next byte; throws Incomplete at the end.
  [[nodiscard]] char peek() const {
    if (at_ == end_) {
      throw Incomplete{};
    }
    return *at_;
  }

  // Skips a value of any kind and depth.
  void skip_value();
  // Reads a string or a bare word; null, and what is neither, leaves `out` not given.
  void read_text(Text& out) {
    if (at_ != end_ && *at_ == '"') {
      const char* stop = plain_end(at_ + 1, end_);
      if (stop != end_ && *stop == '"') {
        out.view = {at_ + 1, static_cast<std::size_t>(stop - at_ - 1)};
        out.quoted = out.given = true;
        at_ = stop + 1;
        return;
      }
    }
    read_odd_text(out);
  }
  // Appends the next value to `out` as valid JSON.
  void copy_value(std::string& out, int depth = 0);
  // Appends it as text inside quotes.
  static void append_quoted(std::string& out, std::string_view text);

  // Calls member(key) for each member of the object that begins here; it must take the value. The key's text is valid
  // until then.
  template <typename Member>
  void each_member(Member member) {
    ++at_;  // the brace
    Text key;
    while (true) {
      skip_space();
      const char c = peek();
      if (c == '}') {
        ++at_;
        return;
      }
      if (c == ',') {
        ++at_;
        continue;
      }
      if (c != '"') {
        throw Malformed{at_};
      }
      read_text(key);
      skip_space();
      if (peek() != ':') {
        throw Malformed{at_};
      }
      ++at_;
      skip_space();
      member(key.view);
      skip_space();
      if (peek() != ',' && peek() != '}') {
        throw Malformed{at_};
      }
    }
  }

 private:
  enum class As { kText, kJson };

  void read_odd_text(Text& out);
  std::string_view bare_word();
  void copy_bare_word(std::string& out);
  void read_string(std::string& out, As as);
  void read_escape(std::string& out, As as);
  void read_unicode_escape(std::string& out, As as);
  void read_multibyte(std::string& out);
  void emit(std::string& out, As as, std::uint32_t code_point);
  // The four digits of \uXXXX at `from`, or -1.
  [[nodiscard]] std::int32_t hex4(const char* from) const;
  void skip_string();
  void skip_container();
  void copy_object(std::string& out, int depth);
  void copy_array(std::string& out, int depth);

  const char* at_;
  const char* end_;
  Faults* faults_;
};

// Keeps the last of members with one key in an object that is being written: each member is text up to and with a
// comma.
class MemberList {
 public:
  explicit MemberList(std::string& out) : out_(out) {}
  // Call after a member was appended that begins at `begin`, with its key's JSON text (in quotes) of `key_bytes`.
  void added(std::size_t begin, std::size_t key_bytes);
  // Takes out the members that others have superseded.
  void finish();

 private:
  struct Member {
    std::size_t begin;
    std::size_t key_bytes;
    std::size_t end;
  };
  [[nodiscard]] std::string_view key(const Member& member) const {
    return std::string_view(out_).substr(member.begin, member.key_bytes);
  }
  [[nodiscard]] std::size_t find(std::string_view key);

  std::string& out_;
  std::vector<Member> members_;
  std::vector<std::pair<std::size_t, std::size_t>> superseded_;  // begin and end
  std::vector<std::uint32_t> slots_;                             // a hash table of members_, once there are many
};

}  // namespace ral::trace
