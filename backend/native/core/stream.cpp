#include "stream.h"

#include "pipelines.h"

namespace ral {

namespace {

// The place behind an item: runs where the item before it ran, so that nobody is woken for it.
class MarkWork final : public Work {
 public:
  MarkWork(Pipeline pipeline, std::shared_ptr<Mark> mark)
      : Work(WorkKind::kSync, pipeline, 0), mark_(std::move(mark)) {}
  void run() override {}
  void ended(const Times& times) noexcept override { mark_->time_ns.store(times.end_ns, std::memory_order_release); }
  std::string what() const override { return "Event.record"; }

 private:
  std::shared_ptr<Mark> mark_;
};

}  // namespace

Stream::~Stream() {
  for (std::uint64_t ticket = head_.load() + 1; ticket <= tail_.load(); ++ticket) {
    slot_of(ticket).work->~Work();
  }
}

void Stream::open(Pipelines& pipelines, int priority) {
  pipelines_ = &pipelines;
  priority_ = priority;
  slots_ = std::make_unique<Slot[]>(kDepth);
  open_.store(true, std::memory_order_release);
}

// Under producers_.
Stream::Slot& Stream::free_slot() {
  if (pipelines_->stopping_.load(std::memory_order_acquire)) {
    throw Stopped("the device has stopped, because the program ends");
  }
  const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head_.load(std::memory_order_acquire) >= kDepth) {
    // Half, not one: waking for each item would cost more than the item.
    pipelines_->sleep_until_done(*this, tail - kDepth / 2);
    if (pipelines_->stopping_.load(std::memory_order_acquire)) {
      throw Stopped("the device has stopped, because the program ends");
    }
  }
  return slot_of(tail + 1);
}

// Under producers_.
std::uint64_t Stream::publish(Slot& slot, Work* work) {
  try {
    pipelines_->begin(work->pipeline);
  } catch (...) {  // no thread to be had: nothing was submitted
    work->~Work();
    throw;
  }
  work->after = std::move(pending_);
  pending_.clear();
  for (const auto& mark : work->after) {
    mark->stream->watchers_.fetch_add(1, std::memory_order_seq_cst);
  }
  last_pipeline_ = work->pipeline;
  if (work->name != 0) {
    last_name_.store(work->name, std::memory_order_relaxed);
  }
  const Pipeline pipeline = work->pipeline;
  slot.work = work;
  slot.order.store(pipelines_->order_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  slot.pipeline.store(pipeline, std::memory_order_relaxed);
  const std::uint64_t ticket = tail_.load(std::memory_order_relaxed) + 1;
  tail_.store(ticket, std::memory_order_seq_cst);
  owes_.store(false, std::memory_order_release);  // after the ticket: claimed() looks the other way round
  pipelines_->announce(pipeline);
  return ticket;
}

void Stream::wait_for(std::shared_ptr<Mark> mark) {
  if (mark->stream == this || mark->done()) {
    return;
  }
  const std::lock_guard<std::mutex> in_order(producers_);
  pending_.push_back(std::move(mark));
  owes_.store(true, std::memory_order_release);
}

std::shared_ptr<Mark> Stream::record() {
  auto mark = std::make_shared<Mark>();
  mark->stream = this;
  const std::lock_guard<std::mutex> in_order(producers_);
  mark->ticket = tail_.load(std::memory_order_relaxed) + 1;
  Slot& slot = free_slot();
  publish(slot, new (slot.bytes) MarkWork(last_pipeline_, mark));
  return mark;
}

void Stream::wait(std::uint64_t ticket) const {
  if (!done(ticket)) {
    pipelines_->wait_until_done(*this, ticket);
  }
}

void Stream::wait_until(std::uint64_t ticket) {
  if (ticket > submitted()) {
    record();
  }
  wait(ticket);
}

void Stream::wait() { wait_until(claimed()); }

Stream::Slot* Stream::next_for(Pipeline pipeline) const noexcept {
  for (;;) {
    const std::uint64_t head = head_.load(std::memory_order_seq_cst);
    if (head == tail_.load(std::memory_order_seq_cst)) {
      return nullptr;
    }
    Slot& slot = slot_of(head + 1);
    const Pipeline wanted = slot.pipeline.load(std::memory_order_acquire);
    // Where the item is another pipeline's, that one may have finished it and the slot may hold a later one by now.
    if (head_.load(std::memory_order_seq_cst) == head) {
      return wanted == pipeline ? &slot : nullptr;
    }
  }
}

void Stream::finish(Slot& slot) noexcept {
  for (const auto& mark : slot.work->after) {
    mark->stream->watchers_.fetch_sub(1, std::memory_order_relaxed);
  }
  slot.work->~Work();
  const std::uint64_t head = head_.load(std::memory_order_relaxed) + 1;
  head_.store(head, std::memory_order_seq_cst);
  std::optional<Pipeline> next;
  if (head != tail_.load(std::memory_order_seq_cst)) {
    next = slot_of(head + 1).pipeline.load(std::memory_order_acquire);
  }
  pipelines_->progressed(*this, next);
}

}  // namespace ral
