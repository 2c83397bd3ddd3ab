// What a vendor's kernel_manifest.json says, as the router asks for it.
#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "events.h"
#include "ral_plugin.h"

namespace ral {

// One entry. `library` empty: ATen's CPU kernel, run in place on the device's memory.
struct KernelSpec {
  std::string op_name;       // "aten::add", "aten::add.Tensor", or "*" for every operator
  std::uint64_t dtypes = 0;  // bit of each ScalarType; all bits: any
  int min_rank = 0;
  int max_rank = RAL_MAX_DIMS;
  bool requires_contiguous = false;
  std::string library;
  std::string symbol;
};

class Kernel {
 public:
  explicit Kernel(KernelSpec spec) : spec_(std::move(spec)), name_(spec_.symbol) {}

  const KernelSpec& spec() const { return spec_; }
  // Of a vendor's function; one of ATen goes by the name of its operator.
  const events::Name& name() const { return name_; }
  bool is_aten() const { return spec_.library.empty(); }
  // Opens the library at the first call. Throws std::runtime_error naming file and symbol.
  ral_kernel function();

 private:
  KernelSpec spec_;
  events::Name name_;
  std::once_flag opened_;
  ral_kernel function_ = nullptr;
};

inline constexpr std::size_t kMaxVendors = 8;

// The kernels of one vendor. Entries may change while the process runs: who caches what he found compares `generation`.
class VendorKernels {
 public:
  static VendorKernels& of(const std::string& vendor);

  void replace(std::vector<KernelSpec> specs);
  std::uint32_t generation() const { return generation_.load(std::memory_order_acquire); }
  std::size_t size() const;
  // Entries for exactly this operator, then those that cover all its variants, then those for every operator.
  std::vector<std::shared_ptr<Kernel>> find(const std::string& op_with_overload) const;
  const std::string& vendor() const { return vendor_; }
  // From 0 up, in the order in which vendors were first asked for; below kMaxVendors.
  std::size_t number() const { return number_; }

  VendorKernels(std::string vendor, std::size_t number) : vendor_(std::move(vendor)), number_(number) {}

 private:
  std::string vendor_;
  std::size_t number_;
  std::atomic<std::uint32_t> generation_{1};
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, std::vector<std::shared_ptr<Kernel>>> kernels_;
};

// "aten::add_.Tensor" → "aten::add": what the functional, the in-place and the out= variant have in common.
std::string base_name(const std::string& op_with_overload);

}  // namespace ral
