#include "job_plan.h"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace ral {

namespace {

std::string last_dl_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error";
}

}  // namespace

JobPlan::JobPlan(std::string name, std::string vendor, const std::string& library, std::vector<Symbol> symbols,
                 std::vector<std::string> dim_names, std::vector<JobOperation> operations)
    : name_("prepared:" + name),
      vendor_(std::move(vendor)),
      symbols_(std::move(symbols)),
      dim_names_(std::move(dim_names)),
      operations_(std::move(operations)) {
  // Never closed: its code must outlive every launch.
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw std::runtime_error("library: cannot be opened (" + last_dl_error() + "); build it for this machine");
  }
  for (const JobOperation& operation : operations_) {
    void* symbol = operation.function.empty() ? nullptr : dlsym(handle, operation.function.c_str());
    if (symbol == nullptr && !operation.function.empty()) {
      throw std::runtime_error("operations: " + library + " has no function '" + operation.function +
                               "'; export it, with C linkage");
    }
    functions_.push_back(reinterpret_cast<ral_kernel>(symbol));
    function_names_.push_back(std::make_unique<events::Name>(operation.function));
  }
}

std::int64_t JobPlan::bytes(std::size_t operation, const JobShapes& shapes) const {
  const JobOperation& of = operations_[operation];
  if (of.kind == WorkKind::kTransfer) {
    return static_cast<std::int64_t>(shapes.bytes[of.from]);
  }
  std::size_t bytes = 0;
  for (const JobValue& value : of.values) {
    if (const auto* symbol = std::get_if<SymbolIndex>(&value)) {
      bytes += shapes.bytes[symbol->index];
    }
  }
  for (const std::size_t output : of.outputs) {
    bytes += shapes.bytes[output];
  }
  return static_cast<std::int64_t>(bytes);
}

std::shared_ptr<const JobShapes> JobPlan::shapes(const c10::DimVector& dims) const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (newest_ != nullptr && c10::IntArrayRef(newest_->dims) == c10::IntArrayRef(dims)) {
      return newest_;
    }
  }
  auto made = std::make_shared<JobShapes>();
  made->dims.assign(dims.begin(), dims.end());
  for (const Symbol& symbol : symbols_) {
    c10::DimVector sizes;
    for (const std::int64_t dim : symbol.dims) {
      sizes.push_back(dim >= 0 ? dim : dims[static_cast<std::size_t>(-1 - dim)]);
    }
    c10::DimVector strides(sizes.size());
    std::int64_t elements = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      strides[i] = elements;
      elements *= std::max<std::int64_t>(sizes[i], 1);
    }
    made->bytes.push_back(static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(symbol.dtype));
    made->sizes.push_back(std::move(sizes));
    made->strides.push_back(std::move(strides));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  newest_ = made;
  return made;
}

}  // namespace ral
