// Streams and allocators together, as a device has them: random work in memory that is reused as early as it may be.
// $RAL_TRACE_TEST_SEED and $RAL_TRACE_TEST_STEPS say which and how much.
#include <cstdlib>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "allocator.h"
#include "check.h"
#include "pipelines.h"

namespace ral {

namespace {

constexpr std::uint8_t kStreams = 6;
constexpr std::size_t kHeld = 12;

unsigned number(const char* variable, unsigned otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::stoul(text));
}

AllocatorConfig small_memory() {
  AllocatorConfig config;
  config.capacity = std::size_t{8} << 20;
  config.region_bytes = std::size_t{1} << 20;
  return config;
}

DeviceModel slow_copies() {
  DeviceModel model;
  model.copy_latency_ns = 30'000;
  return model;
}

struct CoreDevice {
  CoreDevice()
      : pipelines(slow_copies(),
                  {[]() noexcept -> std::uint64_t { return 0; },
                   [](std::uint64_t ns) noexcept -> std::uint64_t { return ns; }},
                  {}),
        memory(small_memory(), std::make_unique<MappedRegions>(), nullptr, &pipelines) {
    for (std::uint8_t stream = 1; stream < kStreams; ++stream) {
      pipelines.open_stream(stream, stream % 3 - 1);
    }
  }
  Pipelines pipelines;
  RegionAllocator memory;
};

// Of a block: all its words have this value, or get it.
class Words final : public Work {
 public:
  Words(Pipeline pipeline, const Block* to, const Block* from, std::uint64_t value)
      : Work(pipeline == Pipeline::kCompute ? WorkKind::kCompute : WorkKind::kTransfer, pipeline, 0),
        to_(words(to)),
        from_(words(from)),
        count_((from != nullptr ? from : to)->requested / sizeof(std::uint64_t)),
        value_(value) {}

  void run() override {
    for (std::size_t i = 0; i < count_; ++i) {
      if (from_ != nullptr) {
        CHECK(from_[i] == value_);
      }
      if (to_ != nullptr) {
        to_[i] = value_;
      }
    }
  }
  std::uint64_t model_ns(const DeviceModel& model) const noexcept override {
    return pipeline == Pipeline::kCompute ? 0 : model.copy_latency_ns;
  }
  std::string what() const override { return "words"; }

 private:
  static std::uint64_t* words(const Block* block) {
    return block == nullptr ? nullptr : reinterpret_cast<std::uint64_t*>(static_cast<std::uintptr_t>(block->address));
  }
  std::uint64_t* to_;
  const std::uint64_t* from_;
  std::size_t count_;
  std::uint64_t value_;
};

// Runs until it is let go.
class Held final : public Work {
 public:
  explicit Held(std::future<void> until) : Work(WorkKind::kCompute, Pipeline::kCompute, 0), until_(std::move(until)) {}
  void run() override { until_.wait(); }
  std::string what() const override { return "held"; }

 private:
  std::future<void> until_;
};

// One thread's program. What it does to a block follows the rules of streams; frees come as early as they may.
class Program {
 public:
  Program(CoreDevice (&devices)[2], unsigned seed) : devices_(devices), random_(seed) {}

  void run(unsigned steps) {
    for (unsigned step = 0; step < steps; ++step) {
      const unsigned kind = below(10);
      if (held_.empty() || kind < 3) {
        make();
      } else if (kind < 6) {
        read(below(static_cast<unsigned>(held_.size())));
      } else if (kind < 8) {
        send(below(static_cast<unsigned>(held_.size())));
      } else if (kind < 9) {
        release(below(static_cast<unsigned>(held_.size())));
      } else {
        look_after(devices_[below(2)]);
      }
      if (held_.size() > kHeld) {
        release(below(kHeld));
      }
    }
    while (!held_.empty()) {
      release(0);
    }
  }

 private:
  struct Own {
    Block* block;
    CoreDevice* device;
    std::uint64_t value;
    std::shared_ptr<Mark> written;
  };

