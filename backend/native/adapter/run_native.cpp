// A vendor's kernel: the call translated to the plain C of kernel_abi.h.
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstring>

#include "alias.h"
#include "kernel_abi.h"
#include "router.h"
#include "shape_rules.h"

namespace ral {

namespace {

constexpr ral_tensor kNoTensor = {nullptr, nullptr, nullptr, -1, 0};

// The arguments in C. Arrays are filled first and pointed to at the end: they move while they grow.
class CallArguments {
 public:
  // False: an argument has no form in C; `reason` says which.
  bool add(const c10::IValue& value, std::string* reason) {
    ral_value& out = values_.emplace_back();
    out.tag = RAL_NONE;
    out.count = 0;
    starts_.push_back(0);
    if (value.isNone()) {
      return true;
    }
    if (value.isTensor()) {
      return add_tensor_argument(value.toTensor(), out, reason);
    }
    if (value.isInt() || value.isBool()) {
      out.tag = RAL_INT;
      out.as.i = value.isInt() ? value.toInt() : static_cast<std::int64_t>(value.toBool());
      return true;
    }
    if (value.isDouble()) {
      out.tag = RAL_DOUBLE;
      out.as.d = value.toDouble();
      return true;
    }
    return add_list(value, out, reason);
  }

  const ral_value* finish() {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].tag == RAL_TENSOR || values_[i].tag == RAL_TENSORS) {
        values_[i].as.tensors = tensors_.data() + starts_[i];
      } else if (values_[i].tag == RAL_INTS) {
        values_[i].as.ints = ints_.data() + starts_[i];
      } else if (values_[i].tag == RAL_DOUBLES) {
        values_[i].as.doubles = doubles_.data() + starts_[i];
      }
    }
    return values_.data();
  }
  std::size_t size() const { return values_.size(); }

 private:
  bool add_tensor_argument(const at::Tensor& tensor, ral_value& out, std::string* reason) {
    if (!tensor.defined()) {
      return true;
    }
    if (tensor.device().type() == c10::kCPU && tensor.dim() == 0) {
      return add_number(tensor, out, reason);
    }
    out.tag = RAL_TENSOR;
    out.count = 1;
    starts_.back() = tensors_.size();
    return add_tensor(tensor, reason);
  }

  // A number from the host (`x + 2`) is a number to the kernel too.
  static bool add_number(const at::Tensor& tensor, ral_value& out, std::string* reason) {
    const c10::ScalarType type = tensor.scalar_type();
    if (c10::isIntegralType(type, /*includeBool=*/true)) {
      out.tag = RAL_INT;
      out.as.i = tensor.item().toLong();
      return true;
    }
    if (c10::isFloatingType(type)) {
      out.tag = RAL_DOUBLE;
      out.as.d = tensor.item().toDouble();
      return true;
    }
    *reason = "a number that is neither integer nor floating point";
    return false;
  }

  bool add_tensor(const at::Tensor& tensor, std::string* reason) {
    if (!tensor.defined()) {
      tensors_.push_back(kNoTensor);
      return true;
    }
    if (tensor.device().type() != kRal || tensor.is_conj() || tensor.is_neg()) {
      *reason = "a tensor that is lazily conjugated, negated or not on the device";
      return false;
    }
    tensors_.push_back({tensor.unsafeGetTensorImpl()->mutable_data(), tensor.sizes().data(), tensor.strides().data(),
                        static_cast<std::int32_t>(tensor.dim()), static_cast<std::int32_t>(tensor.scalar_type())});
    return true;
  }

  bool add_list(const c10::IValue& value, ral_value& out, std::string* reason) {
    if (value.isIntList()) {
      const std::vector<std::int64_t> list = value.toIntVector();
      begin_list(out, RAL_INTS, ints_.size(), list.size());
      ints_.append(list.begin(), list.end());
    } else if (value.isBoolList()) {
      const c10::List<bool> list = value.toBoolList();
      begin_list(out, RAL_INTS, ints_.size(), list.size());
      for (const bool flag : list) {
        ints_.push_back(flag ? 1 : 0);
      }
    } else if (value.isDoubleList()) {
      const std::vector<double> list = value.toDoubleVector();
      begin_list(out, RAL_DOUBLES, doubles_.size(), list.size());
      doubles_.append(list.begin(), list.end());
    } else if (value.isTensorList()) {
      const c10::List<at::Tensor> list = value.toTensorList();
      begin_list(out, RAL_TENSORS, tensors_.size(), list.size());
      for (const at::Tensor& tensor : list) {
        if (!add_tensor(tensor, reason)) {
          return false;
        }
      }
    } else if (value.isString()) {
      out.tag = RAL_TEXT;
      out.as.text = value.toStringRef().c_str();
    } else {
      *reason = "an argument of type " + value.tagKind();
      return false;
    }
    return true;
  }

  void begin_list(ral_value& out, ral_tag tag, std::size_t start, std::size_t count) {
    out.tag = tag;
    out.count = static_cast<std::int32_t>(count);
    starts_.back() = start;
  }

  c10::SmallVector<ral_value, 12> values_;
  c10::SmallVector<std::size_t, 12> starts_;
  c10::SmallVector<ral_tensor, 12> tensors_;
  c10::SmallVector<std::int64_t, 24> ints_;
  c10::SmallVector<double, 4> doubles_;
};

