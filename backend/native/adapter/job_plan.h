// Prepared launches: a list of typed operations over tensors that are symbols, checked once; a launch binds addresses to
// the symbols and enqueues. prepared.py reads plan.json and checks it, docs/prepared.md says what it holds.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "events.h"
#include "ral_plugin.h"
#include "runtime.h"

namespace pybind11 {
class module_;
}

namespace ral {

enum class Role : std::uint8_t { kInput, kInout, kOutput, kTemporary };
// As plan.json has them.
inline constexpr std::array<const char*, 4> kRoleNames = {"input", "inout", "output", "temporary"};
inline constexpr std::array<const char*, 4> kWorkKindNames = {"host", "transfer", "compute", "sync"};  // WorkKind

struct Symbol {
  std::string name;
  Role role;
  bool on_host;
  c10::ScalarType dtype;
  // Each a size, or -1 - i: the i-th of the plan's symbolic dimensions.
  std::vector<std::int64_t> dims;
};

// An argument of a kernel: the index of a symbol, or a constant.
struct SymbolIndex {
  std::size_t index;
};
using JobValue = std::variant<SymbolIndex, std::int64_t, double, std::string>;

struct JobOperation {
  WorkKind kind;
  std::string function;          // kHost, kCompute
  std::vector<JobValue> values;  // what the function takes
  std::vector<std::size_t> outputs;
  std::size_t from = 0;  // kTransfer
  std::size_t to = 0;
};

// The symbols with all sizes known.
struct JobShapes {
  std::vector<std::int64_t> dims;  // of the plan's symbolic dimensions
  std::vector<c10::DimVector> sizes;
  std::vector<c10::DimVector> strides;
  std::vector<std::size_t> bytes;
};

class JobPlan {
 public:
  // Opens the library. Throws std::runtime_error where it or one of its functions is not there.
  JobPlan(std::string name, std::string vendor, const std::string& library, std::vector<Symbol> symbols,
          std::vector<std::string> dim_names, std::vector<JobOperation> operations);

  const events::Name& name() const { return name_; }
  const std::string& vendor() const { return vendor_; }
  const std::vector<Symbol>& symbols() const { return symbols_; }
  const std::vector<std::string>& dim_names() const { return dim_names_; }
  const std::vector<JobOperation>& operations() const { return operations_; }
  ral_kernel function(std::size_t operation) const { return functions_[operation]; }
  const events::Name& function_name(std::size_t operation) const { return *function_names_[operation]; }
  // Bytes that the operation reads and writes.
  std::int64_t bytes(std::size_t operation, const JobShapes& shapes) const;
  // For these symbolic dimensions: made once, as long as they stay the same.
  std::shared_ptr<const JobShapes> shapes(const c10::DimVector& dims) const;

 private:
  events::Name name_;
  std::string vendor_;
  std::vector<Symbol> symbols_;
  std::vector<std::string> dim_names_;
  std::vector<JobOperation> operations_;
  std::vector<ral_kernel> functions_;
  std::vector<std::unique_ptr<events::Name>> function_names_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const JobShapes> newest_;
};

// A tensor for each symbol that is no temporary, in the plan's order; an output that is not given is made. Enqueues all
// operations on the current stream of the tensors' device and returns the outputs. Raises, with nothing enqueued, where a
// tensor does not fit its symbol.
std::vector<at::Tensor> launch_job_plan(const std::shared_ptr<const JobPlan>& plan,
                                        const std::vector<std::optional<at::Tensor>>& given);

// Adds prepare() and launch_job_plan() to the module.
void bind_job_plans(pybind11::module_& m);

}  // namespace ral
