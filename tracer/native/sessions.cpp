#include "sessions.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>

namespace ral::trace {

namespace {

bool collector_alive(const SessionSlot& slot) {
  return slot.collector_started != 0 && process_started(slot.collector_pid) == slot.collector_started;
}

// Free, else its collector's that died: programs still write for that one until they are told to stop; what they wrote
// stays.
std::optional<std::size_t> slot_to_take(const PageEditor& page) {
  for (std::size_t i = 0; i < kSessions; ++i) {
    if (page.slot(i).state == SlotState::kFree) {
      return i;
    }
  }
  for (std::size_t i = 0; i < kSessions; ++i) {
    // One that is being claimed while we hold the lock is that of a collector that died over it.
    const SlotState state = page.slot(i).state;
    if (state == SlotState::kClaimed || !collector_alive(page.slot(i))) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace

int Sessions::begin(std::uint64_t session, std::int32_t target_pid, std::uint64_t ring_records,
                    const std::string& folder, std::uint32_t details, OnFull on_full) {
  int taken = -1;
  {
    PageEditor page(*rendezvous_);
    for (std::size_t i = 0; i < kSessions; ++i) {
      if (page.slot(i).state == SlotState::kRecording && !collector_alive(page.slot(i))) {
        page.set_state(i, SlotState::kEnding);
      }
    }
    if (const auto slot = slot_to_take(page)) {
      SessionSlot content{};
      content.state = SlotState::kRecording;
      content.session = session;
      content.collector_pid = ::getpid();
      content.target_pid = target_pid;
      content.collector_started = process_started(::getpid());
      content.ring_records = ring_records;
      content.details = details;
      content.on_full = on_full;
      std::snprintf(content.folder.data(), content.folder.size(), "%s", folder.c_str());
      page.fill(*slot, content);
      taken = static_cast<int>(*slot);
    }
  }
  rendezvous_->announce();
  return taken;
}

void Sessions::set_state(std::size_t slot, SlotState state) {
  if (slot < kSessions && rendezvous_->read()) {
    PageEditor(*rendezvous_).set_state(slot, state);
  }
  rendezvous_->announce();
}

void Sessions::release_dead(std::size_t slot) {
  {
    PageEditor page(*rendezvous_);
    if (page.slot(slot).state == SlotState::kFree || collector_alive(page.slot(slot))) {
      return;
    }
    page.set_state(slot, SlotState::kFree);
  }
  rendezvous_->announce();
}

std::uint32_t Sessions::attach_failures(std::size_t slot) const {
  const auto page = rendezvous_->read();
  return page ? page->slots.at(slot).attach_failures : 0;
}

std::vector<SessionView> Sessions::taken() const {
  std::vector<SessionView> found;
  const auto page = rendezvous_->read();
  for (std::size_t i = 0; page && i < kSessions; ++i) {
    const SessionSlot& slot = page->slots[i];
    // One that is just being claimed says nothing yet.
    if (slot.state == SlotState::kRecording || slot.state == SlotState::kEnding) {
      const std::string folder(slot.folder.data(), ::strnlen(slot.folder.data(), slot.folder.size()));
      found.push_back({i, slot.session, slot.collector_pid, collector_alive(slot), folder});
    }
  }
  return found;
}

}  // namespace ral::trace
