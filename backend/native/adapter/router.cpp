#include "router.h"

#include <ATen/ops/convolution_ops.h>
#include <torch/library.h>

#include <shared_mutex>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "immortal.h"
#include "python_backend.h"

namespace ral {

namespace {

const std::unordered_set<std::string>& ops_that_mix_devices() {
  // Indices may lie on the CPU.
  static const std::unordered_set<std::string> names = {"aten::index", "aten::index_put", "aten::_index_put_impl",
                                                        "aten::_unsafe_index", "aten::_unsafe_index_put"};
  return names;
}

std::string full_name(const c10::OperatorHandle& handle) {
  const c10::OperatorName& name = handle.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

c10::OperatorHandle cpu_handle_of(const c10::OperatorHandle& handle) {
  const std::string& name = handle.operator_name().name;
  auto& dispatcher = c10::Dispatcher::singleton();
  if (name == "aten::convolution_overrideable") {
    return dispatcher.findSchemaOrThrow("aten::convolution", "");
  }
  if (name == "aten::convolution_backward_overrideable") {
    return dispatcher.findSchemaOrThrow("aten::convolution_backward", "");
  }
  return handle;
}

std::optional<ArgKind> kind_of(const c10::Argument& argument) {
  const std::string type = argument.type()->str();
  if (type == "Tensor" || type == "Tensor?" || type == "Optional[Tensor]") {
    return ArgKind::kTensor;
  }
  if (type == "Tensor[]" || type == "List[Tensor]") {
    return ArgKind::kTensorList;
  }
  if (type.find("Tensor") != std::string::npos) {
    return ArgKind::kOptionalTensorList;
  }
  if (type.find("Generator") != std::string::npos) {
    return ArgKind::kGenerator;
  }
  if (type.find("Device") != std::string::npos) {
    return ArgKind::kDevice;
  }
  return std::nullopt;
}

bool is_cpu_scalar(const at::Tensor& tensor) { return tensor.device().type() == c10::kCPU && tensor.dim() == 0; }

std::uint16_t describe(const at::Tensor& tensor) {
  const auto rank = static_cast<std::uint16_t>(std::min<std::int64_t>(tensor.dim(), 63));
  return static_cast<std::uint16_t>(0x8000 | static_cast<std::uint16_t>(tensor.scalar_type()) << 8 |
                                    (tensor.is_contiguous() ? 0x80 : 0) | (is_cpu_scalar(tensor) ? 0x40 : 0) | rank);
}

}  // namespace

// --- operators
// ---------------------------------------------------------------------------------------------------------

Operator::Operator(const c10::OperatorHandle& handle)
    : handle_(handle), cpu_handle_(cpu_handle_of(handle)), name_(full_name(handle)) {
  const c10::FunctionSchema& schema = handle.schema();
  argument_count_ = schema.arguments().size();
  scan_arguments(schema);
  scan_returns(schema);
  mixes_devices_ = ops_that_mix_devices().count(base_name(name_.text())) != 0;
  structured_ =
      outputs_.empty() && handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

void Operator::scan_arguments(const c10::FunctionSchema& schema) {
  std::vector<std::uint16_t> written;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const std::optional<ArgKind> kind = kind_of(argument);
    if (!kind.has_value()) {
      continue;
    }
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    const auto position = static_cast<std::uint16_t>(i);
    arguments_.push_back({position, *kind, is_written, argument.is_out()});
    if (argument.is_out()) {
      outputs_.push_back(position);
    } else if (is_written) {
      written.push_back(position);
    }
  }
  if (outputs_.empty()) {
    outputs_ = std::move(written);
  }
}

void Operator::scan_returns(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    int position = -1;
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      view_ = true;
    } else if (result.alias_info() != nullptr) {
      for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info != nullptr && info->isWrite() && info->afterSets() == result.alias_info()->afterSets()) {
          position = static_cast<int>(i);
        }
      }
    }
    return_argument_.push_back(position);
  }
}

void Operator::adapt_arguments(Stack& stack) const {
  if (handle_.operator_name().name != "aten::convolution_backward_overrideable") {
    return;
  }
  // grad_output, input, weight, … → grad_output, input, weight, bias_sizes, …
  const std::size_t first = stack.size() - argument_count_;
  const at::Tensor& grad = stack[first].toTensor();
  stack.insert(stack.begin() + static_cast<std::ptrdiff_t>(first) + 3,
               c10::IValue(std::vector<std::int64_t>{grad.size(1)}));
}

Operator& Operator::of(const c10::OperatorHandle& handle) {
  struct Table {
    std::shared_mutex mutex;
    std::unordered_map<const void*, std::unique_ptr<Operator>> operators;
  };
  static Immortal<Table> holder;
  static Table* const table = holder.emplace();
  thread_local std::unordered_map<const void*, Operator*> known;
  const void* key = &handle.schema();
  Operator*& cached = known[key];
  if (C10_LIKELY(cached != nullptr)) {
    return *cached;
  }
  const std::unique_lock<std::shared_mutex> lock(table->mutex);
  std::unique_ptr<Operator>& made = table->operators[key];
  if (made == nullptr) {
    made = std::make_unique<Operator>(handle);
  }
  cached = made.get();
  return *made;
}

