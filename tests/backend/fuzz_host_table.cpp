// Feeds the functions that plugins are given with right, stale, foreign and random handles, addresses, sizes and tables.
// Whatever comes in, a code comes out, the right one where this program knows better, and the sanitizers see nothing.
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "allocator.h"
#include "described.h"
#include "host_table.h"
#include "hotplug.h"
#include "secure.h"

namespace {

using namespace ral;

constexpr std::size_t kMemoryBytes = std::size_t{8} << 20;

struct Buffer {
  std::uint64_t handle;
  std::uint64_t address;
  std::uint64_t bytes;
};

[[noreturn]] void fail(const char* what, int got, int wanted, const char* words) {
  std::fprintf(stderr, "%s: got %d, wanted %d (%s)\n", what, got, wanted, words);
  std::abort();
}

VendorInfo device_info() {
  VendorInfo info;
  info.memory_bytes = kMemoryBytes;
  return info;
}

class Fuzzer {
 public:
  explicit Fuzzer(std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < 2; ++i) {
      const std::string name = i == 0 ? "ours" : "theirs";
      Vendors::instance().add(std::make_unique<DescribedVendor>(name, "1", std::vector<VendorInfo>{device_info()},
                                                                std::vector<std::uint64_t>{0}));
      const Vendor* vendor = Vendors::instance().find(name);
      memories_[i] = std::make_unique<RegionAllocator>(AllocatorConfig{kMemoryBytes, std::size_t{1} << 20, 8, 128},
                                                       std::make_unique<MappedRegions>());
      SecureContext::instance().add_device(i, vendor, memories_[i].get());
      hosts_[i] = make_host_table();
      open_host_table(hosts_[i], vendor);
    }
  }

