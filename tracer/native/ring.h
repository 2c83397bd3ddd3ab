// One thread's ring in one session: the producer's side.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>

#include "files.h"
#include "layout.h"

namespace ral::trace {

class RingWriter {
 public:
  // An empty one drops nothing and writes nothing; `ok()` is false.
  RingWriter() noexcept = default;

  // A thread must not wait for all of its ring: memory comes in steps, as events do. Takes what room there is: half as
  // many records, and half of that, down to kLeastRingRecords. Not ok() where even those find none, or the file exists.
  static RingWriter create(const std::string& path, std::uint64_t records, OnFull on_full) noexcept {
    RingWriter ring;
    for (; records >= kLeastRingRecords && !ring.mapping_; records /= 2) {
      ring.backed_ = std::min(records, kStepRecords);
      ring.mapping_ = create_mapped(path, bytes_of(records), bytes_of(ring.backed_));
      ring.mask_ = records - 1;
    }
    if (ring.mapping_) {
      ring.path_ = path;
      ring.header_ = static_cast<RingHeader*>(ring.mapping_.get());
      ring.records_ = reinterpret_cast<Record*>(static_cast<char*>(ring.mapping_.get()) + kHeaderBytes);
      ring.on_full_ = on_full;
      ring.full_at_ = ring.backed_;
      ring.header_->version = kLayoutVersion;
      ring.header_->records = ring.header_->straight = ring.mask_ + 1;
      ring.header_->on_full = on_full;
      populate(ring.mapping_.get(), bytes_of(ring.backed_));
    }
    return ring;
  }

  // Only before the first event, by the thread that will write: until then the collector takes it for one that is still
  // being made.
  void begin(std::uint32_t tid) noexcept {
    header_->tid = tid;
    ::prctl(PR_GET_NAME, header_->thread_name.data(), 0, 0, 0);
    std::atomic_thread_fence(std::memory_order_release);
    header_->magic = kRingMagic;
  }

  [[nodiscard]] bool ok() const noexcept { return header_ != nullptr; }

  // Never blocks: a full ring drops the event and counts it, or takes the place of its oldest one.
  void push(const Record& record) noexcept {
    const std::uint64_t head = head_;
    if (__builtin_expect(head == full_at_, 0)) {
      return push_when_full(record);
    }
    const std::uint64_t sequence = head + dropped_;
    RingHeader* header = header_;
    header->sequence.store(sequence + 1, std::memory_order_relaxed);
    // Who reads while this overwrites must see the number first. (No instruction on x86.)
    std::atomic_thread_fence(std::memory_order_release);
    Record* slot = records_ + (head & mask_);
    prefetch(slot + kPrefetchRecords);
    *slot = record;
    slot->sequence = static_cast<std::uint32_t>(sequence);
    head_ = head + 1;
    header->head.store(head + 1, std::memory_order_release);
  }

  // An event was left out on purpose.
  void count_shed() noexcept { raise(header_->shed, 1); }
  // Recording took so long on this thread.
  void add_spent(std::uint64_t ticks) noexcept { raise(header_->spent_ticks, ticks); }

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
  static constexpr std::uint64_t kStepRecords = 1024;  // 64 KiB, less than 0.1 ms
  static_assert(kStepRecords >= kLeastRingRecords && (kStepRecords & (kStepRecords - 1)) == 0);

  static constexpr std::size_t bytes_of(std::uint64_t records) noexcept {
    return kHeaderBytes + records * sizeof(Record);
  }

  // Full as the collector was last seen, or at the end of the memory so far. Out of line, so that the usual way saves no
  // registers.
  __attribute__((noinline, cold)) void push_when_full(const Record& record) noexcept {
    if (head_ == backed_ && backed_ <= mask_) {
      grow();
    }
    full_at_ = backed_ <= mask_ ? backed_ : UINT64_MAX;
    if (on_full_ == OnFull::kDrop) {
      // Below `head_` where the ring has become smaller than what it holds.
      const std::uint64_t room_until = header_->tail.load(std::memory_order_acquire) + mask_ + 1;
      full_at_ = std::max(std::min(full_at_, room_until), head_);
    }
    if (head_ != full_at_) {
      return push(record);
    }
    header_->sequence.store(head_ + dropped_ + 1, std::memory_order_relaxed);
    header_->dropped.store(++dropped_, std::memory_order_release);
  }

  // In the first round only, with every event at its own number.
  void grow() noexcept {
    const int error = errno;  // the program's
    if (back(path_, bytes_of(backed_), kStepRecords * sizeof(Record))) {
      populate(records_ + backed_, kStepRecords * sizeof(Record));
      backed_ += kStepRecords;
    } else {
      while (mask_ + 1 > backed_) {
        mask_ /= 2;
      }
      // In this order; the reader takes them in the other one.
      header_->records.store(mask_ + 1, std::memory_order_release);
      header_->straight.store(backed_, std::memory_order_release);
    }
    errno = error;
  }

  // Page by page at the first touch it would take longer. Where the kernel cannot, it does.
  static void populate(void* begin, std::size_t bytes) noexcept {
#if defined(MADV_POPULATE_WRITE)
    ::madvise(begin, bytes, MADV_POPULATE_WRITE);
#endif
  }

  // Ours alone to write, so no read-modify-write.
  static void raise(std::atomic<std::uint64_t>& count, std::uint64_t by) noexcept {
    count.store(count.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
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
  std::string path_;
  RingHeader* header_ = nullptr;
  Record* records_ = nullptr;
  std::uint64_t mask_ = 0;
  std::uint64_t head_ = 0;
  std::uint64_t full_at_ = 0;  // a head that the collector, as last seen, leaves no room for; or `backed_`
  std::uint64_t dropped_ = 0;
  std::uint64_t backed_ = 0;  // records that there is memory for
  OnFull on_full_ = OnFull::kDrop;
};

}  // namespace ral::trace
