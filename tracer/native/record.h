// One live event: 64 bytes, written by a traced thread, read by the collector.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace ral::trace {

// What a record is. The names below are the values of `event.kind` in the trace, in this order.
enum class Kind : std::uint8_t {
  kOp,
  kLaunch,
  kKernel,
  kTransfer,
  kSync,
  kFallback,
  kAlloc,
  kFree,
  kRegion,
  kWait,
  kRuntime,
  kAnnotation,
  kPython,
  kCounter,
  kInstant,
  kError,
  // Not events: facts about the process that travel in the same ring. They become rows of other tables.
  kDevice = 64,
  kStream = 65,
  kAccess = 66,
};

inline constexpr std::array<std::string_view, 16> kKindNames = {
    "op",     "launch", "kernel",  "transfer",   "sync",   "fallback", "alloc",   "free",
    "region", "wait",   "runtime", "annotation", "python", "counter",  "instant", "error"};

// Record::flags, and bits of `event.flags` in the trace (importers set the same bits).
enum Flag : std::uint8_t {
  kUnfinished = 1 << 0,   // the end was never seen
  kBeforeTrace = 1 << 1,  // an allocation or region that was already there when the recording began
  kInvalid = 1 << 2,      // times that cannot be (negative duration, outside the trace): kept out of sums
  kClosed = 1 << 3,       // kRegion: the region was given back (else: opened)
  kBackward = 1 << 4,     // kOp: a node of autograd's backward pass
  kForced = 1 << 5,       // kSync: caused by a fallback or a blocking copy, not asked for by the program
  kSuspended = 1 << 6,    // kAnnotation: others ran on its thread in between (asyncio, generators): encloses nothing
};

inline constexpr std::array<std::pair<std::string_view, std::uint8_t>, 7> kFlagNames = {{
    {"UNFINISHED", kUnfinished},
    {"BEFORE_TRACE", kBeforeTrace},
    {"INVALID", kInvalid},
    {"CLOSED", kClosed},
    {"BACKWARD", kBackward},
    {"FORCED", kForced},
    {"SUSPENDED", kSuspended},
}};

// kTransfer: Record::arg1.
enum Direction : std::uint8_t { kHostToDevice = 0, kDeviceToHost = 1, kDeviceToDevice = 2, kWithinDevice = 3 };

inline constexpr std::array<std::string_view, 4> kDirectionNames = {"host_to_device", "device_to_host",
                                                                    "device_to_device", "within_device"};

// kAccess: Record::arg1. Together: read and written.
enum AccessMode : std::uint8_t { kRead = 1, kWrite = 2 };

// kAnnotation: Record::arg0, and event.category in the trace (a user's own has none).
enum AnnotationSort : std::uint8_t { kUser = 0, kModule = 1, kResumed = 2 };

inline constexpr std::array<std::string_view, 3> kAnnotationSortNames = {"", "module", "resumed"};

inline constexpr std::int8_t kNoDevice = -1;
// The host's own memory, as a device: of kAlloc and kFree only.
inline constexpr std::int8_t kHostMemory = -2;

// `stream` of a device's rows: the low bits number the stream, the high ones the pipeline (compute, copy_in, copy_out).
inline constexpr unsigned kStreamBits = 5;

// Draw:      0        8        16       24       32       40       48   52   56   60 61 62 63
//            | start  | end    | corr   | bytes  | arg0   | arg1   |seq |name|stack|k |d |s |f |
//
// kind      | name                   | bytes           | arg0                    | arg1
// op        | aten::add.Tensor       | -1              | autograd's (below), or 0| name: shapes as JSON
// launch    | op that the user called| -1              | name: op at the router  | name: route (native, cpu, copy)
// kernel    | op that the user called| bytes touched,-1| name: kernel            | name: vendor
// transfer  | op that the user called| bytes moved     | the other device, or -1 | Direction
// fallback  | op that the user called| bytes copied    | name: op at the router  | name: chain of reasons
// sync      | what was called        | -1              | name: what it waited for| 0
// alloc     | op that allocated, or 0| block size      | address                 | bytes asked for
// free      | 0                      | block size      | address                 | number of uses
// region    | 0                      | size            | address                 | handle           (striped: below)
// annotation| its text               | -1              | AnnotationSort          | name: a module's class
// python    | what Python did        | -1              | a collection: generation| objects collected
// error     | message                | bytes asked, -1 | 0                       | 0
// device    | JSON: type, vendor,name| memory          | 0                       | 0
// stream    | pipeline               | priority        | 0                       | 0
// access    | 0                      | -1              | address of a block      | AccessMode
//
// "name" in a column is a name id; 0 where there is none.
// A free's start is the last use of its block, where there was one while somebody recorded; its end is the free itself.
// A range of addresses that is striped over memory domains is a region a domain: `address` is the range's, `stream` the
// domain, and `correlation` the number of domains and the length of a stripe (striping()). Of others both are 0.
// An op's arg0 is autograd's sequence number, with torch's own number of the (forward) thread in the high bits
// (autograd_key()). An access has the correlation of its op, which no other record has; the op has it only then.
// The thread is the ring's; rows of a device (kernel, transfer) belong to none.
struct Record {
  std::uint64_t start_ticks;
  std::uint64_t end_ticks;
  std::uint64_t correlation;  // 0: none
  std::int64_t bytes;         // -1: unknown
  std::uint64_t arg0;
  std::uint64_t arg1;
  std::uint32_t sequence;  // low 32 bits of the ring's sequence number
  std::uint32_t name;      // 0: unknown, or the name table was full
  std::uint32_t stack;     // a Python stack (StackNode), or 0
  Kind kind;
  std::int8_t device;  // kNoDevice: the host
  std::uint8_t stream;
  std::uint8_t flags;
};

inline constexpr unsigned kAutogradBits = 40;

constexpr std::uint64_t autograd_key(std::uint64_t torch_thread, std::uint64_t sequence_nr) {
  return torch_thread << kAutogradBits | (sequence_nr & ((std::uint64_t{1} << kAutogradBits) - 1));
}

inline constexpr unsigned kStripeBits = 48;

constexpr std::uint64_t striping(std::uint64_t domains, std::uint64_t stripe_bytes) {
  return domains == 1 ? 0 : domains << kStripeBits | stripe_bytes;
}

static_assert(sizeof(Record) == 64, "the ring, the collector and the documentation count on 64 bytes");

}  // namespace ral::trace
