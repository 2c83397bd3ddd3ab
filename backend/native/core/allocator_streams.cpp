// When a freed block may go to another stream than its own.
#include <algorithm>

#include "allocator.h"

namespace ral {

// False where all other streams are done with it already.
bool RegionAllocator::make_pending(Block* block) {
  std::vector<Ticket> tickets;
  const std::uint32_t others = block->other_streams.load(std::memory_order_relaxed);
  for (std::uint8_t stream = 0; stream < kMaxStreams; ++stream) {
    if ((others >> stream & 1u) != 0) {
      tickets.push_back({stream, clock_->submitted(stream)});
    }
  }
  if (done(tickets)) {
    return false;
  }
  tickets.push_back({block->stream, clock_->submitted(block->stream)});
  block->state = BlockState::kPending;
  pending_.push_back({block, std::move(tickets)});
  return true;
}

bool RegionAllocator::done(const std::vector<Ticket>& tickets) const {
  return std::all_of(tickets.begin(), tickets.end(),
                     [&](const Ticket& one) { return clock_->done(one.stream, one.ticket); });
}

// The hot path's share of the work: the first of the list was freed first, and mostly is done first.
void RegionAllocator::complete_oldest() {
  while (!pending_.empty() && done(pending_.front().tickets)) {
    make_reusable(pending_.front().block, 0, 0);
    pending_.pop_front();
  }
}

void RegionAllocator::complete_pending() {
  const auto finished = [&](const Pending& pending) {
    if (!done(pending.tickets)) {
      return false;
    }
    make_reusable(pending.block, 0, 0);
    return true;
  };
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(), finished), pending_.end());
}

// Free blocks whose stream has done what was submitted before the free become neutral.
void RegionAllocator::reclaim() {
  if (clock_ == nullptr) {
    return;
  }
  complete_pending();
  for (std::uint8_t stream = 0; stream < kMaxStreams; ++stream) {
    FreeBlocks* pool = pool_of(stream);
    if (pool == nullptr || pool->count() == 0) {
      continue;
    }
    scratch_.clear();
    pool->visit([&](Block* block) {
      if (clock_->done(stream, block->ticket)) {
        scratch_.push_back(block);
      }
    });
    for (Block* block : scratch_) {
      Extent& extent = *block->extent;
      pool->remove(block);
      block->pool = 0;
      join(block);
      update_split(extent);
    }
  }
}

// Until all blocks that are free or pending now can be had by everybody. Others allocate and free meanwhile.
void RegionAllocator::wait_for_work(Lock& lock) {
  if (clock_ == nullptr) {
    return;
  }
  std::array<std::uint64_t, kMaxStreams> newest{};
  const auto note = [&](const Ticket& one) { newest[one.stream] = std::max(newest[one.stream], one.ticket); };
  for (const Pending& pending : pending_) {
    std::for_each(pending.tickets.begin(), pending.tickets.end(), note);
  }
  for (std::uint8_t stream = 0; stream < kMaxStreams; ++stream) {
    if (const FreeBlocks* pool = pool_of(stream)) {
      pool->visit([&](const Block* block) { note({stream, block->ticket}); });
    }
  }
  for (std::uint8_t stream = 0; stream < kMaxStreams; ++stream) {
    newest[stream] = clock_->done(stream, newest[stream]) ? 0 : newest[stream];
  }
  if (std::any_of(newest.begin(), newest.end(), [](std::uint64_t ticket) { return ticket != 0; })) {
    ++stats_.waits;
    lock.unlock();
    for (std::uint8_t stream = 0; stream < kMaxStreams; ++stream) {
      if (newest[stream] != 0) {
        clock_->wait(stream, newest[stream]);
      }
    }
    lock.lock();
  }
  reclaim();
}

}  // namespace ral
