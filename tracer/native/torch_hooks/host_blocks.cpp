#include "host_blocks.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <limits>
#include <new>

namespace ral::trace {

namespace {

const WriterApi* g_api = nullptr;
// torch's own deleter: the block's context is its address, as raw_deleter() promises.
c10::DeleterFnPtr g_give_back = nullptr;

// Frees are recorded for as long as a recording goes on that was told of allocations: it would take the blocks for held.
std::atomic<bool> g_frees{false};

void emit_block(Kind kind, void* address, std::size_t bytes) {
  Record record = make_record(kind, 0, kHostMemory);
  record.arg0 = reinterpret_cast<std::uint64_t>(address);
  if (kind == Kind::kAlloc) {
    record.name = g_api->thread_view()->visible_op;
    record.bytes = static_cast<std::int64_t>(bytes);
    record.arg1 = bytes;
    if (bytes >= kLargeBytes && wants(*g_api, kSiteStacks)) {
      record.stack = g_api->python_stack();
    }
  }
  emit_instant(*g_api, record);
}

void free_block(void* block) {
  // Before it is gone: after that, another thread may be given the same address.
  if (block != nullptr && g_frees.load(std::memory_order_relaxed)) {
    emit_block(Kind::kFree, block, 0);
  }
  g_give_back(block);
}

// Storages keep it as their allocator, so that it lives, and works, for as long as the process.
class WatchedAllocator final : public c10::Allocator {
 public:
  explicit WatchedAllocator(c10::Allocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    c10::DataPtr block = inner_.allocate(bytes);
    // A block of which nobody is told keeps torch's deleter. Either gives it back.
    if (block.get() != nullptr && wants(*g_api, kHostBlocks) &&
        block.compare_exchange_deleter(g_give_back, &free_block)) {
      emit_block(Kind::kAlloc, block.get(), bytes);
    }
    return block;
  }
  [[nodiscard]] bool is_simple_data_ptr(const c10::DataPtr& block) const override {
    return inner_.is_simple_data_ptr(block);
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_.copy_data(to, from, bytes); }

  [[nodiscard]] c10::Allocator& inner() const { return inner_; }

 private:
  c10::Allocator& inner_;
};

WatchedAllocator* g_watched = nullptr;

// torch takes an allocator only with the priority of the one before it, or a higher one, and does not tell it: the
// lowest that is taken leaves the next one to come as welcome as before.
bool put_in_place(c10::Allocator& allocator) {
  for (unsigned priority = 0; priority <= std::numeric_limits<std::uint8_t>::max(); ++priority) {
    c10::SetCPUAllocator(&allocator, static_cast<std::uint8_t>(priority));
    if (c10::GetCPUAllocator() == &allocator) {
      return true;
    }
  }
  return false;
}

}  // namespace

void watch_host_blocks(const WriterApi& api, std::uint32_t details) {
  c10::Allocator* now = c10::GetCPUAllocator();
  if ((details & kHostBlocks) == 0) {
    if (details == 0) {
      g_frees = false;
    }
    // Where somebody else has put themselves before us, we stay, and only pass on.
    if (g_watched != nullptr && now == g_watched) {
      put_in_place(g_watched->inner());
    }
    return;
  }
  if (g_watched == nullptr && now != nullptr && now->raw_deleter() != nullptr) {
    g_api = &api;
    g_give_back = now->raw_deleter();
    // In place and never destroyed: the last storages go after the statics.
    alignas(WatchedAllocator) static std::array<std::byte, sizeof(WatchedAllocator)> place;
    g_watched = ::new (place.data()) WatchedAllocator(*now);
  }
  // Another allocator than the one that we know how to give back to is left alone.
  g_frees = g_watched != nullptr;
  if (g_watched != nullptr && now == &g_watched->inner()) {
    put_in_place(*g_watched);
  }
}

}  // namespace ral::trace
