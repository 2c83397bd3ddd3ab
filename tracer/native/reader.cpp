#include "reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ral::trace {

namespace {

// Records are taken in pieces that stay in the cache on their way to the columns.
constexpr std::uint64_t kPieceRecords = 8192;

bool read_exactly(const File& file, void* into, std::size_t bytes, std::uint64_t offset) {
  return ::pread(file.get(), into, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

bool is_known(Kind kind) {
  const auto value = static_cast<std::uint8_t>(kind);
  return value < kKindNames.size() || kind == Kind::kDevice || kind == Kind::kStream;
}

// The arguments that become indices or signed columns.
bool fits(const Record& record) {
  switch (record.kind) {
    case Kind::kTransfer:
      return record.arg1 < kDirectionNames.size();
    case Kind::kAlloc:
    case Kind::kFree:
    case Kind::kRegion:
      return record.arg1 <= INT64_MAX;
    case Kind::kStream:
      return record.bytes <= INT32_MAX;
    default:
      return true;
  }
}

// What every later stage counts on: indices into tables, and numbers that fit the trace's columns.
bool is_fact(const Record& record) {
  const bool was_there = record.kind == Kind::kAlloc || record.kind == Kind::kRegion;
  return record.kind >= Kind::kDevice || (was_there && (record.flags & kBeforeTrace) != 0);
}

bool is_sound(const Record& record, const TickRange& possible) {
  return is_known(record.kind) && record.name < kMaxNames && record.end_ticks >= record.start_ticks &&
         record.start_ticks >= possible.first && record.end_ticks <= possible.last && record.correlation <= INT64_MAX &&
         record.bytes >= -1 && record.device >= kNoDevice && fits(record);
}

std::string text_of(const char* begin, std::size_t capacity) { return {begin, ::strnlen(begin, capacity)}; }

}  // namespace

std::unique_ptr<RingReader> RingReader::open(const std::string& path) {
  File file = open_owned(path, O_RDWR);
  alignas(RingHeader) std::array<std::byte, sizeof(RingHeader)> bytes;
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0 || !read_exactly(file, bytes.data(), bytes.size(), 0)) {
    return nullptr;
  }
  const auto& header = *reinterpret_cast<const RingHeader*>(bytes.data());
  const bool sound = header.magic == kRingMagic && header.version == kLayoutVersion && header.records > 0 &&
                     header.records <= kMaxRingRecords && (header.records & (header.records - 1)) == 0 &&
                     static_cast<std::uint64_t>(status.st_size) == kHeaderBytes + header.records * sizeof(Record);
  if (!sound) {
    return nullptr;
  }
  return std::unique_ptr<RingReader>(new RingReader(std::move(file), path, header.records, header.tid,
                                                    text_of(header.thread_name.data(), header.thread_name.size())));
}

// One pread is not one moment: its writer goes on. So `closed` is read before what it closes, and `sequence` after what
// it exceeds.
bool RingReader::read_counters() {
  Counters fresh{};
  const auto read = [this](std::uint64_t& into, std::size_t offset) {
    const bool whole = read_exactly(file_, &into, sizeof into, offset);
    std::atomic_thread_fence(std::memory_order_acquire);
    return whole;
  };
  if (!read(fresh.closed, offsetof(RingHeader, closed)) || !read(fresh.dropped, offsetof(RingHeader, dropped)) ||
      !read(fresh.head, offsetof(RingHeader, head)) || !read(fresh.sequence, offsetof(RingHeader, sequence))) {
    return false;
  }
  // Counters only grow, and no more can be unread than fits; a file that says otherwise is damaged, and is read no
  // further.
  const bool sound = fresh.head >= tail_ && fresh.head - tail_ <= records_ && fresh.sequence >= counters_.sequence &&
                     fresh.sequence <= kMaxEvents && fresh.head <= fresh.sequence &&
                     fresh.dropped <= fresh.sequence - fresh.head;
  if (sound) {
    counters_ = fresh;
  }
  return sound;
}

std::size_t RingReader::drain(std::int32_t process, const Calibration& clock, std::vector<Record>& scratch,
                              Columns& into) {
  if (finished_) {
    return 0;
  }
  if (!read_counters()) {
    damaged_ = true;
    finish();
    return 0;
  }
  const std::uint64_t begin = tail_;
  const TickRange possible = clock.possible();
  while (tail_ != counters_.head) {
    const std::uint64_t at = tail_ & (records_ - 1);
    const std::uint64_t count = std::min({counters_.head - tail_, records_ - at, kPieceRecords});
    scratch.resize(kPieceRecords);
    if (!read_exactly(file_, scratch.data(), count * sizeof(Record), kHeaderBytes + at * sizeof(Record))) {
      damaged_ = true;  // cut short under us
      finish();
      break;
    }
    received_ += into.append(process, scratch.data(), count, clock, [&](const Record& record) {
      const bool sound = is_sound(record, possible);
      facts_ += sound && is_fact(record) ? 1 : 0;
      return sound;
    });
    tail_ += count;
    // The writer may reuse these slots once it sees this, so not before they are read.
    std::atomic_thread_fence(std::memory_order_release);
    (void)!::pwrite(file_.get(), &tail_, sizeof tail_, offsetof(RingHeader, tail));
  }
  if (counters_.closed != 0) {
    finish();
  }
  return tail_ - begin;
}

// Threads come and go: the shared memory of one that is gone is given back at once.
void RingReader::finish() {
  finished_ = true;
  file_ = File();
  ::unlink(path_.c_str());
}

Account RingReader::account() const {
  return {counters_.sequence, received_, counters_.dropped, counters_.sequence - received_ - counters_.dropped, facts_,
          damaged_ ? 1u : 0u};
}

std::unique_ptr<ProcessReader> ProcessReader::open(const std::string& folder) {
  std::unique_ptr<ProcessReader> reader(new ProcessReader(folder, open_owned(folder + "/process", O_RDONLY)));
  if (!reader->file_ || !reader->refresh()) {
    return nullptr;
  }
  const ProcessHeader& header = reader->header();
  const std::string identity = std::to_string(header.pid) + "-" + std::to_string(header.started);
  const std::string name = folder.substr(folder.rfind('/') + 1);
  const bool sound = header.magic == kProcessMagic && header.version == kLayoutVersion && header.pid > 0 &&
                     name.substr(0, name.find('.')) == identity;
  return sound ? std::move(reader) : nullptr;
}

bool ProcessReader::refresh() { return read_exactly(file_, header_.data(), header_.size(), 0); }

ProcessState ProcessReader::state() {
  refresh();
  return header().state.load(std::memory_order_relaxed);
}

std::size_t ProcessReader::drain(std::int32_t process, const Calibration& clock, Columns& into) {
  refresh();
  const std::uint32_t made = std::min(header().rings.load(std::memory_order_relaxed), kMaxRings);
  for (; next_ring_ < made; ++next_ring_) {
    const std::string path = folder_ + "/ring-" + std::to_string(next_ring_);
    if (auto ring = RingReader::open(path); ring != nullptr) {
      rings_.push_back(std::move(ring));
    } else if (::access(path.c_str(), F_OK) != 0) {
      break;  // the header counts rings that are not there: do not look for all of them
    }
    // Else it is damaged, and left alone: a ring is whole before it is counted.
  }
  std::size_t read = 0;
  for (const auto& ring : rings_) {
    read += ring->drain(process, clock, scratch_, into);
  }
  return read;
}

Account ProcessReader::account() const {
  Account sum;
  for (const auto& ring : rings_) {
    const Account one = ring->account();
    sum.written += one.written;
    sum.received += one.received;
    sum.dropped += one.dropped;
    sum.lost += one.lost;
    sum.facts += one.facts;
    sum.damaged_rings += one.damaged_rings;
  }
  const std::uint64_t unrecorded = std::min(header().unrecorded.load(std::memory_order_relaxed), kMaxEvents);
  sum.written += unrecorded;
  sum.dropped += unrecorded;
  return sum;
}

std::vector<std::pair<std::uint32_t, std::string>> ProcessReader::threads() const {
  std::vector<std::pair<std::uint32_t, std::string>> found;
  for (const auto& ring : rings_) {
    found.emplace_back(ring->tid(), ring->thread_name());
  }
  return found;
}

std::vector<std::pair<std::uint32_t, std::string>> ProcessReader::names(std::uint64_t* refused) const {
  std::vector<std::pair<std::uint32_t, std::string>> found;
  const File file = open_owned(folder_ + "/names", O_RDONLY);
  const auto table = std::make_unique<NameTable>();
  if (!file || !read_exactly(file, table.get(), sizeof(NameTable), 0) || table->magic != kNamesMagic ||
      table->version != kLayoutVersion) {
    return found;
  }
  *refused = table->refused.load(std::memory_order_relaxed);
  const std::uint32_t end = std::min(table->next_id.load(std::memory_order_relaxed), kMaxNames);
  for (std::uint32_t id = 1; id < end; ++id) {
    const NameEntry& entry = table->entries[id];
    const std::uint64_t length = entry.length.load(std::memory_order_relaxed);
    if (length > 0 && length - 1 <= kMaxNameBytes && entry.offset + length - 1 <= kNamePoolBytes) {
      found.emplace_back(id, std::string(table->pool.data() + entry.offset, length - 1));
    }
  }
  return found;
}

}  // namespace ral::trace
