// One call of an operator, taken off torch's stack: what a worker needs to run it later, without a reference to any
// tensor of the program. Device memory is reused in stream order, so its address is enough; numbers and small tensors
// of the host come along as copies.
#pragma once

#include <c10/util/SmallVector.h>

#include "operator.h"
#include "runtime.h"

namespace ral {

struct TensorDesc {
  enum class Where : std::uint8_t { kDevice, kHost, kUndefined };
  void* data = nullptr;  // of the storage
  std::size_t storage_bytes = 0;
  std::int64_t offset = 0;  // in elements
  std::uint32_t shape = 0;  // in Call's shapes: sizes, then strides; kHost: in its host tensors
  std::uint16_t rank = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  Where where = Where::kUndefined;
  bool conj = false;  // what it holds is to be read conjugated, or negated
  bool neg = false;
};

class Call {
 public:
  // Reads the arguments, which stay on the stack. Raises where they lie on different devices or outside of their
  // memory.
  Call(const Operator& op, Device& device, const Stack& stack);
  Call(Call&&) = default;
  Call& operator=(Call&&) = default;
  Call(const Call&) = delete;

  const Operator& op() const { return *op_; }
  Device& device() const { return *device_; }
  const PlanKey& key() const { return key_; }
  const ShapeClass& shape() const { return shape_; }
  // Indices are, masks are not known without reading them.
  bool depends_on_data() const { return op_->may_depend_on_data() && (masked_ || !op_->mixes_devices()); }
  // Some operators are called with tensors whose conjugation or negation nobody has carried out yet.
  bool has_lazy_tensors() const { return lazy_; }
  // Of the device's tensors among the arguments: each counts as a whole and once, also where it is read and written.
  std::int64_t bytes() const { return bytes_; }

  // In schema order. An argument of tensors is an integer: how many of tensors() it has, one after the other.
  const c10::SmallVector<c10::IValue, 8>& values() const { return values_; }
  const c10::SmallVector<TensorDesc, 5>& tensors() const { return tensors_; }
  const c10::SmallVector<at::Tensor, 1>& host_tensors() const { return host_tensors_; }
  c10::IntArrayRef sizes(const TensorDesc& tensor) const { return {shapes_.data() + tensor.shape, tensor.rank}; }
  c10::IntArrayRef strides(const TensorDesc& tensor) const {
    return {shapes_.data() + tensor.shape + tensor.rank, tensor.rank};
  }
  // An out= argument that the call resizes, as it is from now on.
  void set_layout(std::size_t tensor, void* data, std::size_t storage_bytes, const TensorLayout& layout,
                  std::int64_t offset);

  // Calls visit(spec, first tensor, count) for each argument of tensors.
  template <class Visitor>
  void for_each_argument(Visitor&& visit) const {
    std::size_t next = 0;
    for (const ArgSpec& spec : op_->arguments()) {
      if (spec.kind == ArgKind::kGenerator || spec.kind == ArgKind::kDevice) {
        continue;
      }
      const c10::IValue& value = values_[spec.position];
      const std::size_t count = value.isInt() ? static_cast<std::size_t>(value.toInt()) : 0;
      visit(spec, next, count);
      next += count;
    }
  }

 private:
  void add_argument(const ArgSpec& spec, const c10::IValue& value);
  void add_tensor(const at::Tensor& tensor);
  void add_device_tensor(const at::Tensor& tensor);
  void add_host_tensor(const at::Tensor& tensor);
  void add_value(std::size_t position, const c10::IValue& value);

  const Operator* op_;
  Device* device_;
  PlanKey key_;
  ShapeClass shape_;
  std::int64_t bytes_ = 0;
  bool masked_ = false;
  bool lazy_ = false;
  c10::SmallVector<c10::IValue, 8> values_;
  c10::SmallVector<TensorDesc, 5> tensors_;
  c10::SmallVector<std::int64_t, 24> shapes_;
  c10::SmallVector<at::Tensor, 1> host_tensors_;
};

// The tensors of a call as CPU tensors over the device's memory; those that share a storage there share one here, and
// those that look at it in the same way are one tensor.
class CallAliases {
 public:
  explicit CallAliases(const Call& call);
  // The arguments as ATen's CPU kernel takes them.
  Stack stack() const { return stack(tensors_); }
  // The same with other tensors in the place of the aliases.
  Stack stack(c10::ArrayRef<at::Tensor> tensors) const;
  const at::Tensor& tensor(std::size_t index) const { return tensors_[index]; }
  std::size_t size() const { return tensors_.size(); }
  // Replaces each alias by a copy of its own (for a kernel that must not see the device's memory) and back.
  void detach();
  void write_back() const;

 private:
  std::size_t earlier_in_storage(std::size_t index) const;

  const Call& call_;
  c10::SmallVector<at::Tensor, 5> tensors_;
};

}  // namespace ral
