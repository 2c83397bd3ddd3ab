#include "pipelines.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>

namespace ral {

namespace {

// How long a compute thread looks for the next item before it sleeps: waking it costs the launching thread 3 to 4 us.
constexpr std::uint64_t kSpinNs = 30'000;
constexpr std::uint64_t kWaitSpinNs = 10'000;
constexpr std::uint64_t kSleepSlackNs = 60'000;

struct Everybody {
  std::mutex mutex;
  std::vector<Pipelines*> list;
};

Everybody& everybody() {
  static auto* const all = std::make_unique<Everybody>().release();  // threads may outlive static destructors
  return *all;
}

std::uint64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What passes before an item touches memory.
std::uint64_t delay_ns(const Work& work, const DeviceModel& model) noexcept {
  if (work.kind == WorkKind::kSync || work.kind == WorkKind::kHost) {
    return 0;
  }
  return work.pipeline == Pipeline::kCompute ? model.launch_ns : model.copy_latency_ns;
}

bool ready(const Work& work) noexcept {
  return std::all_of(work.after.begin(), work.after.end(), [](const auto& mark) { return mark->done(); });
}

}  // namespace

Pipelines::Pipelines(const DeviceModel& model, const EventClock& clock, ThreadHooks hooks)
    : clock_(clock), hooks_(std::move(hooks)), model_(model), virtual_begin_ns_(monotonic_ns()) {
  paces_.store(model.paces());
  for (std::size_t i = 0; i < kPipelines; ++i) {
    lanes_[i].pipeline = static_cast<Pipeline>(i);
  }
  open_stream(0, 0);
  Everybody& all = everybody();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.list.push_back(this);
}

Pipelines::~Pipelines() {
  stop();
  Everybody& all = everybody();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.list.erase(std::remove(all.list.begin(), all.list.end(), this), all.list.end());
}

bool Pipelines::open_stream(std::uint8_t number, int priority) {
  const std::lock_guard<std::mutex> lock(model_mutex_);
  Stream& stream = streams_[number];
  if (stream.is_open()) {
    return false;
  }
  stream.open(*this, priority);
  opened_.fetch_or(std::uint32_t{1} << number, std::memory_order_seq_cst);
  return true;
}

// --- submitting
// ------------------------------------------------------------------------------------------------------------

// Before anything is queued for it: a thread that cannot be had is an error of the submit.
void Pipelines::begin(Pipeline pipeline) {
  Lane& lane = lanes_[static_cast<std::size_t>(pipeline)];
  std::call_once(lane.started, [&] { start(lane); });
}

void Pipelines::announce(Pipeline pipeline) {
  Lane& lane = lanes_[static_cast<std::size_t>(pipeline)];
  if (pipeline == Pipeline::kCompute) {
    producer_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
  }
  if (lane.asleep.load(std::memory_order_seq_cst)) {
    ring(lane);
  }
}

void Pipelines::ring(Lane& lane) noexcept {
  {
    const std::lock_guard<std::mutex> lock(lane.mutex);
    ++lane.rung;
  }
  lane.bell.notify_one();
}

void Pipelines::ring_everybody() noexcept {
  Everybody& all = everybody();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (Pipelines* pipelines : all.list) {
    for (Lane& lane : pipelines->lanes_) {
      if (lane.asleep.load(std::memory_order_seq_cst)) {
        ring(lane);
      }
    }
  }
}

void Pipelines::progressed(const Stream& stream, std::optional<Pipeline> next) noexcept {
  if (next.has_value()) {
    Lane& lane = lanes_[static_cast<std::size_t>(*next)];
    if (lane.asleep.load(std::memory_order_seq_cst)) {
      ring(lane);
    }
  }
  if (stream.watchers_.load(std::memory_order_seq_cst) != 0) {
    ring_everybody();
  }
  if (waiters_.load(std::memory_order_seq_cst) != 0) {
    const std::lock_guard<std::mutex> lock(waiting_mutex_);
    waiting_.notify_all();
  }
}

// --- the threads
// -----------------------------------------------------------------------------------------------------------

void Pipelines::start(Lane& lane) {
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto restored = [&](void*) { pthread_sigmask(SIG_SETMASK, &before, nullptr); };
  const std::unique_ptr<void, decltype(restored)> restore(&before, restored);
  std::promise<void> begun;
  std::future<void> has_begun = begun.get_future();
  lane.thread = std::thread([this, &lane, promise = std::move(begun)]() mutable { serve(lane, std::move(promise)); });
  has_begun.wait();
  if (hooks_.began) {
    hooks_.began();
  }
}

void Pipelines::serve(Lane& lane, std::promise<void> begun) {
  prctl(PR_SET_TIMERSLACK, 1'000ul);  // paced items end when the model says, not 50 us later
  if (hooks_.begin) {
    hooks_.begin(lane.pipeline);
  }
  begun.set_value();
  Stream* stream = nullptr;
  while (Stream::Slot* slot = sleep_until_ready(lane, &stream)) {
    run(lane, *stream, *slot);
  }
}

// The item to run next: a mark, which takes no time and may be waited for; else of the most urgent stream, and of several
// such the one that was submitted first.
Stream::Slot* Pipelines::pick(const Lane& lane, Stream** from) noexcept {
  Stream::Slot* best = nullptr;
  std::uint32_t rest = opened_.load(std::memory_order_seq_cst);
  while (rest != 0) {
    Stream& stream = streams_[static_cast<std::size_t>(__builtin_ctz(rest))];
    rest &= rest - 1;
    Stream::Slot* slot = stream.next_for(lane.pipeline);
    if (slot == nullptr || !ready(*slot->work)) {
      continue;
    }
    if (slot->work->kind == WorkKind::kSync) {
      *from = &stream;
      return slot;
    }
    const bool better = best == nullptr || stream.priority() < (*from)->priority() ||
                        (stream.priority() == (*from)->priority() &&
                         slot->order.load(std::memory_order_relaxed) < best->order.load(std::memory_order_relaxed));
    if (better) {
      best = slot;
      *from = &stream;
    }
  }
  return best;
}

// Nothing when the device stops.
Stream::Slot* Pipelines::sleep_until_ready(Lane& lane, Stream** from) {
  for (std::uint64_t give_up = 0;;) {
    if (stopping_.load(std::memory_order_acquire)) {
      return nullptr;
    }
    if (Stream::Slot* slot = pick(lane, from)) {
      return slot;
    }
    const std::uint64_t now = monotonic_ns();
    give_up = give_up == 0 ? now + kSpinNs : give_up;
    // On the launching thread's own CPU a spin would only keep that thread from launching.
    if (lane.pipeline == Pipeline::kCompute && now < give_up &&
        sched_getcpu() != producer_cpu_.load(std::memory_order_relaxed)) {
      for (int i = 0; i < 16; ++i) {
        relax();
      }
      continue;
    }
    std::unique_lock<std::mutex> lock(lane.mutex);
    const std::uint64_t rung = lane.rung;
    lane.asleep.store(true, std::memory_order_seq_cst);
    lock.unlock();
    Stream::Slot* slot = pick(lane, from);  // submitted since the last look, by somebody who saw us awake
    lock.lock();
    if (slot == nullptr) {
      lane.bell.wait(lock, [&] { return lane.rung != rung || stopping_.load(std::memory_order_acquire); });
    }
    lane.asleep.store(false, std::memory_order_seq_cst);
    give_up = 0;
    if (slot != nullptr) {
      return slot;
    }
  }
}

void Pipelines::run(Lane& lane, Stream& stream, Stream::Slot& slot) {
  Work& work = *slot.work;
  const bool paces = paces_.load(std::memory_order_relaxed);
  try {
    const DeviceModel model = paces ? this->model() : DeviceModel();
    const std::uint64_t from_ns = paces ? monotonic_ns() : 0;
    Times times;
    times.start_ticks = work.name != 0 ? clock_.ticks() : 0;
    if (paces && !model.virtual_clock) {
      pace(lane, from_ns, delay_ns(work, model));
    }
    work.run();
    const std::uint64_t lasts_ns = paces ? work.model_ns(model) : 0;
    if (model.virtual_clock) {
      times = virtual_times(lane, stream, work, lasts_ns);
    } else {
      pace(lane, from_ns, lasts_ns);
      times.end_ticks = work.name != 0 ? clock_.ticks() : 0;
      times.end_ns = work.kind == WorkKind::kSync ? monotonic_ns() : 0;
    }
    work.ended(times);
  } catch (const std::exception& error) {
    keep_failure(stream, work, error.what());
    work.failed(error.what());
  } catch (...) {  // a vendor's code may throw anything; it must not end the program
    keep_failure(stream, work, "an exception that is no std::exception");
    work.failed("an exception that is no std::exception");
  }
  stream.finish(slot);
}

void Pipelines::pace(Lane& lane, std::uint64_t from_ns, std::uint64_t lasts_ns) {
  const std::uint64_t until = from_ns + lasts_ns;
  std::uint64_t now = lasts_ns == 0 ? until : monotonic_ns();
  if (now + kSleepSlackNs < until) {
    std::unique_lock<std::mutex> lock(lane.mutex);
    lane.bell.wait_for(lock, std::chrono::nanoseconds(until - now - kSleepSlackNs),
                       [&] { return stopping_.load(std::memory_order_acquire); });
  }
  while (!stopping_.load(std::memory_order_relaxed) && now < until) {
    relax();
    now = monotonic_ns();
  }
}

// Begins when the pipeline is free, the item before it in the stream is done and all marks are reached.
Times Pipelines::virtual_times(Lane& lane, Stream& stream, const Work& work, std::uint64_t lasts_ns) {
  std::uint64_t start = std::max({virtual_begin_ns_, lane.virtual_ns, stream.virtual_ns_});
  for (const auto& mark : work.after) {
    start = std::max(start, mark->time_ns.load(std::memory_order_acquire));
  }
  const std::uint64_t end = start + lasts_ns;
  stream.virtual_ns_ = end;
  if (work.kind != WorkKind::kSync) {
    lane.virtual_ns = end;
  }
  return {clock_.ticks_at(start), clock_.ticks_at(end), end};
}

void Pipelines::keep_failure(const Stream& stream, const Work& work, const char* text) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (failure_.has_value()) {
    ++failure_->others;
    return;
  }
  failure_ = Failure{work.what(), text, static_cast<std::uint8_t>(&stream - streams_.data()), 0, work.site};
  failed_.store(true, std::memory_order_release);
}

std::optional<Failure> Pipelines::take_failure() {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  failed_.store(false, std::memory_order_relaxed);
  return std::exchange(failure_, std::nullopt);
}

// --- waiting
// ---------------------------------------------------------------------------------------------------------------

void Pipelines::wait_until_done(const Stream& stream, std::uint64_t ticket) {
  const std::uint64_t give_up = monotonic_ns() + kWaitSpinNs;
  while (!stream.done(ticket) && monotonic_ns() < give_up) {
    relax();
  }
  if (stream.done(ticket)) {
    return;
  }
  if (hooks_.while_waiting) {
    hooks_.while_waiting([&] { sleep_until_done(stream, ticket); });
  } else {
    sleep_until_done(stream, ticket);
  }
}

void Pipelines::sleep_until_done(const Stream& stream, std::uint64_t ticket) {
  waiters_.fetch_add(1, std::memory_order_seq_cst);
  {
    std::unique_lock<std::mutex> lock(waiting_mutex_);
    waiting_.wait(lock, [&] { return stream.done(ticket) || stopped_; });
  }
  waiters_.fetch_sub(1, std::memory_order_relaxed);
  if (!stream.done(ticket)) {
    throw Stopped("the device stopped before its work was done, because the program ends");
  }
}

void Pipelines::synchronize() {
  for (Stream& stream : streams_) {
    stream.wait();
  }
}

void Pipelines::stop() noexcept {
  stopping_.store(true, std::memory_order_seq_cst);
  for (Lane& lane : lanes_) {
    std::call_once(lane.started, [] {});  // no thread from now on
    ring(lane);
    if (lane.thread.joinable()) {
      lane.thread.join();
    }
  }
  const std::lock_guard<std::mutex> lock(waiting_mutex_);
  stopped_ = true;
  waiting_.notify_all();
}

void Pipelines::set_model(const DeviceModel& model) {
  const std::lock_guard<std::mutex> lock(model_mutex_);
  model_ = model;
  paces_.store(model.paces(), std::memory_order_relaxed);
}

DeviceModel Pipelines::model() const {
  const std::lock_guard<std::mutex> lock(model_mutex_);
  return model_;
}

}  // namespace ral
