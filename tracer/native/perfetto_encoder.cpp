#include "perfetto_encoder.h"

#include <cmath>
#include <optional>
#include <stdexcept>

namespace ral::trace::perfetto {

namespace {

constexpr std::uint32_t kSliceSequence = 1;
constexpr std::uint32_t kFirstCounterSequence = 2;
constexpr std::uint64_t kNoTrack = 0;
constexpr std::uint64_t kFirstCounterRank = 1 << 20;  // counters come below streams

enum CounterColumn : std::size_t { kCounterKey, kTime, kValue };

}  // namespace

std::pair<std::uint64_t, bool> InternTable::number(std::string_view text) {
  const auto found = numbers_.find(text);
  if (found != numbers_.end()) {
    return {found->second, false};
  }
  texts_.emplace_back(text);
  const std::uint64_t number = texts_.size();
  numbers_.emplace(texts_.back(), number);
  bytes_ += text.size() + sizeof(std::string);
  return {number, true};
}

void InternTable::clear() {
  numbers_.clear();
  texts_.clear();
  bytes_ = 0;
}

Encoder::Encoder(Sink sink, bool unix_epoch, std::size_t chunk_bytes, std::size_t intern_bytes)
    : sink_(std::move(sink)), unix_epoch_(unix_epoch), chunk_bytes_(chunk_bytes), intern_bytes_(intern_bytes) {
  write_root();
}

//   TrackDescriptor { uuid = 0, processes and threads in the order of their ranks }; nothing is drawn on it
void Encoder::write_root() {
  Message descriptor;
  descriptor.varint(field::kTrackUuid, kNoTrack);
  descriptor.varint(field::kTrackProcessOrdering, kRootOrderingExplicit);
  descriptor.varint(field::kTrackThreadOrdering, kRootOrderingExplicit);
  write_descriptor(descriptor, kSliceSequence);
}

std::uint64_t Encoder::parent_uuid(TrackKey parent) const {
  const auto found = tracks_.find(parent);
  return found == tracks_.end() ? kNoTrack : found->second.uuid;
}

//   TrackDescriptor { uuid, process { pid, command line, name, labels }, rank, children in the order of their ranks }
void Encoder::add_process(TrackKey key, std::int32_t pid, std::string_view name, std::int32_t rank,
                          std::string_view command_line, const std::vector<std::string>& labels) {
  const std::uint64_t uuid = next_uuid_++;
  Message process;
  process.integer(field::kProcessPid, pid);
  if (!command_line.empty()) {
    process.bytes(field::kProcessCommandLine, command_line);
  }
  process.bytes(field::kProcessName, name);
  for (const auto& label : labels) {
    process.bytes(field::kProcessLabels, label);
  }
  Message descriptor;
  descriptor.varint(field::kTrackUuid, uuid);
  descriptor.message(field::kTrackProcess, process);
  descriptor.integer(field::kTrackSiblingRank, rank);
  descriptor.varint(field::kTrackChildOrdering, kChildOrderingExplicit);
  write_descriptor(descriptor, kSliceSequence);
  tracks_.insert_or_assign(key, Track{uuid, std::string(name), {}, {}});
}

//   TrackDescriptor { uuid, thread { pid, tid, name }, rank }; the viewer finds the process by its pid
void Encoder::add_thread(TrackKey key, std::int32_t pid, std::int64_t tid, std::string_view name, std::int32_t rank) {
  const std::uint64_t uuid = next_uuid_++;
  Message thread;
  thread.integer(field::kThreadPid, pid);
  thread.integer(field::kThreadTid, tid);
  thread.bytes(field::kThreadName, name);
  Message descriptor;
  descriptor.varint(field::kTrackUuid, uuid);
  descriptor.message(field::kTrackThread, thread);
  descriptor.integer(field::kTrackSiblingRank, rank);
  write_descriptor(descriptor, kSliceSequence);
  tracks_.insert_or_assign(key, Track{uuid, std::string(name), {}, {}});
}

//   TrackDescriptor { uuid, parent, name, rank among its siblings, children in the order of their ranks }
void Encoder::add_track(TrackKey key, TrackKey parent, std::string_view name, std::int32_t rank) {
  const std::uint64_t uuid = next_uuid_++;
  Message descriptor;
  descriptor.varint(field::kTrackUuid, uuid);
  if (const std::uint64_t above = parent_uuid(parent); above != kNoTrack) {
    descriptor.varint(field::kTrackParentUuid, above);
  }
  descriptor.bytes(field::kTrackName, name);
  descriptor.integer(field::kTrackSiblingRank, rank);
  descriptor.varint(field::kTrackChildOrdering, kChildOrderingExplicit);
  descriptor.varint(field::kTrackSiblingMerge, kNeverMerge);
  write_descriptor(descriptor, kSliceSequence);
  tracks_.insert_or_assign(key, Track{uuid, std::string(name), {}, {}});
}

//   TrackDescriptor { uuid, parent, name, rank among its siblings, counter { unit } }
void Encoder::add_counter(TrackKey key, TrackKey parent, std::string_view name, std::string_view unit) {
  const std::uint64_t uuid = next_uuid_++;
  Message counter;
  if (unit == "bytes") {
    counter.varint(field::kCounterUnit, kSizeBytes);
  } else if (unit == "count") {
    counter.varint(field::kCounterUnit, kCount);
  } else {
    counter.bytes(field::kCounterUnitName, unit);
  }
  Message descriptor;
  descriptor.varint(field::kTrackUuid, uuid);
  if (const std::uint64_t above = parent_uuid(parent); above != kNoTrack) {
    descriptor.varint(field::kTrackParentUuid, above);
  }
  descriptor.bytes(field::kTrackName, name);
  descriptor.varint(field::kTrackSiblingRank, kFirstCounterRank + uuid);
  descriptor.varint(field::kTrackSiblingMerge, kNeverMerge);
  descriptor.message(field::kTrackCounter, counter);
  counters_.insert_or_assign(key, CounterTrack{std::move(descriptor), uuid});
}

void Encoder::write_descriptor(const Message& descriptor, std::uint32_t sequence) {
  packet_.clear();
  packet_.varint(field::kPacketSequenceId, sequence);
  packet_.message(field::kPacketTrackDescriptor, descriptor);
  end_packet();
}

void Encoder::begin_sequence(std::uint32_t sequence, std::int64_t now_ns, std::uint64_t default_track) {
  Message snapshot;
  const auto now = static_cast<std::uint64_t>(now_ns);
  const auto add_clock = [&](std::uint64_t id, bool incremental) {
    Message clock;
    clock.varint(field::kClockId, id);
    clock.varint(field::kClockTimestamp, now);
    if (incremental) {
      clock.varint(field::kClockIsIncremental, 1);
    }
    snapshot.message(field::kSnapshotClocks, clock);
  };
  add_clock(kIncremental, true);
  add_clock(kBoottime, false);
  // Once is enough for the viewer to know the date, and it draws a mark for each.
  if (std::exchange(unix_epoch_, false)) {
    add_clock(kRealtime, false);
  }
  Message defaults;
  defaults.varint(field::kDefaultsClockId, kIncremental);
  if (default_track != kNoTrack) {
    Message event_defaults;
    event_defaults.varint(field::kEventTrackUuid, default_track);
    defaults.message(field::kDefaultsTrackEvent, event_defaults);
  }
  packet_.clear();
  packet_.varint(field::kPacketSequenceId, sequence);
  packet_.varint(field::kPacketSequenceFlags, kStateCleared);
  packet_.message(field::kPacketClockSnapshot, snapshot);
  packet_.message(field::kPacketDefaults, defaults);
  end_packet();
  last_ns_ = now_ns;
}

void Encoder::begin_packet(std::uint32_t sequence, std::int64_t now_ns) {
  packet_.clear();
  packet_.varint(field::kPacketTimestamp, static_cast<std::uint64_t>(now_ns) - static_cast<std::uint64_t>(last_ns_));
  packet_.varint(field::kPacketSequenceId, sequence);
  packet_.varint(field::kPacketSequenceFlags, kNeedsState);
  last_ns_ = now_ns;
}

void Encoder::end_packet() {
  chunk_.message(field::kTracePacket, packet_);
  if (chunk_.size() >= chunk_bytes_) {
    finish();
  }
}

void Encoder::finish() {
  if (!chunk_.empty()) {
    sink_({chunk_.data(), chunk_.size()});
    chunk_.clear();
  }
}

void Encoder::slices(ColumnStream& rows, ColumnStream& arrows) {
  rows.expect(kSliceTypes);
  ArrowCursor cursor(arrows);
  bool begun = false;
  while (rows.next()) {
    const std::vector<Column> columns = columns_of(rows);
    if (!begun) {
      begin_sequence(kSliceSequence, columns[kStart].integer(0), kNoTrack);
      begun = true;
    }
    for (std::size_t row = 0; row < rows.rows(); ++row) {
      write_slice(rows, columns, row, cursor);
    }
  }
  write_ends_until(kNeverEnds - 1);
}

//   TrackEvent { type, track, category, name, flows that begin or go on here, flows that end here, debug annotations }
void Encoder::write_slice(const ColumnStream& rows, const std::vector<Column>& columns, std::size_t row,
                          ArrowCursor& arrows) {
  const std::int64_t start = columns[kStart].integer(row);
  const std::int64_t shape = columns[kShape].integer(row);
  write_ends_until(start);
  if (start < last_ns_) {
    throw std::runtime_error("the slices are not in order of time");
  }
  bound_interned(start);
  Track& track = track_of(columns[kTrack].integer(row));
  std::uint64_t uuid = track.uuid;
  if (shape != kPoint) {
    const std::int64_t end = shape == kOpen ? kNeverEnds : end_of(start, columns[kDuration].integer(row));
    uuid = lane_uuid(track, track.lanes.place(start, end));
    if (end != kNeverEnds) {
      ends_.push({end, uuid});
    }
  }
  interned_.clear();
  event_.clear();
  event_.varint(field::kEventType, shape == kPoint ? kInstant : kSliceBegin);
  event_.varint(field::kEventTrackUuid, uuid);
  event_.varint(field::kEventCategoryIids,
                intern(categories_, field::kInternedCategories, columns[kCategory].text(row)));
  event_.varint(field::kEventNameIid, intern(names_, field::kInternedEventNames, columns[kName].text(row)));
  while (const auto tip = arrows.next(columns[kId].integer(row))) {
    event_.fixed64(tip->second ? field::kEventTerminatingFlowIds : field::kEventFlowIds, tip->number);
  }
  annotate(rows, columns, row);
  begin_packet(kSliceSequence, start);
  if (!interned_.empty()) {
    packet_.message(field::kPacketInternedData, interned_);
  }
  packet_.message(field::kPacketTrackEvent, event_);
  end_packet();
}

//   DebugAnnotation { name, integer or interned text }
void Encoder::annotate(const ColumnStream& rows, const std::vector<Column>& columns, std::size_t row) {
  for (std::size_t column = kFirstAnnotation; column < columns.size(); ++column) {
    if (columns[column].null(row)) {
      continue;
    }
    scratch_.clear();
    scratch_.varint(field::kAnnotationNameIid,
                    intern(annotation_names_, field::kInternedAnnotationNames, rows.name(column)));
    switch (rows.type(column)) {
      case kInteger:
        scratch_.integer(field::kAnnotationIntValue, columns[column].integer(row));
        break;
      case kText: {
        const auto number = intern(annotation_values_, field::kInternedAnnotationValues, columns[column].text(row));
        scratch_.varint(field::kAnnotationStringValueIid, number);
        break;
      }
      default:
        throw std::runtime_error("column " + std::string(rows.name(column)) +
                                 ": an annotation is a BIGINT or a VARCHAR");
    }
    event_.message(field::kEventDebugAnnotations, scratch_);
  }
}

// The ends of one lane are alike, and the innermost slice is the one that ends: so ends need no more than a time and a track.
void Encoder::write_ends_until(std::int64_t now_ns) {
  while (!ends_.empty() && ends_.top().ns <= now_ns) {
    const End end = ends_.top();
    ends_.pop();
    event_.clear();
    event_.varint(field::kEventType, kSliceEnd);
    event_.varint(field::kEventTrackUuid, end.uuid);
    begin_packet(kSliceSequence, end.ns);
    packet_.message(field::kPacketTrackEvent, event_);
    end_packet();
  }
}

//   InternedData { kind of string: { iid, text } }
std::uint64_t Encoder::intern(InternTable& table, std::uint32_t number, std::string_view text) {
  const auto [iid, is_new] = table.number(text);
  if (is_new) {
    Message entry;
    entry.varint(field::kInternedIid, iid);
    entry.bytes(field::kInternedText, text);
    interned_.message(number, entry);
  }
  return iid;
}

// Names are untrusted: a trace may have a new one for every event.
void Encoder::bound_interned(std::int64_t now_ns) {
  if (categories_.bytes() + names_.bytes() + annotation_names_.bytes() + annotation_values_.bytes() > intern_bytes_) {
    categories_.clear();
    names_.clear();
    annotation_names_.clear();
    annotation_values_.clear();
    begin_sequence(kSliceSequence, now_ns, kNoTrack);
  }
}

// A row may point to a track that nobody described, in a trace from somebody else.
Encoder::Track& Encoder::track_of(TrackKey key) {
  const auto found = tracks_.find(key);
  if (found != tracks_.end()) {
    return found->second;
  }
  add_track(key, kNoParent, "unknown track", 0);
  return tracks_.at(key);
}

// Likewise a value may belong to a counter that nobody described.
const Encoder::CounterTrack& Encoder::counter_of(TrackKey key) {
  const auto found = counters_.find(key);
  if (found != counters_.end()) {
    return found->second;
  }
  add_counter(key, kNoParent, "unknown counter", "");
  return counters_.at(key);
}

std::uint64_t Encoder::lane_uuid(Track& track, std::size_t lane) {
  if (lane == 0) {
    return track.uuid;
  }
  if (lane > track.lane_uuids.size()) {
    const std::uint64_t uuid = next_uuid_++;
    Message descriptor;
    descriptor.varint(field::kTrackUuid, uuid);
    descriptor.varint(field::kTrackParentUuid, track.uuid);
    descriptor.bytes(field::kTrackName, track.name + " (overlap " + std::to_string(lane) + ")");
    descriptor.varint(field::kTrackSiblingRank, lane);
    descriptor.varint(field::kTrackSiblingMerge, kNeverMerge);
    write_descriptor(descriptor, kSliceSequence);
    track.lane_uuids.push_back(uuid);
  }
  return track.lane_uuids[lane - 1];
}

//   TrackEvent { type = COUNTER, value }; the track is the sequence's default
void Encoder::counters(ColumnStream& rows) {
  rows.expect("ll");
  std::optional<TrackKey> current;
  while (rows.next()) {
    const std::vector<Column> columns = columns_of(rows);
    for (std::size_t row = 0; row < rows.rows(); ++row) {
      const TrackKey key = columns[kCounterKey].integer(row);
      const std::int64_t now = columns[kTime].integer(row);
      const CounterTrack& counter = counter_of(key);
      const auto sequence = static_cast<std::uint32_t>(kFirstCounterSequence + counter.uuid);
      if (current != key) {
        current = key;
        write_descriptor(counter.descriptor, sequence);
        begin_sequence(sequence, now, counter.uuid);
      }
      event_.clear();
      event_.varint(field::kEventType, kCounter);
      if (rows.type(kValue) == kInteger) {
        event_.integer(field::kEventCounterValue, columns[kValue].integer(row));
      } else {
        event_.real(field::kEventDoubleCounterValue, columns[kValue].real(row));
      }
      begin_packet(sequence, now);
      packet_.message(field::kPacketTrackEvent, event_);
      end_packet();
    }
  }
}

}  // namespace ral::trace::perfetto
