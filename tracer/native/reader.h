// The collector's side: what one process wrote for one session. Everything read here is untrusted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "columns.h"
#include "files.h"
#include "layout.h"

namespace ral::trace {

// The account of one ring. written = received + dropped + lost, where damaged events are among the lost.
struct Account {
  std::uint64_t written = 0;
  std::uint64_t received = 0;
  std::uint64_t dropped = 0;
  std::uint64_t lost = 0;
  // Of the received: what devices say of themselves, and what was there before the recording. The rest is events.
  std::uint64_t facts = 0;
  // Rings that were damaged, or cut short, and read no further.
  std::uint64_t damaged_rings = 0;
};

class RingReader {
 public:
  // nullptr: not a ring.
  static std::unique_ptr<RingReader> open(const std::string& path);

  // Moves what is committed into columns; returns how many records it read. `scratch` is any memory, kept by the caller
  // between calls.
  std::size_t drain(std::int32_t process, const Calibration& clock, std::vector<Record>& scratch, Columns& into);
  [[nodiscard]] Account account() const;
  [[nodiscard]] std::uint32_t tid() const noexcept { return tid_; }
  [[nodiscard]] const std::string& thread_name() const noexcept { return thread_name_; }
  // Its thread is gone and all is read, or it is damaged: nothing more will come.
  [[nodiscard]] bool finished() const noexcept { return finished_; }

 private:
  struct Counters {
    std::uint64_t sequence;
    std::uint64_t head;
    std::uint64_t dropped;
    std::uint64_t closed;
  };

  RingReader(File file, std::string path, std::uint64_t records, std::uint32_t tid, std::string name)
      : file_(std::move(file)), path_(std::move(path)), records_(records), tid_(tid), thread_name_(std::move(name)) {}
  bool read_counters();
  void finish();

  File file_;
  std::string path_;
  std::uint64_t records_;
  std::uint32_t tid_;
  std::string thread_name_;
  Counters counters_{};
  std::uint64_t tail_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t facts_ = 0;
  bool damaged_ = false;
  bool finished_ = false;
};

class ProcessReader {
 public:
  // `folder` is <session>/<pid>-<started>. nullptr: not made yet, not ours, or about another process than it says.
  static std::unique_ptr<ProcessReader> open(const std::string& folder);

  std::size_t drain(std::int32_t process, const Calibration& clock, Columns& into);
  [[nodiscard]] Account account() const;
  // (tid, name) of every thread that wrote.
  [[nodiscard]] std::vector<std::pair<std::uint32_t, std::string>> threads() const;
  // (id, text) of every name; `refused` counts those that found no room.
  [[nodiscard]] std::vector<std::pair<std::uint32_t, std::string>> names(std::uint64_t* refused) const;
  [[nodiscard]] ProcessState state();
  [[nodiscard]] const ProcessHeader& header() const noexcept {
    return *reinterpret_cast<const ProcessHeader*>(header_.data());
  }

 private:
  ProcessReader(std::string folder, File file) : folder_(std::move(folder)), file_(std::move(file)) {}
  bool refresh();

  std::string folder_;
  File file_;
  alignas(ProcessHeader) std::array<std::byte, sizeof(ProcessHeader)> header_{};
  std::vector<std::unique_ptr<RingReader>> rings_;
  std::vector<Record> scratch_;
  std::uint32_t next_ring_ = 0;
};

}  // namespace ral::trace
