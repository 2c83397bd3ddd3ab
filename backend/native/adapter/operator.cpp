#include "operator.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <unordered_set>

#include "immortal.h"

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

}  // namespace

Operator::Operator(const c10::OperatorHandle& handle)
    : handle_(handle), cpu_handle_(cpu_handle_of(handle)), name_(full_name(handle)) {
  const c10::FunctionSchema& schema = handle.schema();
  argument_count_ = schema.arguments().size();
  for (const c10::Argument& argument : schema.arguments()) {
    argument_types_.push_back(argument.type().get());
  }
  const std::string& name = handle.operator_name().name;
  torchs_own_ = name.compare(0, 6, "aten::") == 0;
  by_element_ = name.find("::_foreach_") != std::string::npos || name.find("::_fused_") != std::string::npos ||
                name.find("::_amp_foreach_") != std::string::npos;
  scan_arguments(schema);
  scan_returns(schema);
  scan_values(schema);
  mixes_devices_ = ops_that_mix_devices().count(base_name(name_.text())) != 0;
  composed_ = !arguments_.empty() && arguments_.front().kind == ArgKind::kTensorList &&
              handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  random_ = handle.hasTag(at::Tag::nondeterministic_seeded);
  depends_on_data_ = handle.hasTag(at::Tag::dynamic_output_shape) || handle.hasTag(at::Tag::data_dependent_output);
}

bool Operator::is_of(const c10::OperatorHandle& handle) const {
  if (torchs_own_) {
    return true;  // nobody takes these away
  }
  const auto& arguments = handle.schema().arguments();
  return full_name(handle) == name_.text() &&
         std::equal(arguments.begin(), arguments.end(), argument_types_.begin(), argument_types_.end(),
                    [](const c10::Argument& argument, const c10::Type* type) { return argument.type().get() == type; });
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

// Numbers only change what is computed, but where no tensor comes in (arange, full).
void Operator::scan_values(const c10::FunctionSchema& schema) {
  const bool reads_tensors = std::any_of(arguments_.begin(), arguments_.end(), [](const ArgSpec& spec) {
    return !spec.out && spec.kind <= ArgKind::kOptionalTensorList;
  });
  for (const c10::Argument& argument : schema.arguments()) {
    const std::string type = argument.type()->str();
    const bool number = type.find("Scalar") != std::string::npos || type.find("number") != std::string::npos ||
                        type.find("float") != std::string::npos;
    shaping_.push_back(!number || !reads_tensors);
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

namespace {

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Operator>> operators;
  std::vector<std::unique_ptr<Operator>> replaced;
};

Table& all_operators() {
  static Immortal<Table> holder;
  static Table* const table = holder.emplace();
  return *table;
}

}  // namespace

Operator& Operator::of(const c10::OperatorHandle& handle) {
  thread_local std::unordered_map<const void*, Operator*> known;
  const void* key = &handle.schema();
  Operator*& cached = known[key];
  if (C10_LIKELY(cached != nullptr && cached->is_of(handle))) {
    return *cached;
  }
  Table& table = all_operators();
  const std::unique_lock<std::shared_mutex> lock(table.mutex);
  std::unique_ptr<Operator>& made = table.operators[key];
  if (made == nullptr || !made->is_of(handle)) {
    table.replaced.push_back(std::move(made));  // what is queued may still need it
    made = std::make_unique<Operator>(handle);
  }
  cached = made.get();
  return *made;
}

void Operator::visit_all(const std::function<void(const Operator&)>& visitor) {
  Table& table = all_operators();
  const std::shared_lock<std::shared_mutex> lock(table.mutex);
  for (const auto& [key, op] : table.operators) {
    visitor(*op);
  }
}

}  // namespace ral
