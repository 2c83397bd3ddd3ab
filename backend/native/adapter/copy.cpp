#include "copy.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_copy_from_and_resize_ops.h>
#include <ATen/ops/_copy_from_ops.h>
#include <ATen/ops/_local_scalar_dense_cpu_dispatch.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/copy_ops.h>
#include <torch/library.h>

#include <cstring>

#include "alias.h"
#include "hooks.h"

namespace ral {

namespace {

using trace::Direction;

// What a blocking copy from ordinary memory takes along, so that the host need not wait.
constexpr std::int64_t kStagedBytes = std::int64_t{1} << 20;

struct Way {
  Direction direction;
  Device* device;  // whose row the transfer is on, and whose current stream it goes through
  Pipeline pipeline;
  Device* source;  // the other device, or nullptr
};

Way way_of(const at::Tensor& from, const at::Tensor& to) {
  Runtime& runtime = Runtime::get();
  if (from.device().type() != kRal) {
    return {trace::kHostToDevice, &runtime.device(to.device()), Pipeline::kCopyIn, nullptr};
  }
  if (to.device().type() != kRal) {
    return {trace::kDeviceToHost, &runtime.device(from.device()), Pipeline::kCopyOut, nullptr};
  }
  if (from.device() == to.device()) {
    return {trace::kWithinDevice, &runtime.device(to.device()), Pipeline::kCompute, nullptr};
  }
  return {trace::kDeviceToDevice, &runtime.device(to.device()), Pipeline::kCopyIn, &runtime.device(from.device())};
}

bool is_of_one_vendor(const Way& way) {
  return way.source == nullptr || way.source->info().source == way.device->info().source;
}

// One side of a copy. Memory of a device is known by its address alone, for it is reused in stream order; a host tensor
// is kept, and given back to a thread of the program: its last reference may be Python's.
class Side {
 public:
  explicit Side(const at::Tensor& tensor)
      : data_(const_cast<void*>(tensor.storage().data())),
        storage_bytes_(tensor.storage().nbytes()),
        offset_(tensor.storage_offset()),
        dtype_(tensor.scalar_type()),
        conj_(tensor.is_conj()),
        neg_(tensor.is_neg()),
        sizes_(tensor.sizes()),
        strides_(tensor.strides()) {
    if (tensor.device().type() != kRal) {
      host_ = tensor;
    }
  }
  Side(Side&&) = default;
  ~Side() { give_back_on_host(std::move(host_)); }

  at::Tensor on_cpu() const {
    if (host_.defined()) {
      return host_;
    }
    at::Tensor alias = cpu_tensor(storage_over(data_, storage_bytes_), dtype_, sizes_, strides_, offset_);
    alias._set_conj(conj_);
    alias._set_neg(neg_);
    return alias;
  }

 private:
  void* data_;
  std::size_t storage_bytes_;
  std::int64_t offset_;
  c10::ScalarType dtype_;
  bool conj_;
  bool neg_;
  c10::DimVector sizes_;
  c10::DimVector strides_;
  at::Tensor host_;
};

bool same_bytes(const at::Tensor& from, const at::Tensor& to) {
  return from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
         to.is_non_overlapping_and_dense() && from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg() &&
         from.layout() == c10::kStrided && to.layout() == c10::kStrided;
}

ral_direction in_c(Direction direction) {
  return direction == trace::kHostToDevice   ? RAL_HOST_TO_DEVICE
         : direction == trace::kDeviceToHost ? RAL_DEVICE_TO_HOST
                                             : RAL_DEVICE_TO_DEVICE;
}

// By the vendor's own copy engine where it has one, and where the bytes of both sides follow each other.
bool moved_by_vendor(const Device& device, Direction direction, const at::Tensor& from, const at::Tensor& to) {
  const DeviceInfo& info = device.info();
  return direction != trace::kWithinDevice && same_bytes(from, to) &&
         info.source->copy(info.vendor_index, in_c(direction), reinterpret_cast<std::uintptr_t>(to.mutable_data_ptr()),
                           reinterpret_cast<std::uintptr_t>(from.const_data_ptr()), to.nbytes());
}

void move_bytes(const at::Tensor& from, const at::Tensor& to) {
  if (same_bytes(from, to)) {
    std::memmove(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<std::size_t>(to.nbytes()));
  } else {
    // What a copy engine with strides and conversions does, ATen's CPU copy does here.
    at::_ops::copy_::call(const_cast<at::Tensor&>(to), from, false);
  }
}

class CopyWork final : public Work {
 public:
  CopyWork(const Way& way, Side&& from, Side&& to, std::int64_t bytes, const events::Launch& launch)
      : Work(WorkKind::kTransfer, way.pipeline, launch.name()),
        vendor_(is_of_one_vendor(way) ? way.device : nullptr),
        direction_(way.direction),
        other_(way.source != nullptr ? way.source->index() : -1),
        bytes_(bytes),
        from_(std::move(from)),
        to_(std::move(to)),
        started_(launch) {
    site = launch.site();
  }

  void run() override {
    const at::Tensor from = from_.on_cpu();
    const at::Tensor to = to_.on_cpu();
    if (vendor_ == nullptr || !moved_by_vendor(*vendor_, direction_, from, to)) {
      move_bytes(from, to);
    }
  }
  void ended(const Times& times) noexcept override {
    if (started_.active()) {
      started_.work(trace::Kind::kTransfer, times.start_ticks, times.end_ticks, bytes_,
                    static_cast<std::uint64_t>(other_), direction_);
    }
  }
  std::uint64_t model_ns(const DeviceModel& model) const noexcept override {
    const auto bytes = static_cast<std::uint64_t>(bytes_);
    return direction_ == trace::kWithinDevice ? model.kernel_ns(2 * bytes) : model.copy_ns(bytes);
  }
  std::string what() const override { return "a copy"; }

