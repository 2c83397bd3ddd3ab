#include "op_names.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstring>
#include <string>

namespace ral::trace {

namespace {

// RecordFunction answers for a text, which may be a temporary, with one literal; for a schema, with the schema's own
// overload name. That is how the two are told apart without copying a schema.
const char* overload_of_text() {
  static const char* const literal = at::RecordFunction(at::RecordScope::FUNCTION).overload_name();
  return literal;
}

}  // namespace

OpName OpNames::of(const at::RecordFunction& function) {
  const char* name = function.name();
  if (function.overload_name() == overload_of_text()) {
    return {api_.intern(name, std::strlen(name)), false, false};
  }
  Entry& entry = cache_[(reinterpret_cast<std::uintptr_t>(name) >> 4) % cache_.size()];
  if (entry.key != name || entry.name.id == 0) {
    entry = {name, look_up(function)};
  }
  return entry.name;
}

OpName OpNames::look_up(const at::RecordFunction& function) {
  OpName found;
  std::string text = function.name();
  found.ignored = text.rfind("profiler::", 0) == 0;
  if (const char* overload = function.overload_name(); *overload != '\0') {
    text.append(".").append(overload);
  }
  found.id = api_.intern(text.data(), text.size());
  if (const auto name = function.operator_name()) {
    if (const auto handle = c10::Dispatcher::singleton().findOp(*name)) {
      found.visible = !handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    }
  }
  return found;
}

}  // namespace ral::trace