  void run(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      switch (pick(8)) {
        case 0:
        case 1:
          allocate();
          break;
        case 2:
          free_one();
          break;
        case 3:
          copy();
          break;
        case 4:
          check();
          break;
        case 5:
          stale();
          break;
        case 6:
          foreign();
          break;
        default:
          nonsense();
      }
    }
    while (!live_.empty()) {
      free_one();
    }
    for (const auto& memory : memories_) {
      if (!memory->check().empty() || memory->stats().allocations.current != 0) {
        fail("what is left", 1, 0, memory->check().c_str());
      }
    }
  }

 private:
  std::uint64_t pick(std::uint64_t below) { return random_() % below; }
  // Small, near a power of two, or anything.
  std::uint64_t any() {
    const std::uint64_t near = (std::uint64_t{1} << pick(64)) + pick(5) - 2;
    return pick(3) == 0 ? pick(300) : pick(2) == 0 ? near : random_();
  }
  const ral_host* ours() const { return hosts_[0]; }

  void expect(const char* what, int got, int wanted) const {
    if (got != wanted) {
      fail(what, got, wanted, ours()->last_error(ours()));
    }
  }

  void allocate() {
    Buffer made{0, 0, pick(10) == 0 ? any() : 1 + pick(5000)};
    const int status = ours()->alloc(ours(), 0, made.bytes, &made.handle, &made.address);
    if (status == RAL_OK) {
      std::memset(reinterpret_cast<void*>(made.address), 0x5a, made.bytes);
      live_.push_back(made);
    } else if (status != RAL_ERROR_OUT_OF_MEMORY && status != RAL_ERROR_BAD_ARGUMENT) {
      fail("alloc", status, RAL_OK, ours()->last_error(ours()));
    }
    if (live_.size() > 200) {
      free_one();
    }
  }

  void free_one() {
    if (live_.empty()) {
      return;
    }
    const std::size_t at = pick(live_.size());
    expect("free", ours()->free(ours(), live_[at].handle), RAL_OK);
    freed_.push_back(live_[at].handle);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void copy() {
    if (live_.empty()) {
      return;
    }
    const Buffer& to = live_[pick(live_.size())];
    const Buffer& from = live_[pick(live_.size())];
    const std::uint64_t to_offset = pick(4) == 0 ? any() : pick(to.bytes);
    const std::uint64_t from_offset = pick(4) == 0 ? any() : pick(from.bytes);
    const std::uint64_t bytes = pick(4) == 0 ? any() : pick(2000);
    const auto inside = [&](const Buffer& b, std::uint64_t offset) {
      return offset <= b.bytes && bytes <= b.bytes - offset;
    };
    const bool good = inside(to, to_offset) && inside(from, from_offset);
    expect("copy", ours()->copy(ours(), to.handle, to_offset, from.handle, from_offset, bytes),
           good ? RAL_OK : RAL_ERROR_OUT_OF_BOUNDS);
  }

  void check() {
    if (live_.empty()) {
      return;
    }
    const Buffer& buffer = live_[pick(live_.size())];
    const std::uint64_t offset = pick(buffer.bytes);
    const std::uint64_t room = buffer.bytes - offset;
    const std::uint64_t bytes = pick(2) == 0 ? pick(room + 1) : room + 1 + any() % (UINT64_MAX - room);
    expect("check", ours()->check(ours(), 0, buffer.address + offset, bytes),
           bytes <= room ? RAL_OK : RAL_ERROR_OUT_OF_BOUNDS);
    expect("check of another device", ours()->check(ours(), 1, buffer.address + offset, 1), RAL_ERROR_WRONG_DEVICE);
  }

  void stale() {
    if (freed_.empty()) {
      return;
    }
    const std::uint64_t handle = freed_[pick(freed_.size())];
    expect("free again", ours()->free(ours(), handle), RAL_ERROR_USE_AFTER_FREE);
    expect("copy of a freed one", ours()->copy(ours(), handle, 0, handle, 0, 1), RAL_ERROR_USE_AFTER_FREE);
  }

  void foreign() {
    std::uint64_t handle = 0;
    std::uint64_t address = 0;
    expect("alloc on theirs", ours()->alloc(ours(), 1, 100, &handle, &address), RAL_ERROR_WRONG_DEVICE);
    const ral_host* theirs = hosts_[1];
    expect("their alloc", theirs->alloc(theirs, 1, 100, &handle, &address), RAL_OK);
    expect("free of theirs", ours()->free(ours(), handle), RAL_ERROR_WRONG_DEVICE);
    expect("copy of theirs", ours()->copy(ours(), handle, 0, handle, 0, 1), RAL_ERROR_WRONG_DEVICE);
    expect("their free", theirs->free(theirs, handle), RAL_OK);
  }

  void nonsense() {
    std::uint64_t handle = 0;
    std::uint64_t address = 0;
    const auto* forged = reinterpret_cast<const ral_host*>(any() | 1);  // ours are aligned
    expect("a forged table", ours()->free(forged, 1), RAL_ERROR_BAD_HOST);
    expect("no table", ours()->check(nullptr, 0, 0, 0), RAL_ERROR_BAD_HOST);
    expect("nowhere to answer", ours()->alloc(ours(), 0, 1, nullptr, &address), RAL_ERROR_BAD_ARGUMENT);
    expect("no descriptor", ours()->announce(ours(), 0, nullptr, nullptr), RAL_ERROR_BAD_ARGUMENT);
    expect("no such level", ours()->log(ours(), 77, "text"), RAL_ERROR_BAD_ARGUMENT);
    expect("a log", ours()->log(ours(), RAL_LOG_INFO, "\x01\xff%s"), RAL_OK);
    const auto device = static_cast<std::int32_t>(any());
    if (device != 0 && device != 1) {
      expect("no such device", ours()->alloc(ours(), device, 1, &handle, &address), RAL_ERROR_NO_DEVICE);
      expect("withdraw", ours()->withdraw(ours(), device, nullptr), RAL_ERROR_NO_DEVICE);
    }
    // Handles and addresses out of nowhere may be right by chance; then what was done is done right.
    expect("a handle beyond all", ours()->free(ours(), any() | UINT64_C(0xffff0000)), RAL_ERROR_INVALID_POINTER);
    expect("the null page", ours()->check(ours(), 0, pick(4096), any()), RAL_ERROR_INVALID_POINTER);
    ours()->check(ours(), static_cast<std::int32_t>(pick(4)), any(), any());
    ours()->copy(ours(), any(), any(), any(), any(), any());
  }

  std::mt19937_64 random_;
  std::array<std::unique_ptr<RegionAllocator>, 2> memories_;
  std::array<const ral_host*, 2> hosts_{};
  std::vector<Buffer> live_;
  std::vector<std::uint64_t> freed_;
};

}  // namespace

int main(int count, char** words) {
  Fuzzer fuzzer(count > 1 ? std::strtoull(words[1], nullptr, 10) : 1);
  fuzzer.run(20'000);
  std::puts("ok");
  return 0;
}
