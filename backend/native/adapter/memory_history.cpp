#include "memory_history.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <chrono>

namespace ral {

namespace {

thread_local MemoryHistory::Context gathered;

std::int64_t epoch_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

std::atomic<bool> MemoryHistory::on_{false};
std::atomic<bool> MemoryHistory::stacks_of_frees_{false};

MemoryHistory::Gathered::Gathered(Action action)
    : active_(on() && (action != Action::kFreeRequested || stacks_of_frees_.load())) {
  if (active_) {
    gathered = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
  }
}

MemoryHistory::Gathered::~Gathered() {
  if (active_) {
    gathered.reset();
  }
}

void MemoryHistory::start(const Choice& choice) {
  std::vector<Entry> ring(choice.max_entries);
  const std::lock_guard<std::mutex> lock(mutex_);
  ring_.swap(ring);
  added_ = 0;
  stacks_of_frees_.store(choice.stacks_of_frees);
  on_.store(true);
}

void MemoryHistory::stop() {
  std::vector<Entry> ring;
  const std::lock_guard<std::mutex> lock(mutex_);
  on_.store(false);
  ring_.swap(ring);
  added_ = 0;
}

std::vector<MemoryHistory::Entry> MemoryHistory::entries() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Entry> result;
  const std::size_t count = std::min<std::size_t>(added_, ring_.size());
  for (std::uint64_t i = added_ - count; i < added_; ++i) {
    result.push_back(ring_[i % ring_.size()]);
  }
  return result;
}

void MemoryHistory::add(Action action, std::uint8_t stream, std::uint64_t address, std::uint64_t size,
                        Context context) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!ring_.empty()) {
    ring_[added_++ % ring_.size()] = {action, stream, address, size, epoch_ns(), std::move(context)};
  }
}

// A range that is striped over memory domains is one segment: its first share stands for all.
void MemoryHistory::opened(const Region& region) noexcept {
  if (on() && region.domain == 0) {
    add(Action::kSegmentAlloc, 0, region.address, region.length * region.striping.domains, gathered);
  }
}

void MemoryHistory::closed(const Region& region) noexcept {
  if (on() && region.domain == 0) {
    add(Action::kSegmentFree, 0, region.address, region.length * region.striping.domains, gathered);
  }
}

void MemoryHistory::allocated(Block& block) noexcept {
  if (on()) {
    block.context = gathered;
    add(Action::kAlloc, block.stream, block.address, block.size, gathered);
  }
}

void MemoryHistory::freed(const Block& block) noexcept {
  if (on()) {
    add(Action::kFreeRequested, block.stream, block.address, block.size, gathered);
  }
}

void MemoryHistory::reusable(Block& block) noexcept {
  if (on()) {
    add(Action::kFreeCompleted, block.stream, block.address, block.size, nullptr);
  }
  if (block.context != nullptr) {
    block.context.reset();
  }
}

void MemoryHistory::failed(std::size_t bytes, std::size_t unreserved) noexcept {
  if (on()) {
    add(Action::kOutOfMemory, 0, unreserved, bytes, gathered);
  }
}

}  // namespace ral
