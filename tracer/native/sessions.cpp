#include "sessions.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace ral::trace {

namespace {

bool collector_alive(const SessionSlot& slot) {
  return slot.collector_started != 0 && process_started(slot.collector_pid) == slot.collector_started;
}

}  // namespace

// A slot is free, or was its collector's that died. In the second case programs still write for it, until they are told
// to stop; what they wrote stays.
bool Sessions::claim(SessionSlot& slot, bool of_the_dead) {
  SlotState seen = slot.state.load(std::memory_order_acquire);
  const bool wanted = of_the_dead ? seen == SlotState::kEnding && !collector_alive(slot) : seen == SlotState::kFree;
  return wanted && slot.state.compare_exchange_strong(seen, SlotState::kClaimed);
}

int Sessions::begin(std::uint64_t session, std::int32_t target_pid, std::uint64_t ring_records,
                    const std::string& folder, std::uint32_t details, OnFull on_full) {
  for (SessionSlot& slot : rendezvous_->page().slots) {
    SlotState recording = SlotState::kRecording;
    if (slot.state.load(std::memory_order_acquire) == recording && !collector_alive(slot)) {
      slot.state.compare_exchange_strong(recording, SlotState::kEnding);
    }
  }
  for (std::size_t i = 0; i < 2 * kSessions; ++i) {
    SessionSlot& slot = rendezvous_->page().slots[i % kSessions];
    if (!claim(slot, i >= kSessions)) {
      continue;
    }
    slot.session = session;
    slot.collector_pid = ::getpid();
    slot.collector_started = process_started(::getpid());
    slot.target_pid = target_pid;
    slot.ring_records = ring_records;
    slot.details = details;
    slot.on_full = on_full;
    slot.attach_failures = 0;
    std::snprintf(slot.folder.data(), slot.folder.size(), "%s", folder.c_str());
    slot.state.store(SlotState::kRecording, std::memory_order_release);
    rendezvous_->announce();
    return static_cast<int>(i % kSessions);
  }
  return -1;
}

void Sessions::end(std::size_t slot) {
  rendezvous_->page().slots.at(slot).state.store(SlotState::kEnding, std::memory_order_release);
  rendezvous_->announce();
}

void Sessions::release(std::size_t slot) {
  rendezvous_->page().slots.at(slot).state.store(SlotState::kFree, std::memory_order_release);
  rendezvous_->announce();
}

std::uint32_t Sessions::attach_failures(std::size_t slot) const {
  return rendezvous_->page().slots.at(slot).attach_failures.load();
}

std::vector<SessionView> Sessions::taken() const {
  std::vector<SessionView> found;
  for (std::size_t i = 0; i < kSessions; ++i) {
    const SessionSlot& slot = rendezvous_->page().slots[i];
    const SlotState state = slot.state.load(std::memory_order_acquire);
    // One that is just being claimed says nothing yet.
    if (state == SlotState::kRecording || state == SlotState::kEnding) {
      const bool alive = collector_alive(slot);
      found.push_back({i,
                       slot.session,
                       slot.collector_pid,
                       alive,
                       {slot.folder.data(), ::strnlen(slot.folder.data(), slot.folder.size())}});
    }
  }
  return found;
}

}  // namespace ral::trace
