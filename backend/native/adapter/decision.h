// Who runs an operator on a device for arguments of these dtypes, ranks and contiguity, and why: decided once.
#pragma once

#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "events.h"
#include "manifest.h"
#include "plan.h"

namespace ral {

class Device;

// What the arguments of a call look like, as far as a decision depends on it.
struct ShapeClass {
  std::uint64_t dtypes = 0;  // a bit each ScalarType; numbers from the host have none
  int rank = 0;              // the largest
  bool contiguous = true;
  bool operator==(const ShapeClass& other) const {
    return dtypes == other.dtypes && rank == other.rank && contiguous == other.contiguous;
  }
};

struct Decision {
  Decision(const Device& on, const ShapeClass& of, std::uint32_t in, std::shared_ptr<Kernel> by, std::string why)
      : device(&on), shape(of), generation(in), kernel(std::move(by)), reasons(std::move(why)) {}

  const Device* device;
  ShapeClass shape;
  std::uint32_t generation;        // of the vendor's kernels
  std::shared_ptr<Kernel> kernel;  // none: no native kernel
  events::Name reasons;            // why not: "native: no entry; reference: memory is not the host's"

  mutable std::atomic<Route> route{Route::kCpu};  // of the newest plan

  // What came of it, for torch.ral.dispatch_records().
  mutable std::atomic<std::uint64_t> launches{0};
  mutable std::atomic<std::uint64_t> fallbacks{0};
  mutable std::atomic<std::uint64_t> bytes_copied{0};
  mutable std::atomic<std::uint64_t> syncs_forced{0};
  mutable std::atomic<std::uint64_t> fallback_ns{0};
  mutable std::atomic<std::uint64_t> compiled{0};    // launches of kernels that were compiled for it
  mutable std::atomic<std::uint64_t> compile_ns{0};  // what making those took, in this process

  // Why the last call that was refused after the decision was, by the kernel or by the compiler; or an empty text.
  void set_refused(const std::string& reason) const {
    const std::lock_guard<std::mutex> lock(refused_mutex_);
    refused_ = reason;
  }
  std::string refused() const {
    const std::lock_guard<std::mutex> lock(refused_mutex_);
    return refused_;
  }

 private:
  mutable std::mutex refused_mutex_;
  mutable std::string refused_;
};

// All decisions about one operator; they live for ever, and readers hold plain pointers.
class Decisions {
 public:
  const Decision& decide(const Device& device, const std::string& op, const ShapeClass& shape);
  void visit(const std::function<void(const Decision&)>& visitor) const;

 private:
  mutable std::mutex mutex_;
  std::deque<std::unique_ptr<Decision>> made_;
};

std::string dtype_names(std::uint64_t dtypes);

}  // namespace ral
