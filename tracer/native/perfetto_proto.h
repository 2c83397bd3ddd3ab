// The wire format of protocol buffers, as far as a Perfetto trace needs it, and the field numbers of the messages written here.
// https://protobuf.dev/programming-guides/encoding/, https://perfetto.dev/docs/reference/trace-packet-proto
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace ral::trace::perfetto {

// Names and numbers are those of perfetto/trace/trace_packet.proto and the files that it includes.
namespace field {
inline constexpr std::uint32_t kTracePacket = 1;

inline constexpr std::uint32_t kPacketClockSnapshot = 6;
inline constexpr std::uint32_t kPacketTimestamp = 8;
inline constexpr std::uint32_t kPacketSequenceId = 10;
inline constexpr std::uint32_t kPacketTrackEvent = 11;
inline constexpr std::uint32_t kPacketInternedData = 12;
inline constexpr std::uint32_t kPacketSequenceFlags = 13;
inline constexpr std::uint32_t kPacketDefaults = 59;
inline constexpr std::uint32_t kPacketTrackDescriptor = 60;

inline constexpr std::uint32_t kSnapshotClocks = 1;
inline constexpr std::uint32_t kClockId = 1;
inline constexpr std::uint32_t kClockTimestamp = 2;
inline constexpr std::uint32_t kClockIsIncremental = 3;

inline constexpr std::uint32_t kDefaultsTrackEvent = 11;
inline constexpr std::uint32_t kDefaultsClockId = 58;

inline constexpr std::uint32_t kEventCategoryIids = 3;
inline constexpr std::uint32_t kEventDebugAnnotations = 4;
inline constexpr std::uint32_t kEventType = 9;
inline constexpr std::uint32_t kEventNameIid = 10;
inline constexpr std::uint32_t kEventTrackUuid = 11;
inline constexpr std::uint32_t kEventCounterValue = 30;
inline constexpr std::uint32_t kEventDoubleCounterValue = 44;
inline constexpr std::uint32_t kEventFlowIds = 47;
inline constexpr std::uint32_t kEventTerminatingFlowIds = 48;

inline constexpr std::uint32_t kAnnotationNameIid = 1;
inline constexpr std::uint32_t kAnnotationIntValue = 4;
inline constexpr std::uint32_t kAnnotationStringValueIid = 17;

inline constexpr std::uint32_t kInternedCategories = 1;
inline constexpr std::uint32_t kInternedEventNames = 2;
inline constexpr std::uint32_t kInternedAnnotationNames = 3;
inline constexpr std::uint32_t kInternedAnnotationValues = 29;
inline constexpr std::uint32_t kInternedIid = 1;
inline constexpr std::uint32_t kInternedText = 2;

inline constexpr std::uint32_t kTrackUuid = 1;
inline constexpr std::uint32_t kTrackName = 2;
inline constexpr std::uint32_t kTrackProcess = 3;
inline constexpr std::uint32_t kTrackThread = 4;
inline constexpr std::uint32_t kTrackParentUuid = 5;
inline constexpr std::uint32_t kTrackCounter = 8;
inline constexpr std::uint32_t kTrackChildOrdering = 11;
inline constexpr std::uint32_t kTrackSiblingRank = 12;
inline constexpr std::uint32_t kTrackSiblingMerge = 15;
inline constexpr std::uint32_t kTrackProcessOrdering = 19;
inline constexpr std::uint32_t kTrackThreadOrdering = 20;

inline constexpr std::uint32_t kProcessPid = 1;
inline constexpr std::uint32_t kProcessCommandLine = 2;
inline constexpr std::uint32_t kProcessName = 6;
inline constexpr std::uint32_t kProcessLabels = 8;
inline constexpr std::uint32_t kThreadPid = 1;
inline constexpr std::uint32_t kThreadTid = 2;
inline constexpr std::uint32_t kThreadName = 5;
inline constexpr std::uint32_t kCounterUnit = 3;
inline constexpr std::uint32_t kCounterUnitName = 6;
}  // namespace field

enum EventType : std::uint8_t { kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounter = 4 };
enum SequenceFlag : std::uint8_t { kStateCleared = 1, kNeedsState = 2 };
enum ClockId : std::uint8_t { kRealtime = 1, kBoottime = 6, kIncremental = 64 };
enum CounterUnit : std::uint8_t { kUnspecified = 0, kCount = 2, kSizeBytes = 3 };
inline constexpr std::uint64_t kChildOrderingExplicit = 3;
inline constexpr std::uint64_t kRootOrderingExplicit = 1;  // of processes, and of threads
inline constexpr std::uint64_t kNeverMerge = 2;            // else siblings of one name become one track

// The bytes of one message while it is being written. Fields go in order of writing; an embedded message is finished first.
//
//   field:  | tag = number << 3 | wire type  (varint) | payload                          |
//   wire type 0: varint;  1: 8 bytes little-endian;  2: length (varint), then that many bytes
class Message {
 public:
  void clear() noexcept { size_ = 0; }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  const char* data() const noexcept { return bytes_.data(); }

  void varint(std::uint32_t number, std::uint64_t value) {
    reserve(2 * kMaxVarint);
    put_varint(static_cast<std::uint64_t>(number) << 3);
    put_varint(value);
  }

  // int32, int64 and enum fields: a negative number takes ten bytes on the wire, as two's complement.
  void integer(std::uint32_t number, std::int64_t value) { varint(number, static_cast<std::uint64_t>(value)); }

  void fixed64(std::uint32_t number, std::uint64_t value) {
    reserve(kMaxVarint + sizeof value);
    put_varint((static_cast<std::uint64_t>(number) << 3) | 1);
    for (unsigned shift = 0; shift < 64; shift += 8) {
      bytes_[size_++] = static_cast<char>(value >> shift);
    }
  }

  void real(std::uint32_t number, double value) {
    std::uint64_t bits = 0;
    static_assert(sizeof bits == sizeof value);
    std::memcpy(&bits, &value, sizeof bits);
    fixed64(number, bits);
  }

  void bytes(std::uint32_t number, std::string_view value) {
    reserve(2 * kMaxVarint + value.size());
    put_varint((static_cast<std::uint64_t>(number) << 3) | 2);
    put_varint(value.size());
    // An empty view may have a null pointer, which memcpy does not take.
    if (!value.empty()) {
      std::memcpy(bytes_.data() + size_, value.data(), value.size());
      size_ += value.size();
    }
  }

  void message(std::uint32_t number, const Message& inner) { bytes(number, {inner.data(), inner.size()}); }

 private:
  static constexpr std::size_t kMaxVarint = 10;

  void reserve(std::size_t more) {
    if (size_ + more > bytes_.size()) {
      bytes_.resize((size_ + more) * 2);
    }
  }

  void put_varint(std::uint64_t value) noexcept {
    while (value >= 0x80) {
      bytes_[size_++] = static_cast<char>(value | 0x80);
      value >>= 7;
    }
    bytes_[size_++] = static_cast<char>(value);
  }

  std::vector<char> bytes_;
  std::size_t size_ = 0;
};

}  // namespace ral::trace::perfetto
