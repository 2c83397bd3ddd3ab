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

inline constexpr std::uint32_t kLayoutVersion = 2;
inline constexpr std::size_t kSessions = 8;
inline constexpr std::size_t kHeaderBytes = 4096;
inline constexpr std::uint64_t kMaxRingRecords = 1u << 26;
inline constexpr std::uint64_t kLeastRingRecords = 1u << 8;
inline constexpr std::uint32_t kMaxRings = 1u << 20;  // of one process and session
// Two to the 48th events are a year at nine million a second: a counter beyond it is damage.
inline constexpr std::uint64_t kMaxEvents = std::uint64_t{1} << 48;

inline constexpr std::uint64_t kPageMagic = 0x2e65676170616c72;     // "rlapage."
inline constexpr std::uint64_t kNamesMagic = 0x2e73656d616e6c72;    // "rlnames."
inline constexpr std::uint64_t kProcessMagic = 0x2e636f7270616c72;  // "rlaproc."
inline constexpr std::uint64_t kRingMagic = 0x2e676e6972616c72;     // "rlaring."

// What a session wants to know, as bits; the collector takes some of them back where they cost too much.
enum Detail : std::uint32_t {
  kOps = 1 << 0,          // operators and autograd's nodes
  kSmallOps = 1 << 1,     // also those that take no longer than kSmallOpNs on average
  kShapes = 1 << 2,       // shapes and types of an op's inputs
  kAccesses = 1 << 3,     // which blocks an op uses
  kSiteStacks = 1 << 4,   // Python stacks of syncs, fallbacks, large allocations, memory that ran out
  kOpStacks = 1 << 5,     // ... and of every op
  kModules = 1 << 6,      // calls of torch.nn modules
  kHostBlocks = 1 << 7,   // allocations of the host's memory through torch
  kPauses = 1 << 8,       // Python's garbage collections
  kAnnotations = 1 << 9,  // record_function and the like
};

// Ops that take no longer on average are small.
inline constexpr std::uint64_t kSmallOpNs = 5'000;
// Allocations from this size on have a stack where sites have one.
inline constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

inline constexpr std::array<std::pair<std::string_view, std::uint32_t>, 10> kDetailNames = {{
    {"OPS", kOps},
    {"SMALL_OPS", kSmallOps},
    {"SHAPES", kShapes},
    {"ACCESSES", kAccesses},
    {"SITE_STACKS", kSiteStacks},
    {"OP_STACKS", kOpStacks},
    {"MODULES", kModules},
    {"HOST_BLOCKS", kHostBlocks},
    {"PAUSES", kPauses},
    {"ANNOTATIONS", kAnnotations},
}};

// What a writer does when its ring is full.
enum class OnFull : std::uint32_t { kDrop = 0, kOverwrite = 1 };

enum class SlotState : std::uint32_t { kFree = 0, kClaimed = 1, kRecording = 2, kEnding = 3 };

struct SessionSlot {
  SlotState state;
  std::uint32_t attach_failures;  // processes that could not make their files
  std::uint64_t session;
  std::int32_t collector_pid;
  std::int32_t target_pid;          // 0: every process of the user; else this one and its children
  std::uint64_t collector_started;  // so that a reused pid does not pass for the collector
  std::uint64_t ring_records;       // a power of two
  std::array<char, 64> folder;
  std::uint32_t details;  // Detail bits
  OnFull on_full;
  std::array<char, 16> reserved;
};
static_assert(sizeof(SessionSlot) == 128);

// Read and written by system calls only (rendezvous.h).
struct Page {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t generation;  // traced processes wait on it; every change of a slot raises it
  std::uint32_t reloads;     // `ralctl reload` raises it; programs with devices wait on it
  std::array<char, 44> reserved;
  std::array<SessionSlot, kSessions> slots;
};
static_assert(sizeof(Page) <= kHeaderBytes);

inline constexpr std::uint32_t kMaxNames = 64 * 1024;
inline constexpr std::size_t kNamePoolBytes = 3 * 1024 * 1024;
inline constexpr std::size_t kMaxNameBytes = 2048;  // longer ones are cut

struct NameEntry {
  std::uint32_t offset;
  std::atomic<std::uint32_t> length;  // 1 + the length, stored last; 0: not published
};

// A line of a Python stack, and the line that called it: stacks that begin alike share their nodes.
struct StackNode {
  std::uint32_t caller;              // another node, made earlier; 0: none
  std::atomic<std::uint32_t> frame;  // name of "line<TAB>function<TAB>file", stored last; 0: not published
};

inline constexpr std::uint32_t kMaxStackNodes = 64 * 1024;
inline constexpr std::size_t kMaxStackFrames = 256;

struct NameTable {
  std::uint64_t magic;
  std::uint32_t version;
  std::atomic<std::uint32_t> next_id;  // ids begin with 1
  std::atomic<std::uint32_t> used_bytes;
  std::atomic<std::uint32_t> refused;  // names that found no room
  std::atomic<std::uint32_t> cut;      // names that were longer than kMaxNameBytes
  std::atomic<std::uint32_t> next_stack;
  std::atomic<std::uint32_t> refused_stacks;
  std::array<char, 28> reserved;
  std::array<NameEntry, kMaxNames> entries;
  std::array<StackNode, kMaxStackNodes> stacks;
  std::array<char, kNamePoolBytes> pool;
};

enum class ProcessState : std::uint32_t { kRecording = 1, kDetached = 2, kExited = 3 };

// Why a program asks for what the rings hold to be written out, where they keep the last seconds only.
enum class Alarm : std::uint32_t { kNone = 0, kUncaughtException = 1, kOutOfMemory = 2 };

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
  std::atomic<std::uint32_t> alarms;      // how often the program asked for a dump ...
  std::atomic<Alarm> alarm;               // ... and why, the last time
  std::atomic<std::uint32_t> shed;        // Detail bits that the collector took back; it alone writes this
  std::int32_t parent;                    // pid of the process that started it
  std::array<char, 256> note;             // why ops are not recorded, when they are not
  std::array<char, 2048> command;         // /proc/self/cmdline: words ended by NUL, the end by two; cut when longer
};
static_assert(sizeof(ProcessHeader) <= kHeaderBytes);

struct RingHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t tid;
  // Event n lies at n while n < straight, else at n modulo `records`, a power of two. Both are what the ring is to have,
  // until its writer finds no memory for the rest: then it goes on with what it got.
  std::atomic<std::uint64_t> records;
  std::array<char, 16> thread_name;
  OnFull on_full;
  std::array<char, 4> reserved;
  std::atomic<std::uint64_t> straight;
  std::array<char, 8> reserved2;
  // The writer's line. `sequence` counts every event past the filter, before its slot is written; `head` what is
  // committed. So written = sequence, and what a killed writer left uncommitted is sequence - head - dropped. Whoever
  // reads the other two first never finds more in them than in `sequence`. A writer that overwrites drops nothing; what
  // the reader may trust is younger than sequence - records, read after the records.
  alignas(64) std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> head;
  std::atomic<std::uint64_t> dropped;
  std::atomic<std::uint64_t> closed;       // 1: the thread is gone
  std::atomic<std::uint64_t> shed;         // events that were left out to stay within an overhead; not in `sequence`
  std::atomic<std::uint64_t> spent_ticks;  // what recording took on this thread, estimated from a sample
  // The collector's line. Of no meaning to a writer that overwrites.
  alignas(64) std::atomic<std::uint64_t> tail;
};
static_assert(offsetof(RingHeader, sequence) == 64 && offsetof(RingHeader, tail) == 128);

}  // namespace ral::trace
