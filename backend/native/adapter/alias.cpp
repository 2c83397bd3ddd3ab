#include "alias.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <cstring>

#include "immortal.h"

namespace ral {

namespace {

thread_local Device* redirect = nullptr;

// Blocks that a kernel of this thread has been given and that nobody has taken over yet. Short: a kernel's outputs and
// scratch.
struct Lent {
  const void* data;
  Block* block;
};
thread_local c10::SmallVector<Lent, 8> lent;

c10::DeleterFnPtr inner_deleter = nullptr;

// The block behind memory that a kernel was lent; forgets that it was lent.
Block* take_lent(const void* data) noexcept {
  for (std::size_t i = lent.size(); i-- > 0;) {
    if (lent[i].data == data) {
      Block* block = lent[i].block;
      lent.erase(lent.begin() + static_cast<std::ptrdiff_t>(i));
      return block;
    }
  }
  return nullptr;
}

// Also torch's raw_deallocate: oneDNN's scratch memory comes back without its DataPtr, so the address must be enough.
void delete_lent(void* data) {
  Block* block = take_lent(data);
  if (block == nullptr && Runtime::started()) {
    block = Runtime::instance().find_block(data);  // it outlived the kernel's call, or comes from another thread
  }
  if (block != nullptr) {
    block->extent->owner->free(block);
  } else {
    inner_deleter(data);
  }
}

// The DataPtr of a result as the device's own; nothing where its memory is not a device's.
c10::DataPtr take_over(c10::StorageImpl& storage, c10::Device label) {
  if (storage.data_ptr().get_deleter() != &delete_lent) {
    return {nullptr, label};
  }
  Block* block = take_lent(storage.data());
  if (block == nullptr) {
    block = Runtime::get().find_block(storage.data());
  }
  if (block == nullptr) {
    return {nullptr, label};
  }
  c10::DataPtr old = storage.set_data_ptr(c10::DataPtr(nullptr, c10::kCPU));
  old.release_context();
  return own_block(block, label);
}

class RedirectingAllocator final : public c10::Allocator {
 public:
  explicit RedirectingAllocator(c10::Allocator* inner) : inner_(inner) { inner_deleter = inner->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (C10_LIKELY(redirect == nullptr) || bytes == 0) {
      return inner_->allocate(bytes);
    }
    Block* block = allocate_block(*redirect, bytes);
    void* data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(block->address));
    lent.push_back({data, block});
    return {data, data, &delete_lent, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_lent; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_->copy_data(to, from, bytes); }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return inner_->is_simple_data_ptr(data); }

 private:
  c10::Allocator* inner_;
};

c10::Allocator* cpu_allocator() {
  static c10::Allocator* const allocator = c10::GetCPUAllocator();
  return allocator;
}

c10::Storage make_storage(c10::DataPtr data, std::size_t bytes, c10::Allocator* allocator) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator,
                                               /*resizable=*/true);
}

c10::Allocator* device_allocator() {
  static c10::Allocator* const allocator = c10::GetAllocator(kRal);
  return allocator;
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides, std::int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

}  // namespace

AllocateOn::AllocateOn(Device& device) noexcept : previous_(redirect) { redirect = &device; }
AllocateOn::~AllocateOn() { redirect = previous_; }

void forget_lent() noexcept { lent.clear(); }

void install_redirecting_allocator() {
  static Immortal<RedirectingAllocator> allocator;
  if (allocator.get() == nullptr) {
    c10::SetCPUAllocator(allocator.emplace(c10::GetCPUAllocator()), /*priority=*/255);
  }
}

at::Tensor make_tensor(c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       std::int64_t offset) {
  return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, dtype, sizes, strides, offset);
}

Aliases::Pair* Aliases::find_device(const c10::StorageImpl* storage) {
  for (Pair& pair : pairs_) {
    if (pair.device.unsafeGetStorageImpl() == storage) {
      return &pair;
    }
  }
  return nullptr;
}

Aliases::Pair* Aliases::find_cpu(const c10::StorageImpl* storage) {
  for (Pair& pair : pairs_) {
    if (pair.cpu.unsafeGetStorageImpl() == storage) {
      return &pair;
    }
  }
  return nullptr;
}

at::Tensor Aliases::to_cpu(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  Pair* pair = find_device(storage.unsafeGetStorageImpl());
  if (pair == nullptr) {
    if (Block* block = block_of(storage.data_ptr())) {
      block->uses.store(block->uses.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    c10::DataPtr data(const_cast<void*>(storage.data()), c10::kCPU);
    pairs_.push_back({storage, make_storage(std::move(data), storage.nbytes(), cpu_allocator())});
    pair = &pairs_.back();
  }
  return tensor_over(pair->cpu, c10::DispatchKey::CPU, tensor.dtype(), tensor.sizes(), tensor.strides(),
                     tensor.storage_offset());
}

at::Tensor Aliases::to_device(const at::Tensor& result) {
  if (!result.defined() || result.device().type() == kRal) {
    return result;
  }
  const c10::Storage& storage = result.storage();
  Pair* pair = find_cpu(storage.unsafeGetStorageImpl());
  if (pair == nullptr) {
    const c10::Device label = device_.torch_device();
    c10::DataPtr data = take_over(*storage.unsafeGetStorageImpl(), label);
    if (data.get() == nullptr && storage.nbytes() != 0) {
      data = allocate_on(device_, storage.nbytes(), label);
      std::memcpy(data.mutable_get(), storage.data(), storage.nbytes());
    }
    pairs_.push_back({make_storage(std::move(data), storage.nbytes(), device_allocator()), storage});
    pair = &pairs_.back();
  }
  return make_tensor(pair->device, result.dtype(), result.sizes(), result.strides(), result.storage_offset());
}

void Aliases::follow(const at::Tensor& tensor, const at::Tensor& alias) {
  const c10::Storage& cpu = alias.storage();
  const c10::Storage& device = tensor.storage();
  if (cpu.data() != device.data()) {
    c10::DataPtr data = take_over(*cpu.unsafeGetStorageImpl(), tensor.device());
    if (data.get() != nullptr) {
      device.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
      device.set_nbytes(cpu.nbytes());
    }
  }
  if (tensor.sizes() != alias.sizes() || tensor.strides() != alias.strides() ||
      tensor.storage_offset() != alias.storage_offset()) {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
  }
}

}  // namespace ral
