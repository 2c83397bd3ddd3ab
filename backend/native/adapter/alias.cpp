#include "alias.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>

#include "copy.h"
#include "immortal.h"

namespace ral {

namespace {

thread_local c10::SmallVectorImpl<HandOut::Place>* places = nullptr;

c10::DeleterFnPtr inner_deleter = nullptr;

// Also torch's raw_deallocate: oneDNN's scratch memory comes back without its DataPtr, so the address must be enough.
void give_back(void* data) {
  if (places != nullptr) {
    for (HandOut::Place& place : *places) {
      if (place.data == data) {
        place.taken = false;
        return;
      }
    }
  }
  inner_deleter(data);
}

class HandingAllocator final : public c10::Allocator {
 public:
  explicit HandingAllocator(c10::Allocator* inner) : inner_(inner) { inner_deleter = inner->raw_deleter(); }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (C10_LIKELY(places == nullptr)) {
      return inner_->allocate(bytes);
    }
    for (HandOut::Place& place : *places) {
      if (!place.taken && place.bytes == bytes) {
        place.taken = true;
        return {place.data, place.data, &give_back, c10::kCPU};
      }
    }
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { inner_->copy_data(to, from, bytes); }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return inner_->is_simple_data_ptr(data); }

 private:
  c10::Allocator* inner_;
};

c10::Storage make_storage(c10::DataPtr data, std::size_t bytes, c10::Allocator* allocator) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator,
                                               /*resizable=*/true);
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides, std::int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

}  // namespace

HandOut::HandOut(c10::SmallVectorImpl<Place>& to_hand_out) noexcept : previous_(places) { places = &to_hand_out; }
HandOut::~HandOut() { places = previous_; }

void install_handing_allocator() {
  static Immortal<HandingAllocator> allocator;
  if (allocator.get() == nullptr) {
    c10::SetCPUAllocator(allocator.emplace(c10::GetCPUAllocator()), /*priority=*/255);
  }
}

c10::Storage storage_over(void* data, std::size_t bytes) {
  static c10::Allocator* const allocator = c10::GetCPUAllocator();
  return make_storage(c10::DataPtr(data, c10::kCPU), bytes, allocator);
}

at::Tensor cpu_tensor(c10::Storage storage, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::int64_t offset) {
  return tensor_over(std::move(storage), c10::DispatchKey::CPU, c10::scalarTypeToTypeMeta(dtype), sizes, strides,
                     offset);
}

at::Tensor make_tensor(c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       std::int64_t offset) {
  return tensor_over(std::move(storage), c10::DispatchKey::PrivateUse1, dtype, sizes, strides, offset);
}

c10::Storage device_storage(Device& device, std::size_t bytes) {
  static c10::Allocator* const allocator = c10::GetAllocator(kRal);
  return make_storage(allocate_on(device, bytes, device.torch_device()), bytes, allocator);
}

at::Tensor Aliases::to_cpu(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  auto known = std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
    return pair.device.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
  });
  if (known == pairs_.end()) {
    pairs_.push_back({storage, storage_over(const_cast<void*>(storage.data()), storage.nbytes())});
    known = pairs_.end() - 1;
  }
  at::Tensor alias =
      cpu_tensor(known->cpu, tensor.scalar_type(), tensor.sizes(), tensor.strides(), tensor.storage_offset());
  alias._set_conj(tensor.is_conj());
  alias._set_neg(tensor.is_neg());
  return alias;
}

at::Tensor Aliases::to_device(const at::Tensor& result) {
  if (!result.defined() || result.device().type() == kRal) {
    return result;
  }
  const c10::Storage& storage = result.storage();
  for (const Pair& pair : pairs_) {
    if (pair.cpu.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
      at::Tensor view =
          make_tensor(pair.device, result.dtype(), result.sizes(), result.strides(), result.storage_offset());
      view._set_conj(result.is_conj());
      view._set_neg(result.is_neg());
      return view;
    }
  }
  return upload(device_, result, SyncReason::kAsked);  // whoever made it may keep it
}

}  // namespace ral
