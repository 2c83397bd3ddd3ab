// Every layout in shared memory, once. A traced process writes these, the collector reads them with pread: a file that
// is truncated under it gives a short read, not a signal.
//
//   <rendezvous>/page                                one Page: who records what
//   <rendezvous>/names-<pid>-<started>               one NameTable, linked into every session that records the process
//   <rendezvous>/<session>/<pid>-<started>/process   one ProcessHeader
//   <rendezvous>/<session>/<pid>-<started>/names     the same inode as above, so that it survives its writer
//   <rendezvous>/<session>/<pid>-<started>/ring-<n>  one RingHeader and its records; one thread writes it
//
// After an exec the folder of the same process ends in .1, .2, ...
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "clock.h"
#include "record.h"

namespace ral::trace {

inline constexpr std::uint32_t kLayoutVersion = 1;
inline constexpr std::size_t kSessions = 8;
inline constexpr std::size_t kHeaderBytes = 4096;
inline constexpr std::uint64_t kMaxRingRecords = 1u << 26;
inline constexpr std::uint32_t kMaxRings = 1u << 20;  // of one process and session
// Two to the 48th events are a year at nine million a second: a counter beyond it is damage.
inline constexpr std::uint64_t kMaxEvents = std::uint64_t{1} << 48;

inline constexpr std::uint64_t kPageMagic = 0x2e65676170616c72;     // "rlapage."
inline constexpr std::uint64_t kNamesMagic = 0x2e73656d616e6c72;    // "rlnames."
inline constexpr std::uint64_t kProcessMagic = 0x2e636f7270616c72;  // "rlaproc."
inline constexpr std::uint64_t kRingMagic = 0x2e676e6972616c72;     // "rlaring."

enum class SlotState : std::uint32_t { kFree = 0, kClaimed = 1, kRecording = 2, kEnding = 3 };

struct SessionSlot {
  std::atomic<SlotState> state;
  std::atomic<std::uint32_t> attach_failures;  // processes that could not make their files
  std::uint64_t session;
  std::int32_t collector_pid;
  std::int32_t target_pid;          // 0: every process of the user; else this one and its children
  std::uint64_t collector_started;  // so that a reused pid does not pass for the collector
  std::uint64_t ring_records;       // a power of two
  std::array<char, 64> folder;
  std::array<char, 24> reserved;
};
static_assert(sizeof(SessionSlot) == 128);

struct Page {
  std::uint64_t magic;
  std::uint32_t version;
  std::atomic<std::uint32_t> generation;  // traced processes wait on it; every change of a slot raises it
  std::atomic<std::uint32_t> reloads;     // `ralctl reload` raises it; programs with devices wait on it
  std::array<char, 44> reserved;
  std::array<SessionSlot, kSessions> slots;
};
static_assert(sizeof(Page) <= kHeaderBytes);

inline constexpr std::uint32_t kMaxNames = 64 * 1024;
inline constexpr std::size_t kNamePoolBytes = 7 * 512 * 1024;
inline constexpr std::size_t kMaxNameBytes = 2048;  // longer ones are cut

struct NameEntry {
  std::uint32_t offset;
  std::atomic<std::uint32_t> length;  // 1 + the length, stored last; 0: not published
};

struct NameTable {
  std::uint64_t magic;
  std::uint32_t version;
  std::atomic<std::uint32_t> next_id;  // ids begin with 1
  std::atomic<std::uint32_t> used_bytes;
  std::atomic<std::uint32_t> refused;  // names that found no room
  std::array<char, 40> reserved;
  std::array<NameEntry, kMaxNames> entries;
  std::array<char, kNamePoolBytes> pool;
};

enum class ProcessState : std::uint32_t { kRecording = 1, kDetached = 2, kExited = 3 };

struct ProcessHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::int32_t pid;
  std::uint64_t started;  // field 22 of /proc/<pid>/stat
  std::uint64_t attached_ticks;
  ClockSource clock;
  std::array<char, 7> reserved;
  std::atomic<ProcessState> state;
  std::atomic<std::uint32_t> rings;       // ring-0 to ring-<rings - 1> are whole
  std::atomic<std::uint64_t> unrecorded;  // events of threads whose ring could not be made
  std::array<char, 256> note;             // why ops are not recorded, when they are not
  std::array<char, 2048> command;         // /proc/self/cmdline: words ended by NUL, the end by two; cut when longer
};
static_assert(sizeof(ProcessHeader) <= kHeaderBytes);

struct RingHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t tid;
  std::uint64_t records;
  std::array<char, 16> thread_name;
  std::array<char, 24> reserved;
  // The writer's line. `sequence` counts every event past the filter, before its slot is written; `head` what is
  // committed. So written = sequence, and what a killed writer left uncommitted is sequence - head - dropped. Whoever
  // reads the other two first never finds more in them than in `sequence`.
  alignas(64) std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> head;
  std::atomic<std::uint64_t> dropped;
  std::atomic<std::uint64_t> closed;  // 1: the thread is gone
  // The collector's line.
  alignas(64) std::atomic<std::uint64_t> tail;
};
static_assert(offsetof(RingHeader, sequence) == 64 && offsetof(RingHeader, tail) == 128);

}  // namespace ral::trace
