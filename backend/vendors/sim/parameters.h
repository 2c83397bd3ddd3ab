// Weights and biases that an operator may be called without.
#pragma once

#include "element.h"

namespace ral::sim {

// `width` floats: the tensor's, or `otherwise` where none is given.
inline std::vector<float> parameter(const ral_value& value, Index width, float otherwise) {
  if (!is_tensor(value)) {
    return std::vector<float>(static_cast<std::size_t>(width), otherwise);
  }
  const FloatsIn given(*value.as.tensors);
  return {given.data(), given + width};
}

}  // namespace ral::sim
