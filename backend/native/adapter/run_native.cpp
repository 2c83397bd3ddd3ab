// A vendor's kernel: the call translated to the plain C of ral_plugin.h.
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstring>

#include "alias.h"
#include "ral_plugin.h"
#include "router.h"
#include "shape_rules.h"

namespace ral {

namespace {

constexpr ral_tensor kNoTensor = {nullptr, nullptr, nullptr, -1, 0};

// The arguments and outputs in C, with all that they point to: values of the call, and shapes as they were then. Arrays
// are filled first and pointed to at the end: they move while they grow, and with the item that they are in.
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
      return add_tensor_argument(value, out, reason);
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

  // After all arguments.
  void add_output(const at::Tensor& tensor) {
    ++output_count_;
    describe(tensor);
  }

  // The tensors that add_output() was given must live as long as the call.
  ral_call finish(const char* op) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].tag == RAL_TENSOR || values_[i].tag == RAL_TENSORS) {
        values_[i].as.tensors = tensors_.data() + starts_[i];
      } else if (values_[i].tag == RAL_INTS) {
        values_[i].as.ints = ints_.data() + starts_[i];
      } else if (values_[i].tag == RAL_DOUBLES) {
        values_[i].as.doubles = doubles_.data() + starts_[i];
      }
    }
    const std::int64_t* shape = shapes_.data();
    for (ral_tensor& tensor : tensors_) {
      if (tensor.ndim >= 0) {
        tensor.sizes = shape;
        tensor.strides = shape + tensor.ndim;
        shape += 2 * static_cast<std::ptrdiff_t>(tensor.ndim);
      }
    }
    return {sizeof(ral_call),
            static_cast<std::int32_t>(values_.size()),
            static_cast<std::int32_t>(output_count_),
            op,
            values_.data(),
            tensors_.data() + (tensors_.size() - output_count_),
            nullptr,
            0};
  }

 private:
  bool add_tensor_argument(const c10::IValue& value, ral_value& out, std::string* reason) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      return true;
    }
    if (tensor.device().type() == c10::kCPU && tensor.dim() == 0) {
      return add_number(tensor, out, reason);
    }
    kept_.push_back(value);
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
    describe(tensor);
    return true;
  }

  void describe(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      tensors_.push_back(kNoTensor);
      return;
    }
    tensors_.push_back({tensor.unsafeGetTensorImpl()->mutable_data(), nullptr, nullptr,
                        static_cast<std::int32_t>(tensor.dim()), static_cast<std::int32_t>(tensor.scalar_type())});
    shapes_.append(tensor.sizes().begin(), tensor.sizes().end());
    shapes_.append(tensor.strides().begin(), tensor.strides().end());
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
      kept_.push_back(value);
      begin_list(out, RAL_TENSORS, tensors_.size(), list.size());
      for (const at::Tensor& tensor : list) {
        if (!add_tensor(tensor, reason)) {
          return false;
        }
      }
    } else if (value.isString()) {
      kept_.push_back(value);
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
  c10::SmallVector<std::int64_t, 8> ints_;
  c10::SmallVector<double, 4> doubles_;
  c10::SmallVector<std::int64_t, 24> shapes_;  // sizes, then strides, of each defined tensor
  c10::SmallVector<c10::IValue, 4> kept_;      // whose memory the values point to
  std::size_t output_count_ = 0;
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

// One call of a vendor's kernel, and how it ended.
class KernelWork : public Work {
 public:
  KernelWork(const Operator& op, Device& device, Kernel& kernel, CallArguments&& arguments,
             std::vector<at::Tensor>&& outputs, std::int64_t bytes, const events::Launch& launch)
      : Work{WorkKind::kCompute, launch.name()},
        op_(&op),
        device_(&device),
        kernel_(&kernel),
        arguments_(std::move(arguments)),
        outputs_(std::move(outputs)),
        bytes_(bytes),
        started_(launch) {}

  void run() {
    std::array<char, 256> text;
    text.front() = '\0';
    ral_call call = arguments_.finish(op_->name().text().c_str());
    call.reason = text.data();
    call.reason_size = text.size();
    const std::uint64_t start = started_.active() ? events::now() : 0;
    status_ = kernel_->function()(&call);
    if (status_ != RAL_OK) {
      text.back() = '\0';
      reason_ = text.data();
    } else if (started_.active()) {
      started_.work(trace::Kind::kKernel, start, events::now(), bytes_, kernel_->name().id(),
                    device_->vendor_name().id());
    }
  }

  int status() const { return status_; }
  const std::string& reason() const { return reason_; }
  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  const Operator* op_;
  Device* device_;
  Kernel* kernel_;  // decisions live for ever, and their kernels with them
  CallArguments arguments_;
  std::vector<at::Tensor> outputs_;
  std::int64_t bytes_;
  events::Started started_;
  int status_ = RAL_OK;
  std::string reason_;
};

std::int64_t bytes_touched(const Operator& op, const Stack& stack, const std::vector<at::Tensor>& outputs) {
  std::int64_t bytes = bytes_of_arguments(op, stack.data() + (stack.size() - op.argument_count()));
  if (op.outputs().empty()) {  // else they are arguments
    for (const at::Tensor& output : outputs) {
      bytes += bytes_of(output);
    }
  }
  return bytes;
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
  auto outputs = outputs_of(op, device, stack, reason);
  CallArguments arguments;
  if (!outputs.has_value() || !collect(op, stack, arguments, reason)) {
    return NativeResult::kDeclined;
  }
  for (const at::Tensor& output : *outputs) {
    if (output.defined()) {
      touch(output);
    }
    arguments.add_output(output);
  }
  const std::int64_t bytes = launch.active() ? bytes_touched(op, stack, *outputs) : -1;
  const KernelWork done =
      device.stream(kComputeStream)
          .submit(KernelWork(op, device, kernel, std::move(arguments), *std::move(outputs), bytes, launch));
  TORCH_CHECK(done.status() != RAL_FAILED, op.name().text(), " on ", device.torch_device(), ": ", done.reason());
  if (done.status() != RAL_OK) {
    *reason = done.reason().empty() ? "no reason given" : done.reason();
    return NativeResult::kDeclined;
  }
  put_outputs(op, stack, done.outputs());
  return NativeResult::kDone;
}

}  // namespace ral
