#include "spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

namespace ral::trace {

namespace {

// A drain hands over pieces far smaller than this.
constexpr std::uint32_t kMostRecords = 1u << 20;

bool read_at(const File& file, void* into, std::size_t bytes, std::uint64_t offset) {
  return ::pread(file.get(), into, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

bool is_block(const SpoolBlock& block) {
  return block.magic == kSpoolMagic && block.process >= 0 && block.ring < kMaxRings && block.count <= kMostRecords;
}

}  // namespace

Spool::Spool(std::string path) {
  ::close(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  file_ = open_owned(path, O_RDWR);
  if (!file_) {
    throw std::runtime_error(path + ": must be a file of yours that nobody else can read (mode 0600)");
  }
  SpoolBlock block;
  std::vector<Record> records;
  while (read_at(file_, &block, sizeof block, bytes_) && is_block(block)) {
    records.resize(block.count);
    if (!read_at(file_, records.data(), block.count * sizeof(Record), bytes_ + sizeof block)) {
      break;
    }
    bytes_ += sizeof block + block.count * sizeof(Record);
    Taken& taken = taken_[block.process][block.ring];
    taken.tail = block.first + block.read;
    taken.received += block.count;
    taken.facts += static_cast<std::uint64_t>(std::count_if(records.begin(), records.end(), is_fact));
  }
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0) {
    throw std::runtime_error(path + ": cannot be written");
  }
}

bool Spool::append(std::int32_t process, const Drained& from, const Record* records, std::size_t count) {
  SpoolBlock block{kSpoolMagic,
                   process,
                   from.ring,
                   from.tid,
                   static_cast<std::uint32_t>(count),
                   from.first,
                   from.read,
                   ticks(the_clock_source())};
  const std::size_t bytes = sizeof block + count * sizeof(Record);
  std::array<iovec, 2> parts{{{&block, sizeof block}, {const_cast<Record*>(records), count * sizeof(Record)}}};
  ssize_t written = 0;
  do {
    written = ::pwritev(file_.get(), parts.data(), parts.size(), static_cast<off_t>(bytes_));
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(bytes)) {
    (void)!::ftruncate(file_.get(), static_cast<off_t>(bytes_));
    return false;
  }
  bytes_ += bytes;
  return true;
}

TakenRings Spool::taken(std::int32_t process) const {
  const auto found = taken_.find(process);
  return found == taken_.end() ? TakenRings{} : found->second;
}

SpoolReader::SpoolReader(const std::string& path) : file_(open_owned(path, O_RDONLY)) {
  if (!file_) {
    throw std::runtime_error(path + ": is not there, or not a file of yours alone (mode 0600)");
  }
}

bool SpoolReader::read_block(SpoolBlock* block) {
  if (!read_at(file_, block, sizeof *block, offset_) || !is_block(*block)) {
    return false;
  }
  scratch_.resize(block->count);
  if (!read_at(file_, scratch_.data(), block->count * sizeof(Record), offset_ + sizeof *block)) {
    return false;
  }
  offset_ += sizeof *block + block->count * sizeof(Record);
  return true;
}

bool SpoolReader::next(const Calibration& clock, std::size_t rows, std::uint64_t since_ticks, Columns& into) {
  SpoolBlock block;
  bool any = false;
  while (into.rows() < rows && read_block(&block)) {
    any = true;
    // A file, like all others: what it says is checked again.
    const auto end = std::remove_if(scratch_.begin(), scratch_.end(), [&](const Record& record) {
      return !is_sound(record, block.ticks) || (record.end_ticks < since_ticks && !is_fact(record));
    });
    into.append(block.process, block.tid, scratch_.data(), static_cast<std::size_t>(end - scratch_.begin()), clock);
  }
  return any;
}

}  // namespace ral::trace
