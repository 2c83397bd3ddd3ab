// Reads pickles of plain data: dictionaries with text keys, lists, tuples, text, bytes, numbers, truth, nothing.
//
// A pickle is a program for a small stack machine, and most of its instructions call things. The machine below has only
// those that make plain data, so that there is nothing in it that a hostile file could call. What it takes, in memory
// and in time, is bounded by the file's own length. Opcodes: Lib/pickletools.py of CPython.
#include "plain_pickle.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace py = pybind11;

namespace ral::trace {
namespace {

constexpr std::uint8_t kNewestProtocol = 5;
constexpr std::size_t kLongestInteger = 16;
// Writers number what they remember from 0; a file that begins at 4,000,000,000 wants memory, not data.
constexpr std::size_t kMemoSlack = 1 << 16;
constexpr std::size_t kInstructionsBetweenSignals = 1 << 20;

class Damaged : public std::exception {
 public:
  Damaged(std::size_t at, const std::string& what) : text_("byte " + std::to_string(at) + ": " + what) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

// Text of the file in a message for a terminal.
std::string printable(std::string_view text) {
  std::string shown(text.substr(0, 80));
  std::replace_if(shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

class Reader {
 public:
  explicit Reader(std::string_view data) : data_(data) {}

  py::object read() {
    for (std::size_t instructions = 1;; ++instructions) {
      if (instructions % kInstructionsBetweenSignals == 0 && PyErr_CheckSignals() != 0) {
        throw py::error_already_set();
      }
      begin_ = at_;
      const auto code = static_cast<std::uint8_t>(take(1)[0]);
      if (code == '.') {
        return pop();
      }
      if (!control(code) && !scalar(code) && !text(code) && !container(code) && !memo(code)) {
        refuse(code);
      }
    }
  }

  [[nodiscard]] std::size_t used() const { return at_; }
  [[nodiscard]] std::size_t replaced() const { return replaced_; }

 private:
  [[noreturn]] void damaged(const std::string& what) const { throw Damaged(begin_, what); }

  // --- the file ---

  std::string_view take(std::uint64_t count) {
    if (count > data_.size() - at_) {
      throw Damaged(data_.size(), "it ends in the middle of a value");
    }
    const auto taken = data_.substr(at_, count);
    at_ += count;
    return taken;
  }

  // An unsigned number, little-endian.
  std::uint64_t number(std::size_t bytes) {
    std::uint64_t value = 0;
    const auto taken = take(bytes);
    for (std::size_t i = bytes; i-- > 0;) {
      value = value << 8 | static_cast<std::uint8_t>(taken[i]);
    }
    return value;
  }

  std::string line() {
    const auto end = data_.find('\n', at_);
    if (end == std::string_view::npos) {
      throw Damaged(data_.size(), "it ends in the middle of a value");
    }
    std::string taken(take(end - at_));
    ++at_;
    return taken;
  }

  // --- the stack ---

  [[nodiscard]] std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }

  py::object pop() {
    if (stack_.size() <= bottom()) {
      damaged("a value is missing");
    }
    py::object value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }

  py::object& top() {
    if (stack_.size() <= bottom()) {
      damaged("a value is missing");
    }
    return stack_.back();
  }

  void push(py::object value) { stack_.push_back(std::move(value)); }
  void push_new(PyObject* value) {
    if (value == nullptr) {
      throw py::error_already_set();
    }
    stack_.push_back(py::reinterpret_steal<py::object>(value));
  }

  // Where the values after the last mark begin; the mark is gone.
  std::size_t unmark() {
    if (marks_.empty()) {
      damaged("a mark is missing");
    }
    const std::size_t first = marks_.back();
    marks_.pop_back();
    return first;
  }

  // --- instructions; each function says whether the instruction was one of its own ---

  bool control(std::uint8_t code) {
    switch (code) {
      case 0x80:
        if (const auto protocol = number(1); protocol > kNewestProtocol) {
          damaged("pickle protocol " + std::to_string(protocol) + ", and the newest known is 5");
        }
        return true;
      case 0x95:  // FRAME
        if (const auto length = number(8); length > data_.size() - at_) {
          throw Damaged(data_.size(), "it ends in the middle of a frame");
        }
        return true;
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          pop();
        }
        return true;
      case '1':
        stack_.resize(unmark());
        return true;
      case '2':
        push(py::object(top()));
        return true;
      default:
        return false;
    }
  }

  bool scalar(std::uint8_t code) {
    switch (code) {
      case 'N':
        push(py::none());
        return true;
      case 0x88:
      case 0x89:
        push(py::bool_(code == 0x88));
        return true;
      case 'K':
        push_new(PyLong_FromUnsignedLongLong(number(1)));
        return true;
      case 'M':
        push_new(PyLong_FromUnsignedLongLong(number(2)));
        return true;
      case 'J':
        push_new(PyLong_FromLong(static_cast<std::int32_t>(number(4))));
        return true;
      case 0x8a:
        integer(number(1));
        return true;
      case 0x8b:
        integer(number(4));
        return true;
      case 'I':
      case 'L':
        integer_line();
        return true;
      case 'G': {
        std::uint64_t bits = 0;
        for (const char byte : take(8)) {
          bits = bits << 8 | static_cast<std::uint8_t>(byte);
        }
        double value = 0;
        std::memcpy(&value, &bits, sizeof value);
        push_new(PyFloat_FromDouble(value));
        return true;
      }
      case 'F': {
        const auto value = PyOS_string_to_double(line().c_str(), nullptr, nullptr);
        if (PyErr_Occurred() != nullptr) {
          PyErr_Clear();
          damaged("a number that is none");
        }
        push_new(PyFloat_FromDouble(value));
        return true;
      }
      default:
        return false;
    }
  }

  // A signed number of any length, little-endian.
  void integer(std::uint64_t bytes) {
    if (bytes > kLongestInteger) {
      damaged("a number of " + std::to_string(bytes) + " bytes");
    }
    const auto taken = take(bytes);
    if (bytes > 8) {
      push(py::module_::import("builtins")
               .attr("int")
               .attr("from_bytes")(py::bytes(taken.data(), taken.size()), "little", py::arg("signed") = true));
      return;
    }
    std::uint64_t value = bytes > 0 && (taken.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes; i-- > 0;) {
      value = value << 8 | static_cast<std::uint8_t>(taken[i]);
    }
    push_new(PyLong_FromLongLong(static_cast<std::int64_t>(value)));
  }

  void integer_line() {
    std::string digits = line();
    if (digits == "00" || digits == "01") {
      push(py::bool_(digits == "01"));
      return;
    }
    if (!digits.empty() && digits.back() == 'L') {
      digits.pop_back();
    }
    char* end = nullptr;
    errno = 0;
    const auto value = std::strtoll(digits.c_str(), &end, 10);
    if (digits.empty() || *end != '\0' || errno != 0) {
      damaged("a number that is none, or that is too large");
    }
    push_new(PyLong_FromLongLong(value));
  }

  bool text(std::uint8_t code) {
    switch (code) {
      case 0x8c:
      case 'U':
        decoded(take(number(1)));
        return true;
      case 'X':
      case 'T':
        decoded(take(number(4)));
        return true;
      case 0x8d:
        decoded(take(number(8)));
        return true;
      case 'V': {
        const auto raw = line();
        push_new(PyUnicode_DecodeRawUnicodeEscape(raw.data(), static_cast<Py_ssize_t>(raw.size()), "replace"));
        return true;
      }
      case 'C':
        bytes(take(number(1)));
        return true;
      case 'B':
        bytes(take(number(4)));
        return true;
      case 0x8e:
        bytes(take(number(8)));
        return true;
      default:
        return false;
    }
  }

  void decoded(std::string_view utf8) {
    const auto size = static_cast<Py_ssize_t>(utf8.size());
    PyObject* value = PyUnicode_DecodeUTF8(utf8.data(), size, "surrogatepass");
    if (value == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) != 0) {
      PyErr_Clear();
      ++replaced_;
      value = PyUnicode_DecodeUTF8(utf8.data(), size, "replace");
    }
    push_new(value);
  }

