// The collector's side: what one process wrote for one session. Everything read here is untrusted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "columns.h"
#include "files.h"
#include "layout.h"
#include "sink.h"

namespace ral::trace {

// The account of one ring. written = received + dropped + lost, where damaged events are among the lost.
struct Account {
  std::uint64_t written = 0;
  std::uint64_t received = 0;
  std::uint64_t dropped = 0;
  std::uint64_t lost = 0;
  // Of the received: what devices say of themselves, and what was there before the recording. The rest is events.
  std::uint64_t facts = 0;
  // Events left out to stay within an overhead; not among the written.
  std::uint64_t shed = 0;
  // Rings that were damaged, or cut short, and read no further.
  std::uint64_t damaged_rings = 0;

  void add(const Account& other) noexcept;
};

// The account of one ring, and whose it is.
struct RingAccount {
  std::uint32_t ring;
  std::uint32_t tid;
  std::string thread_name;
  bool closed;    // its thread is gone
  bool finished;  // ... and all is read, or it is damaged: nothing more will come
  std::uint64_t spent_ticks;
  Account account;
};

// What a collector that died had already read of a ring.
struct Taken {
  std::uint64_t tail = 0;
  std::uint64_t received = 0;
  std::uint64_t facts = 0;
};
using TakenRings = std::map<std::uint32_t, Taken>;  // by the ring's number

class RingReader {
 public:
  // nullptr: not a ring. Reading goes on where `taken` ended.
  static std::unique_ptr<RingReader> open(const std::string& path, std::uint32_t number, const Taken& taken = {});

  // Moves what is committed to `sink`; returns how many records it read. `scratch` is any memory, kept by the caller
  // between calls. False from the sink: stops there, and what it did not take is read again the next time.
  std::size_t drain(RecordSink& sink, std::vector<Record>& scratch);
  [[nodiscard]] RingAccount account() const;
  // The same without its thread's name: asked for at every turn of the collector.
  [[nodiscard]] Account counts() const noexcept;
  [[nodiscard]] std::uint64_t spent_ticks() const noexcept { return spent_ticks_; }
  [[nodiscard]] bool finished() const noexcept { return finished_; }
  // Its thread is gone; there may be something left to read.
  [[nodiscard]] bool closed() const noexcept { return counters_.closed != 0; }
  // Brings the account up to date without taking anything.
  void look();
  // Nothing more will come.
  void finish();
  // The shared memory of a thread that is gone can be given back.
  void remove_file() const;

 private:
  struct Counters {
    std::uint64_t sequence;
    std::uint64_t head;
    std::uint64_t dropped;
    std::uint64_t closed;
  };

  RingReader(File file, std::string path, std::uint32_t number, const RingHeader& header, const Taken& taken);
  bool read_counters();
  // Reads records from `tail_` on; returns how many, from `*first` of them on they are whole. 0: cut short.
  std::size_t read_records(std::vector<Record>& scratch, std::uint64_t* first);
  // What the header says of the ring's shape, where that can be: it only ever gets smaller.
  bool take_shape(std::uint64_t records, std::uint64_t straight);
  // What its writer has overwritten meanwhile, as seen after reading.
  std::uint64_t overwritten_below();

  File file_;
  std::string path_;
  std::uint32_t number_;
  std::uint64_t records_;
  std::uint64_t straight_;
  std::uint32_t tid_;
  std::string thread_name_;
  OnFull on_full_;
  std::uint64_t first_ticks_;  // no event is very far from these
  Counters counters_{};
  std::uint64_t shed_ = 0;
  std::uint64_t spent_ticks_ = 0;
  std::uint64_t tail_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t facts_ = 0;
  std::uint64_t overwritten_ = 0;
  bool damaged_ = false;
  bool finished_ = false;
};

// Names and stacks of a process, as its table says them.
struct NameList {
  std::vector<std::pair<std::uint32_t, std::string>> names;  // (id, text)
  std::vector<std::array<std::uint32_t, 3>> stacks;          // (id, caller, frame) of every node
  std::uint64_t refused = 0;                                 // names that found no room,
  std::uint64_t cut = 0;                                     // were too long,
  std::uint64_t refused_stacks = 0;                          // nodes that found no room

  // Of a file that is no such table: nothing.
  static NameList read(const std::string& path);
};

class ProcessReader {
 public:
  // `folder` is <session>/<pid>-<started>. nullptr: not made yet, not ours, or about another process than it says.
  // `taken` is what a collector that died had already.
  static std::unique_ptr<ProcessReader> open(const std::string& folder, TakenRings taken = {});

  std::size_t drain(RecordSink& sink);
  // Brings the accounts of all rings up to date without taking anything.
  void look();
  // The sum of all rings, those that are forgotten included, and of what threads without a ring missed.
  [[nodiscard]] Account account() const;
  [[nodiscard]] std::vector<RingAccount> rings() const;
  [[nodiscard]] std::uint64_t unrecorded() const;
  // What recording took on all threads, those that are gone included.
  [[nodiscard]] std::uint64_t spent_ticks() const;
  // Takes the finished rings out of rings(), and gives their memory back.
  std::vector<RingAccount> forget_finished();
  // Its process is gone: after this drain nothing more will come from any ring.
  void finish();
  [[nodiscard]] ProcessState state();
  // How often the program asked for a dump.
  [[nodiscard]] std::uint32_t alarms();
  // Takes back details (Detail bits); the program learns of it when the page changes.
  void shed(std::uint32_t details) const;
  [[nodiscard]] const ProcessHeader& header() const noexcept {
    return *reinterpret_cast<const ProcessHeader*>(header_.data());
  }

 private:
  ProcessReader(std::string folder, File file, TakenRings taken)
      : folder_(std::move(folder)), file_(std::move(file)), taken_(std::move(taken)) {}
  bool refresh();
  void open_new_rings();

  std::string folder_;
  File file_;
  alignas(ProcessHeader) std::array<std::byte, sizeof(ProcessHeader)> header_{};
  TakenRings taken_;
  std::vector<std::unique_ptr<RingReader>> rings_;
  Account forgotten_;
  std::uint64_t forgotten_ticks_ = 0;
  std::vector<Record> scratch_;
  std::uint32_t next_ring_ = 0;
};

}  // namespace ral::trace
