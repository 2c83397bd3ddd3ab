#include "manifest.h"

#include <dlfcn.h>

#include <map>
#include <stdexcept>

#include "immortal.h"

namespace ral {

namespace {

std::string last_dl_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error";
}

ral_kernel open_kernel(const KernelSpec& spec) {
  // Never closed: a kernel's code must outlive every launch.
  void* library = dlopen(spec.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error("cannot open the kernel library for " + spec.op_name + ": " + last_dl_error());
  }
  void* symbol = dlsym(library, spec.symbol.c_str());
  if (symbol == nullptr) {
    throw std::runtime_error(spec.library + " has no kernel named " + spec.symbol + " (for " + spec.op_name + ")");
  }
  return reinterpret_cast<ral_kernel>(symbol);
}

}  // namespace

ral_kernel Kernel::function() {
  std::call_once(opened_, [this] { function_ = open_kernel(spec_); });
  return function_;
}

std::string base_name(const std::string& op_with_overload) {
  std::string name = op_with_overload.substr(0, op_with_overload.find('.'));
  const bool dunder = name.size() > 2 && name.compare(name.size() - 2, 2, "__") == 0;
  if (!name.empty() && name.back() == '_' && !dunder) {
    name.pop_back();
  }
  return name;
}

VendorKernels& VendorKernels::of(const std::string& vendor) {
  struct Table {
    std::mutex mutex;
    std::map<std::string, VendorKernels> vendors;
  };
  static Immortal<Table> holder;
  static Table* const table = holder.emplace();
  const std::lock_guard<std::mutex> lock(table->mutex);
  if (table->vendors.count(vendor) == 0 && table->vendors.size() == kMaxVendors) {
    throw std::runtime_error("there are kernels of " + std::to_string(kMaxVendors) +
                             " vendors already, none can be added: " + vendor);
  }
  return table->vendors.try_emplace(vendor, vendor, table->vendors.size()).first->second;
}

void VendorKernels::replace(std::vector<KernelSpec> specs) {
  std::unordered_map<std::string, std::vector<std::shared_ptr<Kernel>>> kernels;
  for (KernelSpec& spec : specs) {
    const bool one_overload = spec.op_name.find('.') != std::string::npos;
    std::string key = one_overload || spec.op_name == "*" ? spec.op_name : base_name(spec.op_name);
    kernels[std::move(key)].push_back(std::make_shared<Kernel>(std::move(spec)));
  }
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  kernels_.swap(kernels);
  generation_.fetch_add(1, std::memory_order_release);
}

std::size_t VendorKernels::size() const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::size_t count = 0;
  for (const auto& [name, list] : kernels_) {
    count += list.size();
  }
  return count;
}

std::vector<std::shared_ptr<Kernel>> VendorKernels::find(const std::string& op_with_overload) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  std::vector<std::shared_ptr<Kernel>> found;
  for (const std::string& key : {op_with_overload, base_name(op_with_overload), std::string("*")}) {
    const auto list = kernels_.find(key);
    if (list != kernels_.end() && (found.empty() || key != op_with_overload)) {
      found.insert(found.end(), list->second.begin(), list->second.end());
    }
  }
  return found;
}

}  // namespace ral
