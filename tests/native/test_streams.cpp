// Streams and pipelines: order, waits, marks, priorities, failures, the clock that is a model, and their end.
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "pipelines.h"

namespace ral {

namespace {

std::uint64_t no_ticks() noexcept { return 0; }
std::uint64_t same(std::uint64_t ns) noexcept { return ns; }
constexpr EventClock kClock = {no_ticks, same};

class Task final : public Work {
 public:
  Task(Pipeline pipeline, std::function<void()> body, std::uint64_t lasts_ns = 0)
      : Work(WorkKind::kCompute, pipeline, 1), body_(std::move(body)), lasts_ns_(lasts_ns) {}
  void run() override { body_(); }
  std::uint64_t model_ns(const DeviceModel&) const noexcept override { return lasts_ns_; }
  std::string what() const override { return "task"; }

 private:
  std::function<void()> body_;
  std::uint64_t lasts_ns_;
};

struct TestDevice {
  explicit TestDevice(const DeviceModel& model = {}) : pipelines(model, kClock, {}) {
    for (std::uint8_t number = 1; number < 4; ++number) {
      pipelines.open_stream(number, 0);
    }
  }
  std::uint64_t submit(std::uint8_t stream, Pipeline pipeline, std::function<void()> body, std::uint64_t ns = 0) {
    return pipelines.stream(stream).submit<Task>(pipeline, std::move(body), ns);
  }
  Pipelines pipelines;
};

// Holds a pipeline until it is opened.
class Gate {
 public:
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace

TEST(a_stream_is_in_order_over_all_pipelines) {
  TestDevice device;
  std::vector<int> seen;  // no lock: each item must see what the one before it did
  for (int i = 0; i < 3000; ++i) {
    device.submit(0, static_cast<Pipeline>(i % 3), [&seen, i] { seen.push_back(i); });
  }
  device.pipelines.stream(0).wait();
  CHECK(seen.size() == 3000);
  for (int i = 0; i < 3000; ++i) {
    CHECK(seen[static_cast<std::size_t>(i)] == i);
  }
  CHECK(device.pipelines.stream(0).idle());
}

TEST(several_threads_may_submit_to_one_stream) {
  TestDevice device;
  std::uint64_t sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        device.submit(0, Pipeline::kCompute, [&sum] { ++sum; });
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  device.pipelines.synchronize();
  CHECK(sum == 2000);
  CHECK(device.pipelines.stream(0).submitted() == 2000);
}

TEST(pipelines_run_at_the_same_time) {
  TestDevice device;
  Gate computing;
  Gate copied;
  device.submit(0, Pipeline::kCompute, [&] {
    computing.open();
    copied.pass();  // hangs unless the copy runs meanwhile
  });
  device.submit(1, Pipeline::kCopyIn, [&] {
    computing.pass();
    copied.open();
  });
  device.pipelines.synchronize();
}

TEST(compute_of_all_streams_shares_one_pipeline) {
  TestDevice device;
  std::atomic<int> running{0};
  for (int i = 0; i < 400; ++i) {
    device.submit(static_cast<std::uint8_t>(i % 4), Pipeline::kCompute, [&] {
      CHECK(running.fetch_add(1) == 0);
      running.fetch_sub(1);
    });
  }
  device.pipelines.synchronize();
}

TEST(a_stream_waits_for_a_mark_of_another_device_too) {
  TestDevice one;
  TestDevice two;
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> written{false};
    bool right = false;
    one.submit(1, Pipeline::kCopyIn, [&] { written.store(true); });
    two.pipelines.stream(2).wait_for(one.pipelines.stream(1).record());
    two.submit(2, Pipeline::kCompute, [&] { right = written.load(); });
    two.pipelines.stream(2).wait();
    CHECK(right);
  }
}

TEST(waiting_for_a_stream_waits_for_its_marks_too) {
  TestDevice device;
  Gate gate;
  std::atomic<bool> passed{false};
  device.submit(1, Pipeline::kCopyIn, [&] {
    gate.pass();
    passed.store(true);
  });
  device.pipelines.stream(2).wait_for(device.pipelines.stream(1).record());  // and nothing after it
  std::thread opener([&] { gate.open(); });
  device.pipelines.stream(2).wait();
  CHECK(passed.load());
  opener.join();
}

TEST(the_more_urgent_stream_goes_first) {
  TestDevice device;
  device.pipelines.open_stream(10, -1);
  Gate gate;
  std::vector<int> seen;
  device.submit(0, Pipeline::kCompute, [&] { gate.pass(); });
  device.submit(1, Pipeline::kCompute, [&] { seen.push_back(1); });
  device.submit(2, Pipeline::kCompute, [&] { seen.push_back(2); });
  device.submit(10, Pipeline::kCompute, [&] { seen.push_back(10); });
  gate.open();
  device.pipelines.synchronize();
  CHECK((seen == std::vector<int>{10, 1, 2}));
}

TEST(what_an_item_throws_is_kept_until_somebody_asks) {
  TestDevice device;
  bool ran_on = false;
  device.submit(2, Pipeline::kCompute, [] { throw std::runtime_error("first"); });
  device.submit(2, Pipeline::kCompute, [] { throw 1; });
  device.submit(2, Pipeline::kCompute, [&] { ran_on = true; });
  device.pipelines.synchronize();
  CHECK(ran_on);
  const auto failure = device.pipelines.take_failure();
  CHECK(failure.has_value() && failure->text == "first" && failure->op == "task");
  CHECK(failure->stream == 2 && failure->others == 1);
  CHECK(!device.pipelines.take_failure().has_value());
}

TEST(a_mark_does_not_wait_for_a_kernel_of_another_stream) {
  TestDevice device;
  Gate first;
  Gate second;
  device.submit(0, Pipeline::kCompute, [&] { first.pass(); });
  device.submit(1, Pipeline::kCompute, [&] { second.pass(); });
  const auto mark = device.pipelines.stream(0).record();
  first.open();
  device.pipelines.stream(0).wait(mark->ticket);  // hangs if the kernel goes first
  second.open();
  device.pipelines.synchronize();
}

TEST(a_full_queue_waits_for_room) {
  TestDevice device;
  Gate gate;
  std::atomic<int> done{0};
  device.submit(0, Pipeline::kCompute, [&] { gate.pass(); });
  std::thread producer([&] {
    for (std::size_t i = 0; i < 3 * Stream::kDepth; ++i) {
      device.submit(0, Pipeline::kCompute, [&] { done.fetch_add(1); });
    }
  });
  while (device.pipelines.stream(0).submitted() < Stream::kDepth) {
    std::this_thread::yield();
  }
  CHECK(done.load() == 0);
  gate.open();
  producer.join();
  device.pipelines.synchronize();
  CHECK(done.load() == static_cast<int>(3 * Stream::kDepth));
}

TEST(a_virtual_clock_tells_the_models_times_exactly) {
  DeviceModel model;
  model.virtual_clock = true;
  TestDevice device(model);
  const auto begin = device.pipelines.stream(0).record();
  device.submit(0, Pipeline::kCompute, [] {}, 700);
  device.submit(1, Pipeline::kCopyIn, [] {}, 500);  // beside the kernel
  device.pipelines.stream(0).wait_for(device.pipelines.stream(1).record());
  device.submit(0, Pipeline::kCompute, [] {}, 100);  // after both: 700 to 800
  const auto both = device.pipelines.stream(0).record();
  device.submit(1, Pipeline::kCompute, [] {}, 50);  // the one compute pipeline is busy until 800
  const auto third = device.pipelines.stream(1).record();
  device.pipelines.synchronize();
  CHECK(both->time_ns - begin->time_ns == 800);
  CHECK(third->time_ns - begin->time_ns == 850);
}

TEST(a_paced_item_lasts_as_long_as_its_model) {
  DeviceModel model;
  model.launch_ns = 1;  // any pace at all
  TestDevice device(model);
  const auto begin = std::chrono::steady_clock::now();
  device.submit(0, Pipeline::kCompute, [] {}, 20'000'000);
  device.pipelines.synchronize();
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(20));
}

TEST(stopping_drops_what_is_queued_and_lets_waiters_go) {
  TestDevice device;
  Gate gate;
  std::atomic<int> destroyed{0};
  struct Counted {
    explicit Counted(std::atomic<int>& count) : count(&count) {}
    Counted(const Counted& other) = default;
    ~Counted() { count->fetch_add(1); }
    std::atomic<int>* count;
  };
  std::atomic<bool> ran{false};
  device.submit(0, Pipeline::kCompute, [&] { gate.pass(); });
  const std::uint64_t last = device.submit(0, Pipeline::kCompute, [&ran] { ran.store(true); });
  std::atomic<bool> told{false};
  std::thread waiter([&] {
    try {
      device.pipelines.stream(0).wait(last);
    } catch (const Stopped&) {
      told.store(true);
    }
  });
  std::thread stopper([&] { device.pipelines.stop(); });
  while (true) {
    try {
      device.submit(1, Pipeline::kCopyIn, [] {});
    } catch (const Stopped&) {
      break;
    }
  }
  gate.open();
  stopper.join();
  waiter.join();
  CHECK(told.load());
  CHECK(!ran.load());
  CHECK(!device.pipelines.stream(0).done(last));
}

// Every item of every stream reads and writes its own cell, guarded by the marks alone.
TEST(random_streams_and_marks_keep_the_order) {
  TestDevice devices[2];
  constexpr int kCells = 16;
  std::vector<std::uint64_t> cells(kCells, 0);
  std::vector<std::uint64_t> expected(kCells, 0);
  std::vector<std::shared_ptr<Mark>> last(kCells);
  std::uint64_t random = 42;
  const auto next = [&](std::uint64_t below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (random >> 33) % below;
  };
  for (int i = 0; i < 4000; ++i) {
    TestDevice& device = devices[next(2)];
    Stream& stream = device.pipelines.stream(static_cast<std::uint8_t>(next(4)));
    const std::size_t cell = next(kCells);
    const std::uint64_t factor = next(1000);
    if (last[cell] != nullptr) {
      stream.wait_for(last[cell]);
    }
    stream.submit<Task>(static_cast<Pipeline>(next(3)),
                        [&cells, cell, factor] { cells[cell] = cells[cell] * 31 + factor; });
    last[cell] = stream.record();
    expected[cell] = expected[cell] * 31 + factor;
  }
  devices[0].pipelines.synchronize();
  devices[1].pipelines.synchronize();
  CHECK(cells == expected);
}

}  // namespace ral
