// What the router must know of an operator's schema: found once, kept for ever.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "decision.h"
#include "events.h"
#include "plan.h"

namespace ral {

using torch::jit::Stack;

enum class ArgKind : std::uint8_t { kTensor, kTensorList, kOptionalTensorList, kGenerator, kDevice };

// An argument that the router must look at; all others pass through.
struct ArgSpec {
  std::uint16_t position;
  ArgKind kind;
  bool written;  // in place or out=
  bool out;      // out=: its old content does not matter
};

class Operator {
 public:
  explicit Operator(const c10::OperatorHandle& handle);
  // Whether it was made of an operator of this name and these arguments: a program may define one anew in its place.
  bool is_of(const c10::OperatorHandle& handle) const;

  // The entry of an operator: found once a thread, made once a process.
  static Operator& of(const c10::OperatorHandle& handle);
  // All that were ever found.
  static void visit_all(const std::function<void(const Operator&)>& visitor);

  const c10::OperatorHandle& handle() const { return handle_; }
  // The operator whose CPU kernel does the work; another one than handle() for the two that exist for devices only.
  const c10::OperatorHandle& cpu_handle() const { return cpu_handle_; }
  void adapt_arguments(Stack& stack) const;
  const events::Name& name() const { return name_; }
  const std::vector<ArgSpec>& arguments() const { return arguments_; }
  std::size_t argument_count() const { return argument_count_; }
  std::size_t return_count() const { return return_argument_.size(); }
  // Position of the argument that this return value is (in place, out=), or -1.
  int return_argument(std::size_t index) const { return return_argument_[index]; }
  bool is_view() const { return view_; }
  bool mixes_devices() const { return mixes_devices_; }
  bool has_cpu_kernel() const { return cpu_handle_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU); }
  // Of lists, and torch can compose it from operators that take a tensor each (`_foreach_*`).
  bool is_composed() const { return composed_; }
  // Of lists, and each element is worked on alone (`_foreach_*`, fused optimisers): who shares memory with whom does not
  // matter.
  bool goes_by_element() const { return by_element_; }
  bool draws_random_numbers() const { return random_; }
  // Of torch itself: its CPU kernel needs no Python, and so may run on a pipeline's thread.
  bool is_torchs_own() const { return torchs_own_; }
  // What comes out can depend on what the tensors hold: then its layout cannot be known before it ran.
  bool may_depend_on_data() const { return depends_on_data_; }
  // Whether the value of the argument at this position can change the layout of what comes out.
  bool shapes_result(std::size_t position) const { return shaping_[position]; }
  const std::vector<std::uint16_t>& outputs() const { return outputs_; }

  Decisions& decisions() const { return decisions_; }
  PlanTable& plans() const { return plans_; }

 private:
  void scan_arguments(const c10::FunctionSchema& schema);
  void scan_values(const c10::FunctionSchema& schema);
  void scan_returns(const c10::FunctionSchema& schema);

  c10::OperatorHandle handle_;
  c10::OperatorHandle cpu_handle_;
  events::Name name_;
  std::vector<ArgSpec> arguments_;
  std::vector<std::uint16_t> outputs_;  // positions of out= arguments, or of those written in place
  std::vector<bool> shaping_;
  std::vector<int> return_argument_;
  std::vector<const c10::Type*> argument_types_;
  std::size_t argument_count_ = 0;
  bool view_ = false;
  bool mixes_devices_ = false;
  bool composed_ = false;
  bool by_element_ = false;
  bool torchs_own_ = false;
  bool random_ = false;
  bool depends_on_data_ = false;
  mutable Decisions decisions_;
  mutable PlanTable plans_;
};

// Calls `visit(tensor)` for each defined tensor in an argument.
template <class Visitor>
void for_each_tensor(const ArgSpec& spec, const c10::IValue& value, Visitor&& visit) {
  if (spec.kind == ArgKind::kTensor) {
    if (value.isTensor() && value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (spec.kind == ArgKind::kTensorList && value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (tensor.defined()) {
        visit(tensor);
      }
    }
  } else if (spec.kind == ArgKind::kOptionalTensorList && value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) {
        visit(element.toTensor());
      }
    }
  }
}

// The argument with each defined tensor replaced by `change(tensor)`.
template <class Change>
c10::IValue with_tensors(const ArgSpec& spec, const c10::IValue& value, Change&& change) {
  if (spec.kind == ArgKind::kTensor && value.isTensor() && value.toTensor().defined()) {
    return change(value.toTensor());
  }
  if (spec.kind == ArgKind::kTensorList && value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) {
      list.push_back(tensor.defined() ? change(tensor) : tensor);
    }
    return list;
  }
  if (spec.kind == ArgKind::kOptionalTensorList && value.isList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef()) {
      const bool present = element.isTensor() && element.toTensor().defined();
      list.push_back(present ? std::optional<at::Tensor>(change(element.toTensor())) : std::nullopt);
    }
    return list;
  }
  return value;
}

// A number from the host: to a kernel it is a value, not memory.
inline bool is_cpu_scalar(const at::Tensor& tensor) { return tensor.device().type() == c10::kCPU && tensor.dim() == 0; }

// A number that Python's operators made a tensor of (`x + 2`).
inline bool is_wrapped_number(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

}  // namespace ral