 private:
  const Device* vendor_;  // whose copy engine may do it
  Direction direction_;
  std::int64_t other_;
  std::int64_t bytes_;
  Side from_;
  Side to_;
  events::Started started_;
};

const events::Name& copy_route() {
  static const events::Name name("copy");
  return name;
}

void wait_for_copy(const Way& way, const Stream& stream, std::uint64_t ticket, std::uint32_t waited_for,
                   const events::Launch& launch, SyncReason sync) {
  {
    const events::Sync waiting(launch.name(), way.device->index(), way.device->current_stream_row(), waited_for,
                               sync == SyncReason::kForced);
    stream.wait(ticket);
  }
  // What it copied may come from another device, where something failed.
  Runtime::get().for_each([](Device& device) { device.raise_failure(); });
}

at::Tensor staged(const at::Tensor& from) {
  at::Tensor copy = from.is_non_overlapping_and_dense()
                        ? at::Tensor(at::detail::empty_strided_cpu(from.sizes(), from.strides(), from.scalar_type()))
                        : at::Tensor(at::detail::empty_cpu(from.sizes(), from.scalar_type()));
  const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::_ops::copy_::call(copy, from, false);
  return copy;
}

}  // namespace

const events::Name& copy_from_name() {
  static const events::Name name("aten::_copy_from");
  return name;
}

void copy(const at::Tensor& self, const at::Tensor& destination, const events::Name& routed, SyncReason sync) {
  give_back_now();
  if (destination.numel() == 0) {
    return;
  }
  at::assert_no_internal_overlap(destination);
  if (self.storage().is_alias_of(destination.storage())) {
    at::assert_no_partial_overlap(destination, self);
  }
  const Way way = way_of(self, destination);
  Stream& stream = way.device->current_stream();
  events::Launch launch(routed, way.device->index(), way.device->current_stream_row(way.pipeline));
  launch.set_route(copy_route());
  const bool stage = way.direction == trace::kHostToDevice && sync != SyncReason::kNone && !self.is_conj() &&
                     !self.is_neg() && static_cast<std::int64_t>(self.nbytes()) <= kStagedBytes;
  for (const at::Tensor* tensor : {&self, &destination}) {
    if (tensor->device().type() == kRal) {
      Runtime::get().device(tensor->device()).check_access(*tensor);
    }
  }
  // Of another device: not before what that one still has to do to it, nor it before the copy.
  Stream* source = way.source != nullptr ? &way.source->current_stream() : nullptr;
  if (source != nullptr) {
    stream.wait_for(source->record());
  }
  const std::uint32_t waited_for = stream.last_name();
  const std::uint64_t ticket = stream.submit<CopyWork>(way, Side(stage ? staged(self) : self), Side(destination),
                                                       static_cast<std::int64_t>(destination.nbytes()), launch);
  if (source != nullptr) {
    source->wait_for(stream.record());
  }
  const bool waits = (way.direction == trace::kDeviceToHost || (way.direction == trace::kHostToDevice && !stage)) &&
                     sync != SyncReason::kNone;
  if (waits) {
    wait_for_copy(way, stream, ticket, waited_for, launch, sync);
  }
}

at::Tensor fetch(const at::Tensor& tensor, const events::Name& routed, SyncReason sync) {
  const bool dense = tensor.is_non_overlapping_and_dense();
  at::Tensor result =
      dense ? at::Tensor(at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type()))
            : at::Tensor(at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type()));
  copy(tensor, result, routed, sync);
  return result;
}

at::Tensor upload(Device& device, const at::Tensor& host, SyncReason sync) {
  const bool dense = host.is_non_overlapping_and_dense();
  const std::size_t bytes = dense ? at::detail::computeStorageNbytes(host.sizes(), host.strides(), host.itemsize())
                                  : at::detail::computeStorageNbytesContiguous(host.sizes(), host.itemsize());
  at::Tensor tensor = make_tensor(device_storage(device, bytes), host.dtype(), {0}, {1}, 0);
  if (dense) {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
  } else {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(host.sizes());
  }
  copy(host, tensor, copy_from_name(), sync);
  return tensor;
}

namespace {

// Without waiting the host may go on only where its own memory is pinned: it knows that it must not touch that yet.
SyncReason sync_of(const at::Tensor& host, bool non_blocking) {
  return !non_blocking ? SyncReason::kAsked : host.is_pinned() ? SyncReason::kNone : SyncReason::kForced;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  const at::Tensor from = self.sizes() == destination.sizes() ? self : self.expand(destination.sizes());
  const at::Tensor& host = self.device().type() == kRal ? destination : self;
  copy(from, destination, copy_from_name(), sync_of(host, non_blocking));
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  const_cast<at::Tensor&>(destination).resize_(self.sizes());
  return copy_from(self, destination, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  static const events::Name name("aten::_local_scalar_dense");
  TORCH_CHECK(self.numel() == 1, "a tensor with ", self.numel(), " elements cannot be converted to a number");
  return at::cpu::_local_scalar_dense(fetch(self, name, SyncReason::kAsked));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}

// copy_ resolves conjugation itself; without these it would call itself for ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace ral
