#include "sessions.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace ral::trace {

int Sessions::begin(std::uint64_t session, std::int32_t target_pid, std::uint64_t ring_records, const std::string& folder) {
  for (std::size_t i = 0; i < kSessions; ++i) {
    SessionSlot& slot = rendezvous_->page().slots[i];
    SlotState free = SlotState::kFree;
    if (!slot.state.compare_exchange_strong(free, SlotState::kClaimed)) {
      continue;
    }
    slot.session = session;
    slot.collector_pid = ::getpid();
    slot.collector_started = process_started(::getpid());
    slot.target_pid = target_pid;
    slot.ring_records = ring_records;
    slot.attach_failures = 0;
    std::snprintf(slot.folder.data(), slot.folder.size(), "%s", folder.c_str());
    slot.state.store(SlotState::kRecording, std::memory_order_release);
    rendezvous_->announce();
    return static_cast<int>(i);
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

std::uint32_t Sessions::attach_failures(std::size_t slot) const { return rendezvous_->page().slots.at(slot).attach_failures.load(); }

std::vector<SessionView> Sessions::taken() const {
  std::vector<SessionView> found;
  for (std::size_t i = 0; i < kSessions; ++i) {
    const SessionSlot& slot = rendezvous_->page().slots[i];
    if (slot.state.load(std::memory_order_acquire) != SlotState::kFree) {
      const bool alive = slot.collector_started != 0 && process_started(slot.collector_pid) == slot.collector_started;
      found.push_back({i, slot.session, slot.collector_pid, alive, {slot.folder.data(), ::strnlen(slot.folder.data(), slot.folder.size())}});
    }
  }
  return found;
}

}  // namespace ral::trace
