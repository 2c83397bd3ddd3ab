#include "call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>

#include <algorithm>
#include <cstring>

#include "alias.h"
#include "generator.h"

namespace ral {

namespace {

// A copy that no Python object hangs on: whoever drops it last may be a worker.
at::Tensor private_copy(const at::Tensor& tensor) {
  at::Tensor copy = at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
  if (tensor.dim() == 0 && !tensor.is_conj() && !tensor.is_neg()) {
    std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.itemsize());
    copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
    return copy;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  at::_ops::copy_::call(copy, tensor, false);
  return copy;
}

// With its type: None, False and the number 0 are different arguments.
void add_to_key(PlanKey& key, const c10::IValue& value) {
  if (value.isNone()) {
    key.add(11);
  } else if (value.isInt()) {
    key.add(12);
    key.add(static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    key.add(value.toBool() ? 14 : 13);
  } else if (value.isDouble()) {
    key.add(15);
    key.add(std::hash<double>()(value.toDouble()));
  } else if (value.isComplexDouble()) {
    key.add(10);
  } else if (value.isList()) {
    key.add(16);
    key.add(value.toListRef().size());
    for (const c10::IValue& element : value.toListRef()) {
      add_to_key(key, element);
    }
  } else if (value.isString()) {
    key.add(17);
    key.add(std::hash<std::string_view>()(value.toStringRef()));
  } else {
    key.add(18);
    key.add(c10::IValue::hash(value));
  }
}

std::uint64_t type_of_number(const c10::IValue& value) {
  return value.isNone() ? 5 : value.isInt() ? 6 : value.isDouble() ? 7 : value.isBool() ? 8 : 9;
}

}  // namespace

Call::Call(const Operator& op, Device& device, const Stack& stack) : op_(&op), device_(&device) {
  const c10::IValue* arguments = stack.data() + (stack.size() - op.argument_count());
  key_.add(reinterpret_cast<std::uintptr_t>(&device));  // lives for ever; its number may be another's one day
  key_.add(static_cast<std::uint64_t>(c10::get_default_dtype_as_scalartype()));
  auto spec = op.arguments().begin();
  for (std::size_t i = 0; i < op.argument_count(); ++i) {
    if (spec != op.arguments().end() && spec->position == i) {
      add_argument(*spec++, arguments[i]);
    } else {
      add_value(i, arguments[i]);
    }
  }
}

void Call::add_argument(const ArgSpec& spec, const c10::IValue& value) {
  switch (spec.kind) {
    case ArgKind::kGenerator: {
      const at::Generator given = value.isGenerator() ? value.toGenerator() : at::Generator();
      values_.emplace_back(cpu_generator_of(given.defined() ? given : device_->default_generator()));
      return;
    }
    case ArgKind::kDevice:
      values_.push_back(value.isDevice() ? c10::IValue(c10::Device(c10::kCPU)) : value);
      return;
    case ArgKind::kTensor:
      if (!value.isTensor()) {
        values_.push_back(value);
        key_.add(1);
        return;
      }
      values_.emplace_back(std::int64_t{1});
      TORCH_CHECK(!spec.written || !value.toTensor().defined() || value.toTensor().device().type() == kRal,
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  device_->torch_device(), " and ", value.toTensor().device(), "! (", op_->name().text(), ")");
      add_tensor(value.toTensor());
      return;
    default:
      if (value.isNone()) {
        values_.push_back(value);
        key_.add(2);
        return;
      }
      const c10::ArrayRef<c10::IValue> list = value.toListRef();
      values_.emplace_back(static_cast<std::int64_t>(list.size()));
      key_.add(list.size());
      for (const c10::IValue& element : list) {
        add_tensor(element.isTensor() ? element.toTensor() : at::Tensor());
      }
  }
}

void Call::add_tensor(const at::Tensor& tensor) {
  masked_ = masked_ || (tensor.defined() && !tensors_.empty() &&
                        (tensor.scalar_type() == c10::kBool || tensor.scalar_type() == c10::kByte));
  if (!tensor.defined()) {
    tensors_.emplace_back();
    key_.add(3);
  } else if (tensor.device().type() == kRal) {
    add_device_tensor(tensor);
  } else {
    add_host_tensor(tensor);
  }
}

void Call::add_device_tensor(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().index() == device_->index() || op_->mixes_devices(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              device_->torch_device(), " and ", tensor.device(), "! (", op_->name().text(), ")");
  const c10::Storage& storage = tensor.storage();
  const auto rank = static_cast<std::uint16_t>(tensor.dim());
  TensorDesc& desc = tensors_.emplace_back();
  desc = {const_cast<void*>(storage.data()),
          storage.nbytes(),
          tensor.storage_offset(),
          static_cast<std::uint32_t>(shapes_.size()),
          rank,
          tensor.scalar_type(),
          TensorDesc::Where::kDevice,
          tensor.is_conj(),
          tensor.is_neg()};
  lazy_ = lazy_ || desc.conj || desc.neg;
  device_->check_access(tensor);
  bytes_ += static_cast<std::int64_t>(tensor.nbytes());
  shapes_.append(tensor.sizes().begin(), tensor.sizes().end());
  shapes_.append(tensor.strides().begin(), tensor.strides().end());
  key_.add((desc.conj ? 1U << 30 : 0U) | (desc.neg ? 1U << 29 : 0U) | static_cast<std::uint64_t>(desc.dtype) << 16 |
           rank);
  for (std::size_t i = desc.shape; i < shapes_.size(); ++i) {
    key_.add(static_cast<std::uint64_t>(shapes_[i]));
  }
  // Which earlier tensor it shares memory with, and how.
  for (std::size_t i = 0; !op_->goes_by_element() && i + 1 < tensors_.size(); ++i) {
    if (tensors_[i].data == desc.data && desc.data != nullptr) {
      key_.add(0x100 + i);
      key_.add(static_cast<std::uint64_t>(desc.offset - tensors_[i].offset));
      break;
    }
  }
  shape_.dtypes |= std::uint64_t{1} << static_cast<unsigned>(desc.dtype);
  shape_.rank = std::max<int>(shape_.rank, rank);
  shape_.contiguous = shape_.contiguous && tensor.is_contiguous();
}

void Call::add_host_tensor(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == c10::kCPU && (tensor.dim() == 0 || op_->mixes_devices()),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              device_->torch_device(), " and ", tensor.device(), "! (", op_->name().text(), ")");
  TensorDesc& desc = tensors_.emplace_back();
  desc.where = TensorDesc::Where::kHost;
  desc.shape = static_cast<std::uint32_t>(host_tensors_.size());
  desc.rank = static_cast<std::uint16_t>(tensor.dim());
  desc.dtype = tensor.scalar_type();
  host_tensors_.push_back(private_copy(tensor));
  key_.add(0x10000 | static_cast<std::uint64_t>(desc.dtype) << 1 |
           (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 1 : 0));
  for (const std::int64_t size : tensor.sizes()) {
    key_.add(static_cast<std::uint64_t>(size));
  }
}

// By value, but for numbers that only change what is computed: AdamW has eight of those a step.
void Call::add_value(std::size_t position, const c10::IValue& value) {
  values_.push_back(value);
  if (op_->shapes_result(position)) {
    add_to_key(key_, value);
  } else if (value.isList()) {
    key_.add(value.toListRef().size());
    for (const c10::IValue& element : value.toListRef()) {
      key_.add(type_of_number(element));
    }
  } else {
    key_.add(type_of_number(value));
  }
}

void Call::set_layout(std::size_t tensor, void* data, std::size_t storage_bytes, const TensorLayout& layout,
                      std::int64_t offset) {
  TensorDesc& desc = tensors_[tensor];
  const auto item_bytes = static_cast<std::int64_t>(c10::elementSize(desc.dtype));
  bytes_ += item_bytes * (c10::multiply_integers(layout.sizes) - c10::multiply_integers(sizes(desc)));
  desc.data = data;
  desc.storage_bytes = storage_bytes;
  desc.offset = offset;
  desc.rank = static_cast<std::uint16_t>(layout.sizes.size());
  desc.shape = static_cast<std::uint32_t>(shapes_.size());
  shapes_.append(layout.sizes.begin(), layout.sizes.end());
  shapes_.append(layout.strides.begin(), layout.strides.end());
}

// --- aliases
// ---------------------------------------------------------------------------------------------------------------

namespace {

bool is_same_view(const Call& call, const TensorDesc& a, const TensorDesc& b) {
  return a.conj == b.conj && a.neg == b.neg && a.dtype == b.dtype && a.offset == b.offset &&
         call.sizes(a) == call.sizes(b) && call.strides(a) == call.strides(b);
}

}  // namespace

CallAliases::CallAliases(const Call& call) : call_(call) {
  const auto& descs = call.tensors();
  for (std::size_t i = 0; i < descs.size(); ++i) {
    const TensorDesc& desc = descs[i];
    if (desc.where != TensorDesc::Where::kDevice) {
      tensors_.push_back(desc.where == TensorDesc::Where::kHost ? call.host_tensors()[desc.shape] : at::Tensor());
      continue;
    }
    const std::size_t shared = earlier_in_storage(i);
    if (shared != i && is_same_view(call, descs[shared], desc)) {
      // To ATen an output that is the input itself works in place: it must not be resized.
      tensors_.push_back(tensors_[shared]);
      continue;
    }
    c10::Storage storage = shared != i ? tensors_[shared].storage() : storage_over(desc.data, desc.storage_bytes);
    at::Tensor alias = cpu_tensor(std::move(storage), desc.dtype, call.sizes(desc), call.strides(desc), desc.offset);
    if (C10_UNLIKELY(desc.conj || desc.neg)) {
      alias._set_conj(desc.conj);
      alias._set_neg(desc.neg);
    }
    tensors_.push_back(std::move(alias));
  }
}

// The first tensor over the same memory, of those that look the same if there is one.
std::size_t CallAliases::earlier_in_storage(std::size_t index) const {
  const auto& descs = call_.tensors();
  std::size_t found = index;
  for (std::size_t j = 0; !call_.op().goes_by_element() && descs[index].data != nullptr && j < index; ++j) {
    if (descs[j].where != TensorDesc::Where::kDevice || descs[j].data != descs[index].data) {
      continue;
    }
    if (is_same_view(call_, descs[j], descs[index])) {
      return j;
    }
    found = std::min(found, j);
  }
  return found;
}

Stack CallAliases::stack(c10::ArrayRef<at::Tensor> tensors) const {
  Stack stack(call_.values().begin(), call_.values().end());
  call_.for_each_argument([&](const ArgSpec& spec, std::size_t first, std::size_t count) {
    c10::IValue& value = stack[spec.position];
    if (!value.isInt()) {
      return;
    }
    if (spec.kind == ArgKind::kTensor) {
      value = tensors[first];
      return;
    }
    if (spec.kind == ArgKind::kTensorList) {
      c10::List<at::Tensor> list;
      list.reserve(count);
      for (std::size_t i = 0; i < count; ++i) {
        list.push_back(tensors[first + i]);
      }
      value = std::move(list);
      return;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (std::size_t i = 0; i < count; ++i) {
      const at::Tensor& tensor = tensors[first + i];
      list.push_back(tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt);
    }
    value = std::move(list);
  });
  call_.op().adapt_arguments(stack);
  return stack;
}

void CallAliases::detach() {
  const c10::SmallVector<at::Tensor, 5> originals = tensors_;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (call_.tensors()[i].where != TensorDesc::Where::kDevice) {
      continue;
    }
    const auto first = std::find_if(originals.begin(), originals.end(),
                                    [&](const at::Tensor& tensor) { return tensor.is_same(originals[i]); });
    const auto known = static_cast<std::size_t>(first - originals.begin());
    tensors_[i] = known < i ? tensors_[known] : at::_ops::clone::call(originals[i], std::nullopt);
  }
}

void CallAliases::write_back() const {
  const CallAliases originals(call_);
  call_.for_each_argument([&](const ArgSpec& spec, std::size_t first, std::size_t count) {
    for (std::size_t i = first; spec.written && i < first + count; ++i) {
      if (call_.tensors()[i].where == TensorDesc::Where::kDevice) {
        at::_ops::copy_::call(const_cast<at::Tensor&>(originals.tensors_[i]), tensors_[i], false);
      }
    }
  });
}

}  // namespace ral
