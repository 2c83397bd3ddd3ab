#include "memory_events.h"

#include <algorithm>

#include "events.h"

namespace ral {

namespace {

constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

thread_local std::uint32_t asking_stack = 0;

std::uint32_t recording_sessions() noexcept { return events::writer->sessions->load(std::memory_order_relaxed); }

}  // namespace

MemoryEvents::Asking::Asking(std::size_t bytes) noexcept {
  if (__builtin_expect(bytes >= kLargeBytes, 0)) {
    asking_stack = events::site_stack();
  }
}

MemoryEvents::Asking::~Asking() { asking_stack = 0; }

MemoryEvents::Known* MemoryEvents::find(const Region& region) noexcept {
  const auto known =
      std::find_if(regions_.begin(), regions_.end(), [&](const Known& k) { return k.handle == region.handle; });
  return known == regions_.end() ? nullptr : &*known;
}

void MemoryEvents::emit_region(std::uint32_t sessions, const Region& region, std::uint8_t flags) noexcept {
  trace::Record record = trace::make_record(trace::Kind::kRegion, 0, device_, static_cast<std::uint8_t>(region.domain));
  record.bytes = static_cast<std::int64_t>(region.length);
  record.arg0 = region.address;
  record.arg1 = region.handle;
  record.correlation = trace::striping(region.striping.domains, region.striping.stripe_bytes);
  record.flags = flags;
  record.start_ticks = record.end_ticks = events::now();
  events::writer->emit_to(sessions, record);
}

void MemoryEvents::emit_block(std::uint32_t sessions, const Block& block, std::uint8_t flags) noexcept {
  const std::uint32_t op = flags == 0 ? events::user_op(0) : 0;
  trace::Record record = trace::make_record(trace::Kind::kAlloc, op, device_);
  record.bytes = static_cast<std::int64_t>(block.size);
  record.arg0 = block.address;
  record.arg1 = block.requested;
  record.stack = flags == 0 ? asking_stack : 0;
  record.flags = flags;
  record.start_ticks = record.end_ticks = events::now();
  events::writer->emit_to(sessions, record);
}

void MemoryEvents::opened(const Region& region) noexcept {
  history_.opened(region);
  const std::uint32_t sessions = recording_sessions();
  regions_.push_back({region.handle, sessions});
  if (sessions != 0) {
    emit_region(sessions, region, 0);
  }
}

void MemoryEvents::closed(const Region& region) noexcept {
  history_.closed(region);
  const Known* known = find(region);
  if (known == nullptr) {
    return;
  }
  const std::uint32_t sessions = recording_sessions() & known->announced;
  regions_.erase(regions_.begin() + (known - regions_.data()));
  if (sessions != 0) {
    emit_region(sessions, region, trace::kClosed);
  }
}

void MemoryEvents::allocated(Block& block) noexcept {
  history_.allocated(block);
  const std::uint32_t sessions = recording_sessions();
  if (__builtin_expect(sessions != 0, 0)) {
    block.announced = sessions;
    emit_block(sessions, block, 0);
  }
}

// A recording that was never told of the block is not told of its end either.
void MemoryEvents::freed(const Block& block) noexcept {
  history_.freed(block);
  const std::uint32_t sessions = recording_sessions() & block.announced;
  if (sessions != 0) {
    trace::Record record = trace::make_record(trace::Kind::kFree, 0, device_);
    record.bytes = static_cast<std::int64_t>(block.size);
    record.arg0 = block.address;
    record.arg1 = block.uses.load(std::memory_order_relaxed);
    record.end_ticks = events::now();
    const std::uint64_t used = block.last_use.load(std::memory_order_relaxed);
    record.start_ticks = used != 0 && used < record.end_ticks ? used : record.end_ticks;
    events::writer->emit_to(sessions, record);
  }
}

void MemoryEvents::announce(std::uint32_t sessions, const Region& region) noexcept {
  Known* known = find(region);
  if (known != nullptr && (sessions & ~known->announced) != 0) {
    emit_region(sessions & ~known->announced, region, trace::kBeforeTrace);
    known->announced |= sessions;
  }
}

void MemoryEvents::announce(std::uint32_t sessions, Block& block) noexcept {
  if (block.state == BlockState::kUsed && (sessions & ~block.announced) != 0) {
    emit_block(sessions & ~block.announced, block, trace::kBeforeTrace);
    block.announced |= sessions;
  }
}

void MemoryEvents::forget_ended(std::uint32_t remaining, const Region& region) noexcept {
  if (Known* known = find(region)) {
    known->announced &= remaining;
  }
}

}  // namespace ral
