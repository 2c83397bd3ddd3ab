// One thread's ring in one session: the producer's side.
#pragma once

#include <sys/prctl.h>

#include "files.h"
#include "layout.h"

namespace ral::trace {

class RingWriter {
 public:
  // An empty one drops nothing and writes nothing; `ok()` is false.
  RingWriter() noexcept = default;

  static RingWriter create(const std::string& path, std::uint64_t records, std::uint32_t tid) noexcept {
    RingWriter ring;
    ring.mapping_ = create_mapped(path, kHeaderBytes + records * sizeof(Record));
    if (ring.mapping_) {
      ring.header_ = static_cast<RingHeader*>(ring.mapping_.get());
      ring.records_ = reinterpret_cast<Record*>(static_cast<char*>(ring.mapping_.get()) + kHeaderBytes);
      ring.mask_ = records - 1;
      ring.header_->version = kLayoutVersion;
      ring.header_->tid = tid;
      ring.header_->records = records;
      ::prctl(PR_GET_NAME, ring.header_->thread_name.data(), 0, 0, 0);
      // Last: the collector takes a ring without it for one that is still being made.
      std::atomic_thread_fence(std::memory_order_release);
      ring.header_->magic = kRingMagic;
    }
    return ring;
  }

  [[nodiscard]] bool ok() const noexcept { return header_ != nullptr; }

  // Never blocks: a full ring drops the event and counts it.
  void push(const Record& record, std::uint32_t tid) noexcept {
    header_->sequence.store(sequence_ + 1, std::memory_order_relaxed);
    if (__builtin_expect(head_ - tail_ > mask_, 0)) {
      tail_ = header_->tail.load(std::memory_order_acquire);
      if (head_ - tail_ > mask_) {
        header_->dropped.store(++dropped_, std::memory_order_release);
        ++sequence_;
        return;
      }
    }
    Record& slot = records_[head_ & mask_];
    slot = record;
    slot.sequence = static_cast<std::uint32_t>(sequence_++);
    slot.tid = tid;
    header_->head.store(++head_, std::memory_order_release);
  }

  // The thread is gone: the collector may stop looking here.
  void close() noexcept {
    if (header_ != nullptr) {
      header_->closed.store(1, std::memory_order_release);
    }
    *this = RingWriter{};
  }

  // After fork this ring is the parent's: unmap it, mark nothing.
  void forget() noexcept { *this = RingWriter{}; }

 private:
  Mapping mapping_;
  RingHeader* header_ = nullptr;
  Record* records_ = nullptr;
  std::uint64_t mask_ = 0;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;  // the collector's, as last seen
  std::uint64_t sequence_ = 0;
  std::uint64_t dropped_ = 0;
};

}  // namespace ral::trace
