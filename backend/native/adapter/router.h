// Every operator that no one registered for `ral` comes here. op + device + dtypes + ranks + contiguity → who runs it,
// decided once and cached.
//
//   view           → an alias, no work, no event
//   native         → the vendor's kernel: C code from its library, or ATen's CPU kernel in place
//   cpu            → PyTorch's CPU kernel with copies: a fallback event with the chain of reasons
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "events.h"
#include "manifest.h"
#include "runtime.h"

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

// What the arguments of one call look like, as far as a decision depends on it: 16 bits a tensor, the first eight
// exactly.
struct Signature {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  bool operator==(const Signature& other) const { return first == other.first && second == other.second; }
};

struct Decision {
  Decision(Signature of, std::shared_ptr<Kernel> by, std::string why)
      : signature(of), kernel(std::move(by)), reasons(std::move(why)) {}
  Signature signature;
  std::shared_ptr<Kernel> kernel;  // none: PyTorch's CPU kernel with copies
  events::Name reasons;            // why no native kernel: "native: no entry; reference: none"
};

class Operator {
 public:
  explicit Operator(const c10::OperatorHandle& handle);

  // The entry of an operator: found once a thread, made once a process.
  static Operator& of(const c10::OperatorHandle& handle);

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
  // The functional variant of an operator that has an out= variant which torch itself can make the output for.
  bool is_structured_functional() const { return structured_; }
  const std::vector<std::uint16_t>& outputs() const { return outputs_; }

  const Decision& decide(Device& device, const Signature& signature, const Stack& stack);

 private:
  struct Cache {
    std::atomic<std::uint32_t> generation{0};
    std::atomic<std::size_t> count{0};
    std::size_t next = 0;  // where the next decision goes: the oldest one's place when all are taken
    std::array<std::atomic<const Decision*>, 32> decisions{};
  };
  const Decision* find(const Cache& cache, const Signature& signature) const;
  const Decision& make_decision(Cache& cache, VendorKernels& kernels, const Signature& signature, const Stack& stack);
  void scan_arguments(const c10::FunctionSchema& schema);
  void scan_returns(const c10::FunctionSchema& schema);

  c10::OperatorHandle handle_;
  c10::OperatorHandle cpu_handle_;
  events::Name name_;
  std::vector<ArgSpec> arguments_;
  std::vector<std::uint16_t> outputs_;  // positions of out= arguments, or of those written in place
  std::vector<int> return_argument_;
  std::size_t argument_count_ = 0;
  bool view_ = false;
  bool mixes_devices_ = false;
  bool structured_ = false;
  std::mutex mutex_;
  std::deque<std::unique_ptr<Decision>> made_;  // owns every decision ever made: readers hold plain pointers
  std::array<Cache, kMaxVendors> caches_;       // by the vendor's number
};

// The first `ral` device among the arguments; otherwise the one that a Device argument names, or the current one.
Device& find_device(const Operator& op, const Stack& stack);
void check_same_device(const Operator& op, const Device& device, const Stack& stack);
Signature signature_of(const Operator& op, const Stack& stack);

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

// Calls `visit(original, changed)` for each tensor that the operator writes: as the program gave it, and as the call that
// ran in its place has left it. Only those on our devices.
template <typename Visitor>
void for_each_written(const Operator& op, const Stack& arguments, const Stack& call, Visitor&& visit) {
  for (const ArgSpec& spec : op.arguments()) {
    if (!spec.written) {
      continue;
    }
    std::vector<at::Tensor> originals;
    for_each_tensor(spec, arguments[spec.position], [&](const at::Tensor& tensor) { originals.push_back(tensor); });
    std::size_t next = 0;
    for_each_tensor(spec, call[spec.position], [&](const at::Tensor& changed) {
      if (const at::Tensor& original = originals[next++]; original.device().type() == kRal) {
        visit(original, changed);
      }
    });
  }
}

// The argument with each defined tensor replaced by `change(tensor)`.
c10::IValue with_tensors(const ArgSpec& spec, const c10::IValue& value,
                         const std::function<at::Tensor(const at::Tensor&)>& change);

// Bytes of the device's tensors among the arguments that a kernel is called with: each argument counts as a whole and
// once, also where it is read and written, or shares memory with another. Results that the kernel makes come on top.
std::int64_t bytes_of_arguments(const Operator& op, const c10::IValue* arguments);
std::int64_t bytes_of(const at::Tensor& tensor);

enum class NativeResult { kDone, kDeclined };

// The three ways. Each leaves the results on the stack in place of the arguments (unless a kernel declines: then as it
// was).
void run_view(const Operator& op, Device& device, Stack& stack);
void run_in_place(const Operator& op, Device& device, Stack& stack, const events::Launch& launch);
NativeResult run_native(const Operator& op, Device& device, Kernel& kernel, Stack& stack, const events::Launch& launch,
                        std::string* reason);
void run_on_cpu(const Operator& op, Device& device, Stack& stack, const events::Launch& launch,
                const events::Name& reasons);

// Takes results off a CPU call's stack: return values that are arguments become the original ones.
void put_results(const Operator& op, Stack& stack, Stack&& arguments, Stack&& results,
                 const std::function<at::Tensor(const at::Tensor&)>& to_device);

// Routes these operators ("aten::add.Tensor") here although torch has composite kernels for them.
void route_operators(const std::vector<std::string>& names);

}  // namespace ral