  void bytes(std::string_view value) {
    push_new(PyBytes_FromStringAndSize(value.data(), static_cast<Py_ssize_t>(value.size())));
  }

  bool container(std::uint8_t code) {
    switch (code) {
      case '}':
        push(py::dict());
        return true;
      case ']':
        push(py::list());
        return true;
      case ')':
        push(py::tuple());
        return true;
      case 'd':
        dictionary();
        return true;
      case 'l':
        list();
        return true;
      case 't':
        tuple(unmark());
        return true;
      case 0x85:
      case 0x86:
      case 0x87:
        tuple_of(code - 0x84);
        return true;
      case 'a':
        append_one();
        return true;
      case 'e':
        append_all(unmark());
        return true;
      case 's':
        if (stack_.size() < bottom() + 2) {
          damaged("a value is missing");
        }
        set_all(stack_.size() - 2);
        return true;
      case 'u':
        set_all(unmark());
        return true;
      default:
        return false;
    }
  }

  void dictionary() {
    const auto first = unmark();
    stack_.insert(stack_.begin() + static_cast<std::ptrdiff_t>(first), py::dict());
    set_all(first + 1);
  }

  void list() {
    const auto first = unmark();
    stack_.insert(stack_.begin() + static_cast<std::ptrdiff_t>(first), py::list());
    append_all(first + 1);
  }

  void tuple_of(std::size_t count) {
    if (stack_.size() < bottom() + count) {
      damaged("a value is missing");
    }
    tuple(stack_.size() - count);
  }

