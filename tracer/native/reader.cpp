#include "reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace ral::trace {

namespace {

// Records are taken in pieces that stay in the cache on their way to the columns.
constexpr std::uint64_t kPieceRecords = 8192;

bool read_exactly(const File& file, void* into, std::size_t bytes, std::uint64_t offset) {
  return ::pread(file.get(), into, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

bool is_known(Kind kind) {
  const auto value = static_cast<std::uint8_t>(kind);
  return value < kKindNames.size() || kind == Kind::kDevice || kind == Kind::kStream || kind == Kind::kAccess;
}

// The arguments that become indices or signed columns.
bool fits(const Record& record) {
  switch (record.kind) {
    case Kind::kTransfer:
      return record.arg1 < kDirectionNames.size();
    case Kind::kAnnotation:
      return record.arg0 < kAnnotationSortNames.size() && record.arg1 < kMaxNames;
    case Kind::kAccess:
      return record.arg1 > 0 && record.arg1 <= (kRead | kWrite);
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

bool is_shape(std::uint64_t records, std::uint64_t straight) {
  // Not `records <= straight`: they are read one after the other, and both may be changing.
  return records > 0 && (records & (records - 1)) == 0 && records <= kMaxRingRecords && straight > 0 &&
         straight <= kMaxRingRecords;
}

std::string text_of(const char* begin, std::size_t capacity) { return {begin, ::strnlen(begin, capacity)}; }

}  // namespace

bool is_fact(const Record& record) {
  const bool was_there = record.kind == Kind::kAlloc || record.kind == Kind::kRegion;
  return record.kind >= Kind::kDevice || (was_there && (record.flags & kBeforeTrace) != 0);
}

bool is_sound(const Record& record, std::uint64_t near) {
  // At three a nanosecond this is 278 days; at 24 MHz the nanoseconds of it, and sums of two of them, fit 63 bits.
  constexpr std::uint64_t kFar = std::uint64_t{1} << 56;
  const auto is_near = [near](std::uint64_t at) { return at < near ? near - at < kFar : at - near < kFar; };
  return is_known(record.kind) && record.name < kMaxNames && record.stack < kMaxStackNodes &&
         record.end_ticks >= record.start_ticks && is_near(record.start_ticks) && is_near(record.end_ticks) &&
         record.correlation <= INT64_MAX && record.bytes >= -1 && record.device >= kHostMemory && fits(record);
}

void Account::add(const Account& other) noexcept {
  written += other.written;
  received += other.received;
  dropped += other.dropped;
  lost += other.lost;
  facts += other.facts;
  shed += other.shed;
  damaged_rings += other.damaged_rings;
}

RingReader::RingReader(File file, std::string path, std::uint32_t number, const RingHeader& header, const Taken& taken)
    : file_(std::move(file)),
      path_(std::move(path)),
      number_(number),
      records_(header.records),
      straight_(header.straight),
      tid_(header.tid),
      thread_name_(text_of(header.thread_name.data(), header.thread_name.size())),
      on_full_(header.on_full),
      first_ticks_(ticks(the_clock_source())),
      // Where what was taken has been lost with its collector, only the rest is there.
      tail_(header.on_full == OnFull::kDrop ? std::max(taken.tail, header.tail.load()) : taken.tail),
      received_(taken.received),
      facts_(taken.facts),
      overwritten_(header.on_full == OnFull::kDrop ? 0 : taken.tail - std::min(taken.received, taken.tail)) {}

std::unique_ptr<RingReader> RingReader::open(const std::string& path, std::uint32_t number, const Taken& taken) {
  File file = open_owned(path, O_RDWR);
  alignas(RingHeader) std::array<std::byte, sizeof(RingHeader)> bytes;
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0 || !read_exactly(file, bytes.data(), bytes.size(), 0)) {
    return nullptr;
  }
  const auto& header = *reinterpret_cast<const RingHeader*>(bytes.data());
  const bool sound = header.magic == kRingMagic && header.version == kLayoutVersion &&
                     is_shape(header.records, header.straight) &&
                     (header.on_full == OnFull::kDrop || header.on_full == OnFull::kOverwrite) &&
                     static_cast<std::uint64_t>(status.st_size) >= kHeaderBytes + header.straight * sizeof(Record);
  return sound ? std::unique_ptr<RingReader>(new RingReader(std::move(file), path, number, header, taken)) : nullptr;
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
  std::uint64_t records = 0;
  std::uint64_t straight = 0;
  if (!read(fresh.closed, offsetof(RingHeader, closed)) || !read(fresh.dropped, offsetof(RingHeader, dropped)) ||
      !read(fresh.head, offsetof(RingHeader, head)) || !read(fresh.sequence, offsetof(RingHeader, sequence)) ||
      !read(straight, offsetof(RingHeader, straight)) || !read(records, offsetof(RingHeader, records)) ||
      !read(shed_, offsetof(RingHeader, shed)) || !read(spent_ticks_, offsetof(RingHeader, spent_ticks)) ||
      !take_shape(records, straight)) {
    return false;
  }
  shed_ = std::min(shed_, kMaxEvents);
  spent_ticks_ = std::min(spent_ticks_, kMaxEvents);
  // Counters only grow, and no more can be unread than fits (unless it is overwritten); a file that says otherwise is
  // damaged, and is read no further.
  const bool fits = on_full_ == OnFull::kOverwrite ? fresh.dropped == 0 : fresh.head - tail_ <= straight_;
  const bool sound = fresh.head >= tail_ && fits && fresh.sequence >= counters_.sequence &&
                     fresh.sequence <= kMaxEvents && fresh.head <= fresh.sequence &&
                     fresh.dropped <= fresh.sequence - fresh.head;
  if (sound) {
    counters_ = fresh;
  }
  return sound;
}

bool RingReader::take_shape(std::uint64_t records, std::uint64_t straight) {
  const bool sound = is_shape(records, straight) && records <= records_ && straight <= straight_;
  if (sound) {
    records_ = records;
    straight_ = straight;
  }
  return sound;
}

std::uint64_t RingReader::overwritten_below() {
  std::uint64_t sequence = 0;
  std::uint64_t records = 0;
  if (on_full_ != OnFull::kOverwrite) {
    return 0;
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  // A ring that became smaller meanwhile has overwritten more than it would have as it was.
  if (!read_exactly(file_, &sequence, sizeof sequence, offsetof(RingHeader, sequence)) ||
      !read_exactly(file_, &records, sizeof records, offsetof(RingHeader, records)) || records > records_) {
    return UINT64_MAX;
  }
  return sequence > records ? sequence - records : 0;
}

std::size_t RingReader::read_records(std::vector<Record>& scratch, std::uint64_t* first) {
  const std::uint64_t at = tail_ < straight_ ? tail_ : tail_ & (records_ - 1);
  const std::uint64_t run = tail_ < straight_ ? straight_ - tail_ : records_ - at;
  const std::uint64_t count = std::min({counters_.head - tail_, run, kPieceRecords});
  scratch.resize(kPieceRecords);
  if (!read_exactly(file_, scratch.data(), count * sizeof(Record), kHeaderBytes + at * sizeof(Record))) {
    return 0;
  }
  const std::uint64_t whole_from = overwritten_below();
  *first = whole_from <= tail_ ? 0 : std::min(whole_from - tail_, count);
  return count;
}

std::size_t RingReader::drain(RecordSink& sink, std::vector<Record>& scratch) {
  if (finished_) {
    return 0;
  }
  if (!read_counters()) {
    damaged_ = true;
    finish();
    return 0;
  }
  const std::uint64_t begin = tail_;
  if (const std::uint64_t below = std::min(overwritten_below(), counters_.head); below > tail_) {
    overwritten_ += below - tail_;
    tail_ = below;
  }
  while (tail_ != counters_.head) {
    std::uint64_t first = 0;
    const std::size_t count = read_records(scratch, &first);
    if (count == 0) {
      damaged_ = true;  // cut short under us
      finish();
      break;
    }
    const auto whole = scratch.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = std::remove_if(whole, scratch.begin() + static_cast<std::ptrdiff_t>(count),
                                    [this](const Record& record) { return !is_sound(record, first_ticks_); });
    const Drained from{number_, tid_, tail_, count};
    if (!sink.take(from, &*whole, static_cast<std::size_t>(end - whole))) {
      return tail_ - begin;
    }
    overwritten_ += first;
    received_ += static_cast<std::uint64_t>(end - whole);
    facts_ += static_cast<std::uint64_t>(std::count_if(whole, end, is_fact));
    tail_ += count;
    // The writer may reuse these slots once it sees this, so not before they are kept.
    std::atomic_thread_fence(std::memory_order_release);
    (void)!::pwrite(file_.get(), &tail_, sizeof tail_, offsetof(RingHeader, tail));
  }
  if (counters_.closed != 0) {
    finish();
  }
  return tail_ - begin;
}

void RingReader::look() {
  // The account of a thread that is gone stays as it is, and its file must not be held.
  if (!finished_ && read_counters() && counters_.closed != 0) {
    finish();
  }
}

void RingReader::finish() {
  finished_ = true;
  file_ = File();
}

void RingReader::remove_file() const { ::unlink(path_.c_str()); }

Account RingReader::counts() const noexcept {
  const std::uint64_t dropped = counters_.dropped + overwritten_;
  const std::uint64_t missing = counters_.sequence - received_;
  // Damage may make more of what was dropped than is missing.
  const std::uint64_t kept = std::min(dropped, missing);
  return {counters_.sequence, received_, kept, missing - kept, facts_, shed_, damaged_ ? 1u : 0u};
}

RingAccount RingReader::account() const {
  return {number_, tid_, thread_name_, closed(), finished_, spent_ticks_, counts()};
}

std::unique_ptr<ProcessReader> ProcessReader::open(const std::string& folder, TakenRings taken) {
  std::unique_ptr<ProcessReader> reader(
      new ProcessReader(folder, open_owned(folder + "/process", O_RDWR), std::move(taken)));
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

std::uint32_t ProcessReader::alarms() {
  refresh();
  return header().alarms.load(std::memory_order_relaxed);
}

void ProcessReader::shed(std::uint32_t details) const {
  (void)!::pwrite(file_.get(), &details, sizeof details, offsetof(ProcessHeader, shed));
}

// By what is in the folder, not by what the header counts: rings of threads that are gone are removed, and a damaged
// header may count any number.
void ProcessReader::open_new_rings() {
  const std::uint32_t made = std::min(header().rings.load(std::memory_order_relaxed), kMaxRings);
  if (made <= next_ring_) {
    return;
  }
  std::vector<std::uint32_t> found;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, failed)) {
    const std::string name = entry.path().filename().string();
    unsigned number = 0;
    int end = 0;
    if (std::sscanf(name.c_str(), "ring-%u%n", &number, &end) == 1 && end == static_cast<int>(name.size()) &&
        number >= next_ring_ && number < made) {
      found.push_back(number);
    }
  }
  std::sort(found.begin(), found.end());
  for (const std::uint32_t number : found) {
    const auto known = taken_.find(number);
    const Taken taken = known == taken_.end() ? Taken{} : known->second;
    // One that is none is damaged, and left alone: a ring is whole before it is counted.
    errno = 0;
    if (auto ring = RingReader::open(folder_ + "/ring-" + std::to_string(number), number, taken); ring != nullptr) {
      rings_.push_back(std::move(ring));
    } else if (errno == EMFILE || errno == ENFILE) {
      next_ring_ = number;  // later, when this process may open files again
      return;
    }
  }
  next_ring_ = made;
}

std::size_t ProcessReader::drain(RecordSink& sink) {
  refresh();
  open_new_rings();
  std::size_t read = 0;
  for (const auto& ring : rings_) {
    read += ring->drain(sink, scratch_);
  }
  return read;
}

void ProcessReader::look() {
  refresh();
  open_new_rings();
  for (const auto& ring : rings_) {
    ring->look();
  }
}

std::uint64_t ProcessReader::unrecorded() const {
  return std::min(header().unrecorded.load(std::memory_order_relaxed), kMaxEvents);
}

Account ProcessReader::account() const {
  Account sum = forgotten_;
  for (const auto& ring : rings_) {
    sum.add(ring->counts());
  }
  sum.written += unrecorded();
  sum.dropped += unrecorded();
  return sum;
}

std::uint64_t ProcessReader::spent_ticks() const {
  std::uint64_t sum = forgotten_ticks_;
  for (const auto& ring : rings_) {
    sum += ring->spent_ticks();
  }
  return sum;
}

std::vector<RingAccount> ProcessReader::rings() const {
  std::vector<RingAccount> found;
  for (const auto& ring : rings_) {
    found.push_back(ring->account());
  }
  return found;
}

std::vector<RingAccount> ProcessReader::forget_finished() {
  std::vector<RingAccount> finished;
  const auto kept =
      std::stable_partition(rings_.begin(), rings_.end(), [](const auto& ring) { return !ring->finished(); });
  for (auto ring = kept; ring != rings_.end(); ++ring) {
    finished.push_back((*ring)->account());
    forgotten_.add(finished.back().account);
    forgotten_ticks_ += finished.back().spent_ticks;
    (*ring)->remove_file();
  }
  rings_.erase(kept, rings_.end());
  return finished;
}

void ProcessReader::finish() {
  file_ = File();  // what the header said last is kept
  for (const auto& ring : rings_) {
    ring->finish();
  }
}

NameList NameList::read(const std::string& path) {
  NameList list;
  const File file = open_owned(path, O_RDONLY);
  const auto table = std::make_unique<NameTable>();
  if (!file || !read_exactly(file, table.get(), sizeof(NameTable), 0) || table->magic != kNamesMagic ||
      table->version != kLayoutVersion) {
    return list;
  }
  list.refused = table->refused.load(std::memory_order_relaxed);
  list.cut = table->cut.load(std::memory_order_relaxed);
  list.refused_stacks = table->refused_stacks.load(std::memory_order_relaxed);
  const std::uint32_t names = std::min(table->next_id.load(std::memory_order_relaxed), kMaxNames);
  for (std::uint32_t id = 1; id < names; ++id) {
    const NameEntry& entry = table->entries[id];
    const std::uint64_t length = entry.length.load(std::memory_order_relaxed);
    if (length > 0 && length - 1 <= kMaxNameBytes && entry.offset + length - 1 <= kNamePoolBytes) {
      list.names.emplace_back(id, std::string(table->pool.data() + entry.offset, length - 1));
    }
  }
  const std::uint32_t nodes = std::min(table->next_stack.load(std::memory_order_relaxed), kMaxStackNodes);
  for (std::uint32_t id = 1; id < nodes; ++id) {
    const StackNode& node = table->stacks[id];
    const std::uint32_t frame = node.frame.load(std::memory_order_relaxed);
    // A caller is made before who it calls, so that no stack ends in a circle.
    if (frame > 0 && frame < kMaxNames && node.caller < id) {
      list.stacks.push_back({id, node.caller, frame});
    }
  }
  return list;
}

}  // namespace ral::trace