// --- decisions
// ---------------------------------------------------------------------------------------------------------

namespace {

struct Shape {
  std::uint64_t dtypes = 0;
  int rank = 0;
  bool contiguous = true;
};

// Scalars from the CPU are numbers to a kernel, whatever their dtype.
Shape shape_of(const Operator& op, const Stack& stack) {
  Shape shape;
  const std::size_t first = stack.size() - op.argument_count();
  for (const ArgSpec& spec : op.arguments()) {
    for_each_tensor(spec, stack[first + spec.position], [&](const at::Tensor& tensor) {
      if (!is_cpu_scalar(tensor)) {
        shape.dtypes |= std::uint64_t{1} << static_cast<unsigned>(tensor.scalar_type());
        shape.rank = std::max(shape.rank, static_cast<int>(tensor.dim()));
        shape.contiguous = shape.contiguous && tensor.is_contiguous();
      }
    });
  }
  return shape;
}

std::string unsupported_dtypes(std::uint64_t dtypes) {
  std::string names;
  for (unsigned i = 0; i < 64; ++i) {
    if ((dtypes >> i & 1) != 0) {
      names += (names.empty() ? "" : ", ") + std::string(c10::toString(static_cast<c10::ScalarType>(i)));
    }
  }
  return names;
}

// Why this kernel does not take the call, or an empty text.
std::string refusal(const KernelSpec& spec, const Shape& shape) {
  if ((shape.dtypes & ~spec.dtypes) != 0) {
    return "dtype " + unsupported_dtypes(shape.dtypes & ~spec.dtypes);
  }
  if (shape.rank < spec.min_rank || shape.rank > spec.max_rank) {
    return "rank " + std::to_string(shape.rank);
  }
  return spec.requires_contiguous && !shape.contiguous ? "layout" : "";
}

}  // namespace

const Decision* Operator::find(const Cache& cache, const Signature& signature) const {
  const std::size_t count = cache.count.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    const Decision* decision = cache.decisions[i].load(std::memory_order_acquire);
    if (decision != nullptr && decision->signature == signature) {
      return decision;
    }
  }
  return nullptr;
}

const Decision& Operator::decide(Device& device, const Signature& signature, const Stack& stack) {
  Cache& cache = caches_[device.kernels().number()];
  if (C10_LIKELY(cache.generation.load(std::memory_order_acquire) == device.kernels().generation())) {
    if (const Decision* decision = find(cache, signature)) {
      return *decision;
    }
  }
  return make_decision(cache, device.kernels(), signature, stack);
}

const Decision& Operator::make_decision(Cache& cache, VendorKernels& kernels, const Signature& signature,
                                        const Stack& stack) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint32_t generation = kernels.generation();
  if (cache.generation.load(std::memory_order_relaxed) != generation) {
    cache.count.store(0, std::memory_order_release);
    cache.next = 0;
  }
  const Shape shape = shape_of(*this, stack);
  std::string why = "native: no entry";
  std::shared_ptr<Kernel> chosen;
  for (const auto& kernel : kernels.find(name_.text())) {
    const std::string refused = refusal(kernel->spec(), shape);
    if (refused.empty()) {
      chosen = kernel;
      break;
    }
    why = "native: " + refused;
  }
  made_.push_back(std::make_unique<Decision>(signature, std::move(chosen), why + "; reference: none"));
  const std::size_t slot = cache.next++ % cache.decisions.size();
  cache.decisions[slot].store(made_.back().get(), std::memory_order_release);
  cache.count.store(std::min(cache.next, cache.decisions.size()), std::memory_order_release);
  cache.generation.store(generation, std::memory_order_release);
  return *made_.back();
}

Signature signature_of(const Operator& op, const Stack& stack) {
  Signature signature;
  unsigned index = 0;
  const std::size_t first = stack.size() - op.argument_count();
  for (const ArgSpec& spec : op.arguments()) {
    for_each_tensor(spec, stack[first + spec.position], [&](const at::Tensor& tensor) {
      const std::uint64_t bits = describe(tensor);
      if (index < 4) {
        signature.first |= bits << (16 * index);
      } else if (index < 8) {
        signature.second |= bits << (16 * (index - 4));
      } else {
        signature.second = (signature.second ^ bits) * 0x9E3779B97F4A7C15u;
      }
      ++index;
    });
  }
  return signature;
}

// --- devices
// -----------------------------------------------------------------------------------------------------------

Device& find_device(const Operator& op, const Stack& stack) {
  const std::size_t first = stack.size() - op.argument_count();
  std::optional<c10::Device> found;
  for (const ArgSpec& spec : op.arguments()) {
    const c10::IValue& value = stack[first + spec.position];
    for_each_tensor(spec, value, [&](const at::Tensor& tensor) {
      if (!found.has_value() && tensor.device().type() == kRal) {
        found = tensor.device();
      }
    });
    if (!found.has_value() && spec.kind == ArgKind::kDevice && value.isDevice() && value.toDevice().type() == kRal) {
      found = value.toDevice();
    }
    if (found.has_value()) {
      break;
    }
  }
  return Runtime::get().device(found.has_value() ? found->index() : current_device());
}

