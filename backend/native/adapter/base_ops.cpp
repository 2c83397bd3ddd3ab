// The operators without which no tensor exists: making one, looking at it differently, changing what is behind it.
// None of them is work for a device, so none of them is an event.
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/record_stream_ops.h>
#include <ATen/ops/resize_ops.h>
#include <ATen/ops/set_ops.h>
#include <ATen/ops/view_ops.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/library.h>

#include "alias.h"
#include "hooks.h"
#include "runtime.h"

namespace ral {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

Device& device_of(std::optional<c10::Device> device) {
  return Runtime::get().device(device.has_value() ? device->index() : current_device());
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "only CPU tensors can be pinned");
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "ral devices hold strided tensors only");
}

at::Tensor with_memory(Device& device, c10::ScalarType dtype, std::size_t bytes) {
  const c10::Device label = device.torch_device();
  static c10::Allocator* const allocator = c10::GetAllocator(kRal);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocate_on(device, bytes, label), allocator, true);
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kKeys, c10::scalarTypeToTypeMeta(dtype));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pin_memory,
                 std::optional<c10::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  const c10::ScalarType type = c10::dtype_or_default(dtype);
  const std::size_t bytes = at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type));
  at::Tensor result = with_memory(device_of(device), type, bytes);
  if (size.size() != 1 || size[0] != 0) {
    result.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  }
  if (memory_format.has_value() && *memory_format != c10::MemoryFormat::Contiguous) {
    result.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  return result;
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(size);
  const c10::ScalarType type = c10::dtype_or_default(dtype);
  const std::size_t bytes = at::detail::computeStorageNbytes(size, stride, c10::elementSize(type));
  at::Tensor result = with_memory(device_of(device), type, bytes);
  result.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return result;
}

// A tensor of zeros without memory: torch knows it by its key and never looks behind it.
at::Tensor efficient_zeros(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                           std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                           std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::native::ZeroTensorAllocator nothing(device_of(device).torch_device());
  return at::detail::empty_generic(size, &nothing, kKeys | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

at::Tensor same_storage(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::int64_t offset) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(self.storage()),
                                                         self.key_set(), self.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return result;
}

void grow_to_fit(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::int64_t offset) {
  const std::size_t bytes =
      at::detail::computeStorageNbytes(size, stride, self.itemsize(), static_cast<std::size_t>(offset));
  if (bytes > self.storage().nbytes()) {
    resize_storage(self.storage(), bytes);
  }
}

at::Tensor as_strided(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride,
                      std::optional<std::int64_t> storage_offset) {
  const std::int64_t offset = storage_offset.value_or(self.storage_offset());
  TORCH_CHECK(size.size() == stride.size(), "as_strided: sizes and strides must have the same length");
  TORCH_CHECK(offset >= 0, "as_strided: the storage offset must not be negative");
  at::detail::check_size_nonnegative(size);
  const std::size_t needed =
      at::detail::computeStorageNbytes(size, stride, self.itemsize(), static_cast<std::size_t>(offset));
  TORCH_CHECK(needed <= self.storage().nbytes() || self.numel() == 0 || needed == 0, "as_strided: size ", size,
              ", stride ", stride, " and offset ", offset, " need ", needed, " bytes, the storage has ",
              self.storage().nbytes());
  return same_storage(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) {
  const at::DimVector inferred = at::infer_size_dv(size, self.numel());
  const auto stride = at::detail::computeStride(self.sizes(), self.strides(), inferred);
  TORCH_CHECK(
      stride.has_value(),
      "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
      "contiguous subspaces). Use .reshape(...) instead.");
  return same_storage(self, inferred, *stride, self.storage_offset());
}

at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return same_storage(self, size, stride, self.storage_offset());
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size,
                          std::optional<c10::MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(size);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    const std::size_t bytes = at::detail::computeStorageNbytesContiguous(
        size, self.itemsize(), static_cast<std::size_t>(self.storage_offset()));
    impl->set_sizes_contiguous(size);
    if (self.numel() != 0 && bytes > self.storage().nbytes()) {
      resize_storage(self.storage(), bytes);
    }
  }
  if (memory_format.has_value() && *memory_format != c10::MemoryFormat::Preserve) {
    impl->empty_tensor_restride(*memory_format);
  }
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, std::int64_t offset, c10::IntArrayRef size,
                               c10::IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device() || source.device().type() == kRal, "set_: the storage is on ",
              source.device(), ", the tensor on ", self.device());
  at::native::checkSetStorage(self, std::move(source), offset, size, stride, /*check_offset_in_bounds=*/false);
  at::DimVector contiguous;
  if (stride.data() == nullptr) {
    contiguous.assign(size.size(), 1);
    for (std::size_t i = size.size(); i-- > 1;) {
      contiguous[i - 1] = contiguous[i] * std::max<std::int64_t>(size[i], 1);
    }
    stride = contiguous;
  }
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  if (self.numel() != 0) {
    grow_to_fit(self, size, stride, offset);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage_offset(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() != source.unsafeGetTensorImpl()) {
    return set_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
  }
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  Device& device = Runtime::get().device(self.device());
  c10::Storage nothing = with_memory(device, self.scalar_type(), 0).storage();
  return set_storage_offset(self, std::move(nothing), 0, {0}, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  c10::getDeviceAllocator(kRal)->recordStream(self.storage().data_ptr(), stream);
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.storage().is_alias_of(other.storage()) && self.storage_offset() == other.storage_offset() &&
         self.sizes() == other.sizes() && self.strides() == other.strides();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zeros);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("is_set_to", &is_set_to);
  m.impl("record_stream", &record_stream);
}

}  // namespace ral
