// What torch asks of a device beside operators: random numbers, pinned host memory, resizing a storage.
#include "hooks.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstring>
#include <map>

#include "generator.h"
#include "immortal.h"
#include "runtime.h"

namespace ral {

namespace {

// Page-locked memory in name: copies to a `ral` device are as quick from any memory, but programs ask for it.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, c10::DeviceType::CPU};
    }
    void* data = c10::alloc_cpu(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.emplace(data, bytes);
    return {data, data, &PinnedAllocator::release, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedAllocator::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool owns(const void* data) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto block = blocks_.upper_bound(data);
    if (block == blocks_.begin()) {
      return false;
    }
    --block;
    return static_cast<const char*>(data) < static_cast<const char*>(block->first) + block->second;
  }

  bool record_event(void* data, void* context, c10::Stream stream) override {
    (void)context;
    (void)stream;
    return owns(data);
  }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  static PinnedAllocator& get() {
    static Immortal<PinnedAllocator> allocator;
    static PinnedAllocator* const only = allocator.emplace();
    return *only;
  }

 private:
  static void release(void* data) {
    PinnedAllocator& self = get();
    {
      const std::lock_guard<std::mutex> lock(self.mutex_);
      self.blocks_.erase(data);
    }
    c10::free_cpu(data);
  }

  mutable std::mutex mutex_;
  std::map<const void*, std::size_t> blocks_;
};

struct RalHooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return Runtime::started() && Runtime::get().device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return Runtime::started() && index < Runtime::get().device_count();
  }
  void init() const override { Runtime::get(); }
  c10::DeviceIndex deviceCount() const override {
    return Runtime::started() ? static_cast<c10::DeviceIndex>(Runtime::get().device_count()) : c10::DeviceIndex{0};
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    set_current_device(Runtime::get().device(index).index());
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const c10::DeviceIndex previous = current_device();
    if (index >= 0) {
      setCurrentDevice(index);
    }
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }

  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::get().owns(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator::get(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    Runtime& runtime = Runtime::get();
    c10::DeviceIndex found = -1;
    for (int i = 0; i < runtime.device_count(); ++i) {
      if (runtime.any_device(static_cast<c10::DeviceIndex>(i)).memory().owns(address)) {
        found = static_cast<c10::DeviceIndex>(i);
      }
    }
    TORCH_CHECK(found >= 0, "this address is in no region of a ral device");
    return {kRal, found};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return Runtime::get().any_device(index).default_generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return make_generator(Runtime::get().device(index).index());
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

RalHooks the_hooks;
REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &PinnedAllocator::get())

}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(&the_hooks); }

void resize_storage(const c10::Storage& storage, std::size_t bytes) {
  TORCH_CHECK(storage.unsafeGetStorageImpl()->resizable(), "this storage of a ral tensor is not resizable");
  Device& device = Runtime::get().device(storage.device());
  c10::DataPtr data = allocate_on(device, bytes, storage.device());
  const std::size_t kept = std::min(bytes, storage.nbytes());
  if (kept != 0) {
    device.pipelines().synchronize();  // what is queued may still write there
    std::memcpy(data.mutable_get(), storage.data(), kept);
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

}  // namespace ral
