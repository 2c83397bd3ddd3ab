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
      ring.full_at_ = records;
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
    const std::uint64_t head = head_;
    if (__builtin_expect(head == full_at_, 0)) {
      return push_when_full(record, tid);
    }
    const std::uint64_t sequence = head + dropped_;
    RingHeader* header = header_;
    header->sequence.store(sequence + 1, std::memory_order_relaxed);
    Record* slot = records_ + (head & mask_);
    prefetch(slot + kPrefetchRecords);
    *slot = record;
    slot->sequence = static_cast<std::uint32_t>(sequence);
    slot->tid = tid;
    head_ = head + 1;
    header->head.store(head + 1, std::memory_order_release);
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
  // Full as the collector was last seen. Out of line, so that the usual way saves no registers.
  __attribute__((noinline, cold)) void push_when_full(const Record& record, std::uint32_t tid) noexcept {
    full_at_ = header_->tail.load(std::memory_order_acquire) + mask_ + 1;
    if (head_ != full_at_) {
      return push(record, tid);
    }
    header_->sequence.store(head_ + dropped_ + 1, std::memory_order_relaxed);
    header_->dropped.store(++dropped_, std::memory_order_release);
  }

  static constexpr std::size_t kPrefetchRecords = 16;

  // The ring is larger than the caches, its last reader was another core, and the hardware does not look across pages.
  // Beyond the ring's end this does nothing. (`__builtin_prefetch` asks for a line to write only where -march says so.)
  static void prefetch(const Record* record) noexcept {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*record));
#else
    __builtin_prefetch(record, 1);
#endif
  }

  Mapping mapping_;
  RingHeader* header_ = nullptr;
  Record* records_ = nullptr;
  std::uint64_t mask_ = 0;
  std::uint64_t head_ = 0;
  std::uint64_t full_at_ = 0;  // a head that the collector, as last seen, leaves no room for
  std::uint64_t dropped_ = 0;
};

}  // namespace ral::trace
