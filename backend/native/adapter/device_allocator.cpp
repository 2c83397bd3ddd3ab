// torch's view of the devices' memory: c10::DeviceAllocator over each device's RegionAllocator.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <cstring>

#include "events.h"
#include "memory_report.h"
#include "runtime.h"

namespace ral {

namespace {

void delete_block(void* context) {
  if (Runtime::bad_fork()) {
    return;  // another thread of the parent may have held the allocator's lock
  }
  auto* block = static_cast<Block*>(context);
  const MemoryHistory::Gathered stack(MemoryHistory::Action::kFreeRequested);
  block->extent->owner->free(block);
}

[[noreturn]] void raise_out_of_memory(Device& device, const OutOfMemory& error) {
  const std::string text = describe_out_of_memory(device, error.facts);
  if (events::on()) {
    trace::Record record = trace::make_record(trace::Kind::kError, events::intern(text), device.index());
    record.bytes = static_cast<std::int64_t>(error.facts.requested);
    record.stack = events::site_stack();
    trace::emit_instant(*events::writer, record);
    events::writer->raise_alarm(trace::Alarm::kOutOfMemory);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, text);
  std::abort();
}

c10::CachingAllocator::Stat to_stat(const Amount& amount) {
  c10::CachingAllocator::Stat stat;
  stat.current = static_cast<std::int64_t>(amount.current);
  stat.peak = static_cast<std::int64_t>(amount.peak);
  stat.allocated = static_cast<std::int64_t>(amount.added);
  stat.freed = static_cast<std::int64_t>(amount.removed);
  return stat;
}

// Of torch's pools (all, small, large) there is one here: it counts as "all".
void set_all(c10::CachingAllocator::StatArray& array, const Amount& amount) {
  array[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)] = to_stat(amount);
}

static_assert(kStreamSlots == kMaxStreams, "the allocator has a pool for each stream");

class RalDeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    Device& device = Runtime::get().device(current_device());
    return allocate_on(device, bytes, device.torch_device());
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool initialized() override { return Runtime::started(); }
  void emptyCache(c10::MempoolId_t pool) override {
    (void)pool;
    for (int i = 0; i < Runtime::get().device_count(); ++i) {
      Runtime::get().any_device(static_cast<c10::DeviceIndex>(i)).memory().empty_cache();
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (Block* block = block_of(data)) {
      block->extent->owner->record_stream(block, static_cast<std::uint8_t>(stream.id()));
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const AllocatorStats stats = Runtime::get().any_device(index).memory().stats();
    c10::CachingDeviceAllocator::DeviceStats result;
    set_all(result.allocation, stats.allocations);
    set_all(result.active, stats.active);
    set_all(result.inactive_split, stats.inactive_split);
    set_all(result.segment, stats.regions);
    set_all(result.allocated_bytes, stats.allocated_bytes);
    set_all(result.active_bytes, stats.active_bytes);
    set_all(result.requested_bytes, stats.requested_bytes);
    set_all(result.reserved_bytes, stats.reserved_bytes);
    set_all(result.inactive_split_bytes, stats.inactive_split_bytes);
    result.num_alloc_retries = static_cast<std::int64_t>(stats.retries);
    result.num_sync_all_streams = static_cast<std::int64_t>(stats.waits);
    result.num_ooms = static_cast<std::int64_t>(stats.ooms);
    result.num_device_alloc = static_cast<std::int64_t>(stats.region_opens);
    result.num_device_free = static_cast<std::int64_t>(stats.region_closes);
    const std::size_t split = Runtime::get().any_device(index).memory().settings().max_split_bytes;
    result.max_split_size =
        split == SIZE_MAX ? -1 : static_cast<std::int64_t>(split);  // -1: no limit, as in torch.cuda
    return result;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    Runtime::get().any_device(index).memory().reset_totals();
  }
  void resetPeakStats(c10::DeviceIndex index) override { Runtime::get().any_device(index).memory().reset_peaks(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const RegionAllocator& memory = Runtime::get().any_device(index).memory();
    return {memory.capacity() - memory.stats().reserved_bytes.current, memory.capacity()};
  }
};

RalDeviceAllocator the_allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &the_allocator)

}  // namespace

Block* block_of(const c10::DataPtr& data) noexcept {
  return data.get_deleter() == &delete_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

Block* allocate_block(Device& device, std::size_t bytes) {
  const MemoryHistory::Gathered stack(MemoryHistory::Action::kAlloc);
  const MemoryEvents::Asking asking(bytes);
  try {
    return device.memory().allocate(bytes, current_stream(device.index()));
  } catch (const OutOfMemory& error) {
    raise_out_of_memory(device, error);
  }
}

c10::DataPtr own_block(Block* block, c10::Device label) noexcept {
  return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(block->address)), block, &delete_block, label};
}

c10::DataPtr allocate_on(Device& device, std::size_t bytes, c10::Device label) {
  if (bytes == 0) {
    return {nullptr, label};
  }
  return own_block(allocate_block(device, bytes), label);
}

}  // namespace ral
