#pragma once

#include <c10/core/Storage.h>

#include <cstddef>

namespace ral {

void register_hooks();
// New memory of `bytes` bytes behind a storage of a ral tensor; what fits of its content is kept.
void resize_storage(const c10::Storage& storage, std::size_t bytes);

}  // namespace ral
