// Columns in, packets of a Perfetto trace out.
//
// One packet sequence carries all slices in order of time, and each counter has a sequence of its own. A sequence begins like this, and
// begins anew when its table of interned strings has grown too large:
//
//   TracePacket { sequence_id, flags = STATE_CLEARED, defaults { clock 64 }, clock_snapshot { 64: now, incremental; BOOTTIME: now } }
//   TracePacket { sequence_id, track_descriptor } ...                             before the first event on that track
//   TracePacket { sequence_id, flags = NEEDS_STATE, timestamp: ns since the packet before, interned_data: what is new, track_event }
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "perfetto_lanes.h"
#include "perfetto_proto.h"
#include "perfetto_rows.h"

namespace ral::trace::perfetto {

// Names a track towards the encoder: any number that the caller finds handy.
using TrackKey = std::int64_t;

// Strings of one kind that have been given a number since the state of their sequence was cleared.
class InternTable {
 public:
  // The number of `text`, from 1, and whether it is new.
  std::pair<std::uint64_t, bool> number(std::string_view text);
  void clear();
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::deque<std::string> texts_;  // what the keys below point into
  std::unordered_map<std::string_view, std::uint64_t> numbers_;
  std::size_t bytes_ = 0;
};

// Takes whole packets, in chunks.
using Sink = std::function<void(std::string_view)>;

class Encoder {
 public:
  // `unix_epoch`: times count from 1970, so that viewers can show the date. `intern_bytes` bounds the memory for interned strings.
  Encoder(Sink sink, bool unix_epoch, std::size_t chunk_bytes, std::size_t intern_bytes);

  // A group of the viewer, with the process id where it has one that the format can say (32 bits, unique in the trace).
  // `rank` orders processes, and threads of one process.
  void add_process(TrackKey key, std::int32_t pid, std::string_view name, std::int32_t rank,
                   std::string_view command_line, const std::vector<std::string>& labels);
  void add_thread(TrackKey key, std::int32_t pid, std::int64_t tid, std::string_view name, std::int32_t rank);
  // A plain track; kNoParent as `parent`: at the top. Tracks of one parent are shown by `rank`.
  void add_track(TrackKey key, TrackKey parent, std::string_view name, std::int32_t rank);
  // Appears in the trace with its first value.
  void add_counter(TrackKey key, TrackKey parent, std::string_view name, std::string_view unit);

  // Slices and instants, as perfetto_rows.h says. Rows by start, longest first, open ones first of all.
  // `arrows`: event id, arrow number; a row for each end of an arrow, in the order of the slices.
  void slices(ColumnStream& rows, ColumnStream& arrows);

  // Columns: track key, time (ns), value (BIGINT or DOUBLE); by key, then time.
  void counters(ColumnStream& rows);

  // Hands what is left to the sink.
  void finish();

  static constexpr TrackKey kNoParent = -1;

 private:
  struct Track {
    std::uint64_t uuid;
    std::string name;
    Lanes lanes;
    std::vector<std::uint64_t> lane_uuids;  // of lanes 1, 2, ...; lane 0 is the track itself
  };
  struct CounterTrack {
    Message descriptor;
    std::uint64_t uuid;
  };
  struct End {
    std::int64_t ns;
    std::uint64_t uuid;
    bool operator>(const End& other) const noexcept { return ns > other.ns; }
  };

  void begin_sequence(std::uint32_t sequence, std::int64_t now_ns, std::uint64_t default_track);
  void begin_packet(std::uint32_t sequence, std::int64_t now_ns);
  void end_packet();
  void write_descriptor(const Message& descriptor, std::uint32_t sequence);
  void write_root();
  void write_slice(const ColumnStream& rows, const std::vector<Column>& columns, std::size_t row, ArrowCursor& arrows);
  void write_ends_until(std::int64_t now_ns);
  void annotate(const ColumnStream& rows, const std::vector<Column>& columns, std::size_t row);
  std::uint64_t intern(InternTable& table, std::uint32_t number, std::string_view text);
  std::uint64_t parent_uuid(TrackKey parent) const;
  Track& track_of(TrackKey key);
  const CounterTrack& counter_of(TrackKey key);
  std::uint64_t lane_uuid(Track& track, std::size_t lane);
  void bound_interned(std::int64_t now_ns);

  Sink sink_;
  bool unix_epoch_;  // until the first clock snapshot has said so
  std::size_t chunk_bytes_;
  std::size_t intern_bytes_;

  Message chunk_, packet_, event_, interned_, scratch_;
  std::int64_t last_ns_ = 0;  // time of the packet before, on the sequence being written
  std::uint64_t next_uuid_ = 1;
  std::unordered_map<TrackKey, Track> tracks_;
  std::unordered_map<TrackKey, CounterTrack> counters_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
  InternTable categories_, names_, annotation_names_, annotation_values_;
};

}  // namespace ral::trace::perfetto
