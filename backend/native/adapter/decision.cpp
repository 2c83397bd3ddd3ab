#include "decision.h"

#include "python_backend.h"
#include "runtime.h"

namespace ral {

namespace {

// Why this kernel does not take the call, or an empty text.
std::string refusal(const KernelSpec& spec, const ShapeClass& shape) {
  if ((shape.dtypes & ~spec.dtypes) != 0) {
    return "dtype " + dtype_names(shape.dtypes & ~spec.dtypes);
  }
  if (shape.rank < spec.min_rank || shape.rank > spec.max_rank) {
    return "rank " + std::to_string(shape.rank);
  }
  if (spec.requires_contiguous && !shape.contiguous) {
    return "layout: not contiguous";
  }
  return "";
}

std::unique_ptr<Decision> make_decision(const Device& device, const std::string& op, const ShapeClass& shape,
                                        std::uint32_t generation) {
  std::string why = has_python_backend(device) ? "native: the backend said not mine" : "native: no entry";
  std::shared_ptr<Kernel> chosen;
  for (const auto& kernel : device.kernels().find(op)) {
    const std::string refused = refusal(kernel->spec(), shape);
    if (refused.empty()) {
      chosen = kernel;
      break;
    }
    why = "native: " + refused;
  }
  if (!device.host_addressable()) {
    why += "; reference: the memory is not the host's";
  }
  return std::make_unique<Decision>(device, shape, generation, std::move(chosen), std::move(why));
}

}  // namespace

std::string dtype_names(std::uint64_t dtypes) {
  std::string names;
  for (unsigned i = 0; i < 64; ++i) {
    if ((dtypes >> i & 1) != 0) {
      names += (names.empty() ? "" : ", ") + std::string(c10::toString(static_cast<c10::ScalarType>(i)));
    }
  }
  return names;
}

const Decision& Decisions::decide(const Device& device, const std::string& op, const ShapeClass& shape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint32_t generation = device.kernels().generation();
  for (const auto& known : made_) {
    if (known->device == &device && known->shape == shape && known->generation == generation) {
      return *known;
    }
  }
  return *made_.emplace_back(make_decision(device, op, shape, generation));
}

void Decisions::visit(const std::function<void(const Decision&)>& visitor) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& decision : made_) {
    visitor(*decision);
  }
}

}  // namespace ral
