// The allocator under threads and under a clock that looks back at it. Its answers are checked in
// tests/backend/test_core_allocator.py.
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <unordered_set>

#include "allocator.h"
#include "check.h"
#include "manual_clock.h"

namespace {

using namespace ral;

constexpr std::size_t kMiB = std::size_t{1} << 20;

AllocatorConfig small_config(std::uint32_t domains = 1) {
  AllocatorConfig config;
  config.capacity = 16 * kMiB;
  config.region_bytes = kMiB;
  config.striping = {domains, 4096};
  return config;
}

// Keeps books of its own.
class Books final : public AllocatorObserver {
 public:
  void opened(const Region& region) noexcept override { CHECK(regions.insert(region.handle).second); }
  void closed(const Region& region) noexcept override { CHECK(regions.erase(region.handle) == 1); }
  void allocated(Block& block) noexcept override {
    CHECK(block.state == BlockState::kUsed && used.insert(block.address).second);
    bytes += block.size;
  }
  void freed(const Block& block) noexcept override {
    CHECK(used.erase(block.address) == 1);
    bytes -= block.size;
    ++waiting;
  }
  void reusable(Block&) noexcept override { --waiting; }
  void failed(std::size_t, std::size_t) noexcept override { ++failures; }

  std::unordered_set<std::uint64_t> regions, used;
  std::size_t bytes = 0, waiting = 0, failures = 0;
};

// A worker on a stream: what it holds it writes, and finds unchanged.
void work(RegionAllocator& allocator, ManualClock& clock, std::uint8_t stream, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Block*> held;
  for (int step = 0; step < 3000; ++step) {
    if (held.size() < 20 && random() % 3 != 0) {
      const std::size_t bytes = random() % 4 == 0 ? random() % (200 << 10) : random() % 2048;
      Block* block = allocator.allocate(bytes, stream);
      std::memset(reinterpret_cast<void*>(block->address), stream, block->size);
      held.push_back(block);
      clock.submit(stream);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      Block* block = held.back();
      const auto* bytes = reinterpret_cast<const unsigned char*>(block->address);
      CHECK(bytes[0] == stream && bytes[block->size - 1] == stream);
      block->touch(1);
      if (random() % 4 == 0) {
        allocator.record_stream(block, static_cast<std::uint8_t>(random() % 4));
      }
      allocator.free(block);
      held.pop_back();
    }
    if (random() % 8 == 0) {
      clock.finish(stream, clock.submitted(stream));
    }
    if (random() % 200 == 0) {
      allocator.collect_garbage();
    }
  }
  for (Block* block : held) {
    allocator.free(block);
  }
}

void work_in_threads(std::uint32_t domains) {
  ManualClock clock;
  Books books;
  RegionAllocator allocator(small_config(domains), std::make_unique<MappedRegions>(), &books, &clock);
  std::vector<std::thread> threads;
  for (std::uint8_t stream = 0; stream < 4; ++stream) {
    threads.emplace_back([&, stream] { work(allocator, clock, stream, stream + 1u); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(allocator.check().empty());
  CHECK(books.used.empty() && books.bytes == 0);
  allocator.empty_cache();
  CHECK(books.regions.empty() && books.waiting == 0 && books.failures == 0);
  CHECK(allocator.stats().reserved_bytes.current == 0);
}

TEST(four_threads_allocate_record_and_free) { work_in_threads(1); }

TEST(four_threads_on_a_striped_device) { work_in_threads(4); }

// Waits as a real stream does: by another thread's progress, which here needs the allocator itself.
class LookingBack final : public StreamClock {
 public:
  std::uint64_t submitted(std::uint8_t) const noexcept override { return 1; }
  bool done(std::uint8_t, std::uint64_t ticket) const noexcept override { return ticket <= done_; }
  void wait(std::uint8_t, std::uint64_t ticket) override {
    std::thread([&] { CHECK(allocator->stats().waits == 1); }).join();
    done_ = ticket;
  }
  RegionAllocator* allocator = nullptr;

 private:
  std::uint64_t done_ = 0;
};

TEST(the_allocator_does_not_wait_under_its_lock) {
  LookingBack clock;
  AllocatorConfig config = small_config();
  config.capacity = kMiB;
  RegionAllocator allocator(config, std::make_unique<ImaginaryRegions>(), nullptr, &clock);
  clock.allocator = &allocator;
  allocator.free(allocator.allocate(kMiB, 1));
  CHECK(allocator.allocate(kMiB, 2) != nullptr);
}

TEST(an_allocator_goes_with_its_blocks_still_in_use) {
  RegionAllocator allocator(small_config(), std::make_unique<MappedRegions>());
  Block* block = allocator.allocate(100);
  std::memset(reinterpret_cast<void*>(block->address), 1, block->size);
  CHECK(allocator.find(block->address) == block && allocator.owns(block->address + 99));
  CHECK(allocator.find(block->address + 128) == nullptr && !allocator.owns(1));
}

}  // namespace
