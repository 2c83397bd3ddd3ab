#include "reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace ral::trace {

namespace {

constexpr std::uint64_t kMaxRingRecords = 1u << 26;
constexpr std::uint32_t kMaxRings = 1u << 20;

bool read_exactly(const File& file, void* into, std::size_t bytes, std::uint64_t offset) {
  return ::pread(file.get(), into, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

bool is_known(Kind kind) {
  const auto value = static_cast<std::uint8_t>(kind);
  return value < kKindNames.size() || kind == Kind::kDevice || kind == Kind::kStream;
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
  const bool sound = header.magic == kRingMagic && header.version == kLayoutVersion && header.records > 0 && header.records <= kMaxRingRecords &&
                     (header.records & (header.records - 1)) == 0 &&
                     static_cast<std::uint64_t>(status.st_size) == kHeaderBytes + header.records * sizeof(Record);
  if (!sound) {
    return nullptr;
  }
  return std::unique_ptr<RingReader>(
      new RingReader(std::move(file), header.records, header.tid, text_of(header.thread_name.data(), header.thread_name.size())));
}

bool RingReader::read_counters() {
  Counters fresh{};
  if (!read_exactly(file_, &fresh, sizeof fresh, offsetof(RingHeader, sequence))) {
    return false;
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  // Counters only grow, and no more can be unread than fits; a file that says otherwise is damaged, and is read no further.
  const bool sound = fresh.head >= tail_ && fresh.head - tail_ <= records_ && fresh.sequence >= counters_.sequence && fresh.head <= fresh.sequence &&
                     fresh.dropped <= fresh.sequence - fresh.head;
  if (sound) {
    counters_ = fresh;
  }
  return sound;
}

std::size_t RingReader::read_records(std::uint64_t count) {
  buffer_.resize(count);
  const std::uint64_t begin = tail_ & (records_ - 1);
  const std::uint64_t first = std::min(count, records_ - begin);
  const bool whole = read_exactly(file_, buffer_.data(), first * sizeof(Record), kHeaderBytes + begin * sizeof(Record)) &&
                     (first == count || read_exactly(file_, buffer_.data() + first, (count - first) * sizeof(Record), kHeaderBytes));
  return whole ? count : 0;
}

std::size_t RingReader::drain(std::int32_t process, const Calibration& clock, Columns& into) {
  if (finished_) {
    return 0;
  }
  if (!read_counters()) {
    finished_ = true;
    return 0;
  }
  const std::uint64_t count = counters_.head - tail_;
  if (count == 0) {
    finished_ = counters_.closed != 0;
    return 0;
  }
  if (read_records(count) == 0) {
    finished_ = true;
    return 0;
  }
  for (const Record& record : buffer_) {
    if (is_known(record.kind) && record.name < kMaxNames && record.end_ticks >= record.start_ticks) {
      into.append(process, record, clock);
      ++received_;
    }
  }
  tail_ += count;
  // A failure means that the file was cut: the next drain sees it.
  (void)!::pwrite(file_.get(), &tail_, sizeof tail_, offsetof(RingHeader, tail));
  return count;
}

Account RingReader::account() const {
  return {counters_.sequence, received_, counters_.dropped, counters_.sequence - received_ - counters_.dropped};
}

std::unique_ptr<ProcessReader> ProcessReader::open(const std::string& folder) {
  std::unique_ptr<ProcessReader> reader(new ProcessReader(folder, open_owned(folder + "/process", O_RDONLY)));
  if (!reader->file_ || !reader->refresh() || reader->header().magic != kProcessMagic || reader->header().version != kLayoutVersion) {
    return nullptr;
  }
  return reader;
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
    unopened_.push_back(next_ring_);
  }
  // What cannot be opened is still being made, or there was no room for it: it is tried again.
  unopened_.erase(std::remove_if(unopened_.begin(), unopened_.end(),
                                 [this](std::uint32_t number) {
                                   auto ring = RingReader::open(folder_ + "/ring-" + std::to_string(number));
                                   const bool opened = ring != nullptr;
                                   if (opened) {
                                     rings_.push_back(std::move(ring));
                                   }
                                   return opened;
                                 }),
                  unopened_.end());
  std::size_t read = 0;
  for (const auto& ring : rings_) {
    read += ring->drain(process, clock, into);
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
  }
  const std::uint64_t unrecorded = header().unrecorded.load(std::memory_order_relaxed);
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
  if (!file || !read_exactly(file, table.get(), sizeof(NameTable), 0) || table->magic != kNamesMagic) {
    return found;
  }
  *refused = table->refused.load(std::memory_order_relaxed);
  const std::uint32_t end = std::min(table->next_id.load(std::memory_order_relaxed), kMaxNames);
  for (std::uint32_t id = 1; id < end; ++id) {
    const NameEntry& entry = table->entries[id];
    const std::uint64_t length = entry.length.load(std::memory_order_relaxed);
    if (length > 0 && entry.offset + length - 1 <= kNamePoolBytes) {
      found.emplace_back(id, std::string(table->pool.data() + entry.offset, length - 1));
    }
  }
  return found;
}

}  // namespace ral::trace
