#include "copy.h"

#include <ATen/EmptyTensor.h>
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

struct Route {
  Direction direction;
  Device* device;  // whose row the transfer is on
  std::uint8_t stream;
  std::int64_t other;  // the other device, or -1
};

Route route_of(const at::Tensor& from, const at::Tensor& to) {
  Runtime& runtime = Runtime::get();
  if (from.device().type() != kRal) {
    return {trace::kHostToDevice, &runtime.device(to.device()), kCopyInStream, -1};
  }
  if (to.device().type() != kRal) {
    return {trace::kDeviceToHost, &runtime.device(from.device()), kCopyOutStream, -1};
  }
  if (from.device() == to.device()) {
    return {trace::kWithinDevice, &runtime.device(to.device()), kComputeStream, -1};
  }
  return {trace::kDeviceToDevice, &runtime.device(to.device()), kCopyInStream, from.device().index()};
}

bool same_bytes(const at::Tensor& from, const at::Tensor& to) {
  return from.dtype() == to.dtype() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
         to.is_non_overlapping_and_dense() && from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg() &&
         from.layout() == c10::kStrided && to.layout() == c10::kStrided;
}

bool may_overlap(const at::Tensor& a, const at::Tensor& b) { return a.storage().is_alias_of(b.storage()); }

at::Tensor on_cpu(Aliases& aliases, const at::Tensor& tensor) {
  if (tensor.device().type() != kRal) {
    return tensor;
  }
  at::Tensor alias = aliases.to_cpu(tensor);
  alias._set_conj(tensor.is_conj());
  alias._set_neg(tensor.is_neg());
  return alias;
}

void move_bytes(Device& device, const at::Tensor& from, const at::Tensor& to) {
  Aliases aliases(device);
  const at::Tensor source = on_cpu(aliases, from);
  const at::Tensor target = on_cpu(aliases, to);
  if (same_bytes(from, to) && !may_overlap(from, to)) {
    std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), static_cast<std::size_t>(to.nbytes()));
  } else {
    // What a copy engine with strides and conversions does, ATen's CPU copy does here.
    const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
    at::_ops::copy_::call(const_cast<at::Tensor&>(target), source, false);
  }
}

class CopyWork : public Work {
 public:
  CopyWork(const Route& route, const at::Tensor& from, const at::Tensor& to, const events::Launch& launch)
      : Work{WorkKind::kTransfer, launch.name()}, route_(route), from_(from), to_(to), started_(launch) {}

  void run() {
    const std::uint64_t start = started_.active() ? events::now() : 0;
    move_bytes(*route_.device, from_, to_);
    if (started_.active()) {
      started_.work(trace::Kind::kTransfer, start, events::now(), static_cast<std::int64_t>(to_.nbytes()),
                    static_cast<std::uint64_t>(route_.other), route_.direction);
    }
  }

 private:
  Route route_;
  at::Tensor from_;
  at::Tensor to_;
  events::Started started_;
};

const events::Name& route_name() {
  static const events::Name name("copy");
  return name;
}

}  // namespace

void copy(const at::Tensor& self, const at::Tensor& destination, const events::Name& routed, SyncReason sync) {
  if (destination.numel() == 0) {
    return;
  }
  const Route route = route_of(self, destination);
  events::Launch launch(routed, route.device->index(), route.stream);
  launch.set_route(route_name());
  Stream& stream = route.device->stream(route.stream);
  stream.submit(CopyWork(route, self, destination, launch));
  if (route.direction == trace::kDeviceToHost && sync != SyncReason::kNone) {
    const events::Sync waiting(launch.name(), route.device->index(), route.stream,
                               route.device->stream(kComputeStream).last_name(), sync == SyncReason::kForced);
    route.device->stream(kComputeStream).wait();
    stream.wait();
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

namespace {

const events::Name& copy_from_name() {
  static const events::Name name("aten::_copy_from");
  return name;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  const bool to_host = destination.device().type() != kRal;
  if (self.sizes() == destination.sizes()) {
    copy(self, destination, copy_from_name(), to_host && !non_blocking ? SyncReason::kAsked : SyncReason::kNone);
  } else {
    copy(self.expand(destination.sizes()), destination, copy_from_name(),
         to_host && !non_blocking ? SyncReason::kAsked : SyncReason::kNone);
  }
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
