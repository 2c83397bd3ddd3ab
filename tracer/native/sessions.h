// The collector's side of the page: taking a slot, ending a recording, seeing what others left behind.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous.h"

namespace ral::trace {

struct SessionView {
  std::size_t slot;
  std::uint64_t session;
  std::int32_t collector_pid;
  bool collector_alive;
  std::string folder;
};

class Sessions {
 public:
  // Throws std::runtime_error that says what is wrong with the rendezvous.
  Sessions() : rendezvous_(Rendezvous::open()) {}

  [[nodiscard]] const std::string& folder() const noexcept { return rendezvous_->folder(); }
  // Begins a recording and wakes every traced process; recordings whose collector died end. Returns the slot, or -1
  // when all are taken. Throws std::runtime_error when the page is gone.
  int begin(std::uint64_t session, std::int32_t target_pid, std::uint64_t ring_records, const std::string& folder,
            std::uint32_t details, OnFull on_full);
  // Wakes every traced process: what is wanted of one of them is something else now.
  void announce() noexcept { rendezvous_->announce(); }
  // Asks the traced processes to stop writing; the slot stays taken until `release`. Of a page that is gone: nothing.
  void end(std::size_t slot) { set_state(slot, SlotState::kEnding); }
  void release(std::size_t slot) { set_state(slot, SlotState::kFree); }
  // Of a collector that died; somebody may have taken the slot since it was looked at, and keeps it.
  void release_dead(std::size_t slot);
  [[nodiscard]] std::uint32_t attach_failures(std::size_t slot) const;
  [[nodiscard]] std::vector<SessionView> taken() const;

 private:
  void set_state(std::size_t slot, SlotState state);

  std::unique_ptr<Rendezvous> rendezvous_;
};

}  // namespace ral::trace
