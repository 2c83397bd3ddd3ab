#include "op_names.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace ral::trace {

void OpNames::look_up(const c10::FunctionSchema& schema, OpName& name) {
  name = {};
  name.schema = &schema;
  std::string text = schema.name();
  name.ignored = text.rfind("profiler::", 0) == 0;
  if (!schema.overload_name().empty()) {
    text.append(".").append(schema.overload_name());
  }
  name.id = api_.intern(text.data(), text.size());
  if (const auto handle = c10::Dispatcher::singleton().findOp(schema.operator_name())) {
    name.visible = !handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  }
}

}  // namespace ral::trace