void check_same_device(const Operator& op, const Device& device, const Stack& stack) {
  if (op.mixes_devices()) {
    return;
  }
  const std::size_t first = stack.size() - op.argument_count();
  for (const ArgSpec& spec : op.arguments()) {
    for_each_tensor(spec, stack[first + spec.position], [&](const at::Tensor& tensor) {
      TORCH_CHECK(tensor.device() == device.torch_device() || is_cpu_scalar(tensor),
                  "Expected all tensors to be on the same device, but found at least two devices, ",
                  device.torch_device(), " and ", tensor.device(), "! (", op.name().text(), ")");
    });
  }
}

c10::IValue with_tensors(const ArgSpec& spec, const c10::IValue& value,
                         const std::function<at::Tensor(const at::Tensor&)>& change) {
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

// --- entry
// -------------------------------------------------------------------------------------------------------------

namespace {

const events::Name& route_native() {
  static const events::Name name("native");
  return name;
}

const events::Name& route_cpu() {
  static const events::Name name("cpu");
  return name;
}

// torch's composite kernel makes the output (its meta function knows the shape) and calls the out= variant, which comes
// back here. Of PrivateUse2 nobody is the owner: its kernel of a structured operator is exactly that composite one.
void expand_structured(const Operator& op, Stack& stack) {
  op.handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse2), &stack);
}

void route_call(Operator& op, Stack& stack) {
  Device& device = find_device(op, stack);
  if (op.is_view()) {
    run_view(op, device, stack);
    return;
  }
  check_same_device(op, device, stack);
  std::string not_mine;
  if (has_python_backend(device) && dispatch_python(op, device, stack, &not_mine)) {
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(C10_LIKELY(op.has_cpu_kernel()), op.name().text(), " has no kernel for ",
                              device.torch_device(), " and none for the CPU to fall back to");
  const Decision& decision = op.decide(device, signature_of(op, stack), stack);
  if (decision.kernel != nullptr && !decision.kernel->is_aten() && op.is_structured_functional()) {
    expand_structured(op, stack);
    return;
  }
  events::Launch launch(op.name(), device.index());
  if (decision.kernel == nullptr) {
    launch.set_route(route_cpu());
    run_on_cpu(op, device, stack, launch, decision.reasons);
    return;
  }
  launch.set_route(route_native());
  if (decision.kernel->is_aten()) {
    run_in_place(op, device, stack, launch);
    return;
  }
  std::string reason;
  if (run_native(op, device, *decision.kernel, stack, launch, &reason) == NativeResult::kDeclined) {
    launch.set_route(route_cpu());
    run_on_cpu(op, device, stack, launch, events::Name("native: kernel declined (" + reason + "); reference: none"));
  }
}

void route_any(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
  (void)keys;
  route_call(Operator::of(handle), *stack);
}

// One operator's own way in: no look-up.
class RoutedOperator final : public c10::OperatorKernel {
 public:
  explicit RoutedOperator(Operator& op) : op_(op) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    (void)handle;
    (void)keys;
    route_call(op_, *stack);
  }

 private:
  Operator& op_;
};

}  // namespace

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

std::int64_t bytes_of_arguments(const Operator& op, const c10::IValue* arguments) {
  std::int64_t bytes = 0;
  for (const ArgSpec& spec : op.arguments()) {
    for_each_tensor(spec, arguments[spec.position],
                    [&](const at::Tensor& tensor) { bytes += tensor.device().type() == kRal ? bytes_of(tensor) : 0; });
  }
  return bytes;
}

void put_results(const Operator& op, Stack& stack, Stack&& arguments, Stack&& results,
                 const std::function<at::Tensor(const at::Tensor&)>& to_device) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const int position = op.return_argument(i);
    c10::IValue& result = results[i];
    if (position >= 0) {
      stack.push_back(arguments[static_cast<std::size_t>(position)]);
    } else if (result.isTensor()) {
      stack.push_back(to_device(result.toTensor()));
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : result.toTensorList()) {
        list.push_back(to_device(tensor));
      }
      stack.push_back(list);
    } else {
      stack.push_back(std::move(result));
    }
  }
}

void route_operators(const std::vector<std::string>& names) {
  struct Libraries {
    std::mutex mutex;
    std::vector<std::unique_ptr<torch::Library>> list;
  };
  static Immortal<Libraries> holder;
  static Libraries* const libraries = holder.emplace();
  const std::lock_guard<std::mutex> lock(libraries->mutex);
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                                                  static_cast<std::uint32_t>(__LINE__));
  for (const std::string& name : names) {
    const auto dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(), overload.c_str());
    if (!handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      library->impl(name.substr(std::string("aten::").size()).c_str(),
                    torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RoutedOperator>(Operator::of(handle))));
    }
  }
  libraries->list.push_back(std::move(library));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&route_any>()); }

}  // namespace ral