  unsigned below(unsigned limit) { return static_cast<unsigned>(random_() % limit); }
  std::uint8_t any_stream() { return static_cast<std::uint8_t>(below(kStreams)); }
  Stream& stream(CoreDevice& device, std::uint8_t number) { return device.pipelines.stream(number); }

  void make() {
    CoreDevice& device = devices_[below(2)];
    const std::uint8_t on = any_stream();
    const std::size_t bytes = sizeof(std::uint64_t) * (1 + below(below(8) == 0 ? 8192 : 256));
    Block* block = device.memory.allocate(bytes, on);
    const std::uint64_t value = random_();
    stream(device, on).submit<Words>(Pipeline::kCompute, block, nullptr, value);
    held_.push_back({block, &device, value, stream(device, on).record()});
  }

  // Sometimes the block's own stream waits for the reader; otherwise the allocator is told of it.
  void read(std::size_t which) {
    Own& held = held_[which];
    const std::uint8_t on = any_stream();
    stream(*held.device, on).wait_for(held.written);
    stream(*held.device, on).submit<Words>(static_cast<Pipeline>(below(3)), nullptr, held.block, held.value);
    keep_until_done(held, *held.device, on);
  }

  // To the other device, which waits for this one and this one for it.
  void send(std::size_t which) {
    Own& held = held_[which];
    CoreDevice& target = held.device == &devices_[0] ? devices_[1] : devices_[0];
    const std::uint8_t on = any_stream();
    Block* block = target.memory.allocate(held.block->requested, on);
    stream(target, on).wait_for(held.written);
    stream(target, on).submit<Words>(Pipeline::kCopyIn, block, held.block, held.value);
    const std::shared_ptr<Mark> done = stream(target, on).record();
    stream(*held.device, held.block->stream).wait_for(done);
    held_.push_back({block, &target, held.value, done});
  }

  void keep_until_done(Own& held, CoreDevice& device, std::uint8_t on) {
    if (below(2) == 0) {
      stream(*held.device, held.block->stream).wait_for(stream(device, on).record());
    } else {
      held.device->memory.record_stream(held.block, on);
    }
  }

  void release(std::size_t which) {
    held_[which].device->memory.free(held_[which].block);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void look_after(CoreDevice& device) {
    switch (below(12)) {
      case 0:
        device.memory.empty_cache();
        break;
      case 1:
        device.memory.collect_garbage();
        break;
      case 2:
        device.pipelines.synchronize();
        break;
      case 3:
        device.pipelines.set_model(below(2) == 0 ? slow_copies() : DeviceModel());
        break;
      case 4:
        CHECK(device.memory.check().empty());
        break;
      default:
        device.pipelines.stream(any_stream()).wait();
    }
  }

  CoreDevice (&devices_)[2];
  std::mt19937_64 random_;
  std::vector<Own> held_;
};

}  // namespace

// Stream 0 is to wait for a reader on stream 1, but has no item yet that does.
TEST(freed_memory_is_for_nobody_else_before_what_its_stream_waits_for) {
  CoreDevice device;
  Block* block = device.memory.allocate(4096, 0);
  std::promise<void> read;
  std::future<void> may_go_on = read.get_future();
  device.pipelines.stream(1).submit<Held>(std::move(may_go_on));
  device.pipelines.stream(0).wait_for(device.pipelines.stream(1).record());
  device.memory.free(block);
  CHECK(device.memory.collect_garbage() == 0);
  read.set_value();
  CHECK(device.memory.empty_cache() == small_memory().region_bytes);
}

TEST(random_work_in_memory_that_is_reused_early) {
  const unsigned seed = number("RAL_TRACE_TEST_SEED", 1);
  const unsigned steps = number("RAL_TRACE_TEST_STEPS", 2000);
  CoreDevice devices[2];
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] { Program(devices, seed * 3 + thread).run(steps); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (CoreDevice& device : devices) {
    device.pipelines.synchronize();
    CHECK(!device.pipelines.has_failure());
    device.memory.empty_cache();
    const AllocatorStats stats = device.memory.stats();
    CHECK(stats.allocated_bytes.current == 0 && stats.active_bytes.current == 0 && stats.reserved_bytes.current == 0);
    CHECK(device.memory.check().empty());
  }
}

}  // namespace ral