void touch(const at::Tensor& tensor) {
  if (Block* block = block_of(tensor.storage().data_ptr())) {
    block->uses.store(block->uses.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

bool same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Steps of growing size, each beyond what the smaller ones reach: no element is met twice.
bool overlaps_itself(const at::Tensor& tensor) {
  c10::SmallVector<std::pair<std::int64_t, std::int64_t>, 8> steps;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) {
      steps.emplace_back(tensor.stride(d), tensor.size(d));
    }
  }
  std::sort(steps.begin(), steps.end());
  std::int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) {
      return true;
    }
    reach += stride * (size - 1);
  }
  return false;
}

// Kernels may take it that an output shares memory with an input only as a whole, and never with itself.
bool overlaps(const Operator& op, const std::vector<at::Tensor>& outputs, const Stack& stack) {
  const std::size_t first = stack.size() - op.argument_count();
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || output.numel() == 0) {
      continue;
    }
    if (!output.is_contiguous() && overlaps_itself(output)) {
      return true;
    }
    bool partly = false;
    for (const ArgSpec& spec : op.arguments()) {
      for_each_tensor(spec, stack[first + spec.position], [&](const at::Tensor& input) {
        partly = partly || (input.storage().is_alias_of(output.storage()) && !same_view(input, output) &&
                            at::get_overlap_status(input, output) != at::MemOverlapStatus::No);
      });
    }
    if (partly) {
      return true;
    }
  }
  return false;
}

std::optional<std::vector<at::Tensor>> outputs_of(const Operator& op, Device& device, const Stack& stack,
                                                  std::string* reason) {
  if (op.outputs().empty()) {
    auto made = make_outputs(op.name().text(), device, stack, op.argument_count());
    if (!made.has_value()) {
      *reason = "no rule for the output's shape";
    }
    return made;
  }
  std::vector<at::Tensor> outputs;
  const std::size_t first = stack.size() - op.argument_count();
  for (const std::uint16_t position : op.outputs()) {
    const c10::IValue& value = stack[first + position];
    if (!value.isTensor()) {
      *reason = "outputs in a list";
      return std::nullopt;
    }
    outputs.push_back(value.toTensor());
  }
  if (outputs[0].numel() == 0 && has_empty_output(op.name().text())) {
    outputs[0].resize_(stack[first].toTensor().sizes());
  }
  if (overlaps(op, outputs, stack)) {
    *reason = "layout: an output overlaps itself or part of an input";
    return std::nullopt;
  }
  return outputs;
}

bool collect(const Operator& op, const Stack& stack, CallArguments& arguments, std::string* reason) {
  const std::size_t first = stack.size() - op.argument_count();
  std::size_t next_spec = 0;
  for (std::size_t i = 0; i < op.argument_count(); ++i) {
    const bool special = next_spec < op.arguments().size() && op.arguments()[next_spec].position == i;
    if (special) {
      const ArgSpec& spec = op.arguments()[next_spec++];
      if (spec.out) {
        continue;
      }
      for_each_tensor(spec, stack[first + i], touch);
    }
    if (!arguments.add(stack[first + i], reason)) {
      return false;
    }
  }
  return true;
}

c10::SmallVector<ral_tensor, 4> describe_outputs(const std::vector<at::Tensor>& outputs) {
  c10::SmallVector<ral_tensor, 4> described;
  for (const at::Tensor& tensor : outputs) {
    if (!tensor.defined()) {
      described.push_back(kNoTensor);
      continue;
    }
    touch(tensor);
    described.push_back({tensor.unsafeGetTensorImpl()->mutable_data(), tensor.sizes().data(), tensor.strides().data(),
                         static_cast<std::int32_t>(tensor.dim()), static_cast<std::int32_t>(tensor.scalar_type())});
  }
  return described;
}

void put_outputs(const Operator& op, Stack& stack, const std::vector<at::Tensor>& outputs) {
  const std::size_t first = stack.size() - op.argument_count();
  Stack results;
  for (std::size_t i = 0; i < op.return_count(); ++i) {
    const int position = op.return_argument(i);
    results.push_back(position >= 0 ? stack[first + static_cast<std::size_t>(position)] : c10::IValue(outputs[i]));
  }
  stack.erase(stack.begin() + static_cast<std::ptrdiff_t>(first), stack.end());
  stack.insert(stack.end(), std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
}

}  // namespace

NativeResult run_native(const Operator& op, Device& device, Kernel& kernel, Stack& stack, const events::Launch& launch,
                        std::string* reason) {
  const auto outputs = outputs_of(op, device, stack, reason);
  CallArguments arguments;
  if (!outputs.has_value() || !collect(op, stack, arguments, reason)) {
    return NativeResult::kDeclined;
  }
  auto described = describe_outputs(*outputs);
  std::array<char, 256> text{};
  const ral_call call = {sizeof(ral_call),
                         static_cast<std::int32_t>(arguments.size()),
                         static_cast<std::int32_t>(described.size()),
                         op.name().text().c_str(),
                         arguments.finish(),
                         described.data(),
                         text.data(),
                         text.size()};
  int status = RAL_OK;
  device.stream(kComputeStream).submit(WorkKind::kCompute, launch.name(), [&] {
    const std::uint64_t start = launch.active() ? events::now() : 0;
    status = kernel.function()(&call);
    if (launch.active() && status == RAL_OK) {
      launch.work(trace::Kind::kKernel, start, events::now(), -1, kernel.name().id(), device.vendor_name().id());
    }
  });
  text.back() = '\0';
  TORCH_CHECK(status != RAL_FAILED, op.name().text(), " on ", device.torch_device(), ": ", text.data());
  if (status != RAL_OK) {
    *reason = text[0] != '\0' ? text.data() : "no reason given";
    return NativeResult::kDeclined;
  }
  put_outputs(op, stack, *outputs);
  return NativeResult::kDone;
}

}  // namespace ral