  void tuple(std::size_t first) {
    py::tuple made(stack_.size() - first);
    for (std::size_t i = first; i < stack_.size(); ++i) {
      made[i - first] = std::move(stack_[i]);
    }
    stack_.resize(first);
    push(std::move(made));
  }

  void append_one() {
    if (stack_.size() < bottom() + 2) {
      damaged("a value is missing");
    }
    append_all(stack_.size() - 1);
  }

  void append_all(std::size_t first) {
    if (first <= bottom() || !PyList_Check(stack_[first - 1].ptr())) {
      damaged("a list is missing");
    }
    PyObject* const into = stack_[first - 1].ptr();
    for (std::size_t i = first; i < stack_.size(); ++i) {
      if (PyList_Append(into, stack_[i].ptr()) != 0) {
        throw py::error_already_set();
      }
    }
    stack_.resize(first);
  }

  // Keys are text: what a file calls equal, or hashes alike by intent, takes no part here.
  void set_all(std::size_t first) {
    if (first <= bottom() || !PyDict_Check(stack_[first - 1].ptr())) {
      damaged("a dictionary is missing");
    }
    if ((stack_.size() - first) % 2 != 0) {
      damaged("a key without a value");
    }
    PyObject* const into = stack_[first - 1].ptr();
    for (std::size_t i = first; i < stack_.size(); i += 2) {
      if (!PyUnicode_Check(stack_[i].ptr())) {
        damaged("a key that is not text");
      }
      if (PyDict_SetItem(into, stack_[i].ptr(), stack_[i + 1].ptr()) != 0) {
        throw py::error_already_set();
      }
    }
    stack_.resize(first);
  }

  bool memo(std::uint8_t code) {
    switch (code) {
      case 0x94:
        remember(memo_.size());
        return true;
      case 'q':
        remember(number(1));
        return true;
      case 'r':
        remember(number(4));
        return true;
      case 'p':
        remember(index_line());
        return true;
      case 'h':
        recall(number(1));
        return true;
      case 'j':
        recall(number(4));
        return true;
      case 'g':
        recall(index_line());
        return true;
      default:
        return false;
    }
  }

  std::uint64_t index_line() {
    const auto digits = line();
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) {
      damaged("a number that is none");
    }
    return std::stoull(digits);
  }

  void remember(std::uint64_t index) {
    if (index > remembered_ + kMemoSlack) {
      damaged("value number " + std::to_string(index) + " is remembered after " + std::to_string(remembered_));
    }
    ++remembered_;
    if (index >= memo_.size()) {
      memo_.resize(index + 1);
    }
    memo_[index] = top();
  }

  void recall(std::uint64_t index) {
    if (index >= memo_.size() || !memo_[index]) {
      damaged("value number " + std::to_string(index) + " was never remembered");
    }
    push(memo_[index]);
  }

  [[noreturn]] void refuse(std::uint8_t code) {
    if (code == 'c' || code == 'i') {
      const auto module = line();
      damaged("it names " + printable(module) + "." + printable(line()) + ", and only plain data is read");
    }
    if (code == 0x93 && stack_.size() >= bottom() + 2 && PyUnicode_Check(stack_.back().ptr())) {
      const auto name = py::str(pop());
      const auto module = py::str(pop());
      const auto shown = py::str(module + py::str(".") + name).attr("encode")("ascii", "replace");
      damaged("it names " + printable(shown.cast<std::string>()) + ", and only plain data is read");
    }
    static constexpr std::string_view kCalls = "RobQP\x81\x92\x82\x83\x84\x93";
    if (kCalls.find(static_cast<char>(code)) != std::string_view::npos) {
      damaged("it makes objects, and only plain data is read");
    }
    static constexpr std::string_view kOthers = "S\x8f\x90\x91\x96\x97\x98";
    if (kOthers.find(static_cast<char>(code)) != std::string_view::npos) {
      damaged("it holds a set, a buffer or text of Python 2, which no snapshot does");
    }
    damaged("is no pickle instruction (" + std::to_string(code) + ")");
  }

  std::string_view data_;
  std::size_t at_ = 0;
  std::size_t begin_ = 0;
  std::size_t replaced_ = 0;
  std::vector<py::object> stack_;
  std::vector<std::size_t> marks_;
  std::vector<py::object> memo_;
  std::size_t remembered_ = 0;
};

py::tuple read_plain_pickle(const py::bytes& data) {
  char* begin = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(data.ptr(), &begin, &size) != 0) {
    throw py::error_already_set();
  }
  Reader reader({begin, static_cast<std::size_t>(size)});
  try {
    auto value = reader.read();
    return py::make_tuple(std::move(value), reader.used(), reader.replaced());
  } catch (const Damaged& error) {
    throw py::value_error(error.what());
  }
}

}  // namespace

void bind_plain_pickle(py::module_& module) { module.def("read_plain_pickle", &read_plain_pickle, py::arg("data")); }

}  // namespace ral::trace
