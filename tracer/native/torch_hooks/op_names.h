// From a RecordFunction to a name id, without touching its text after the first time.
#pragma once

#include <ATen/record_function.h>

#include <array>
#include <cstdint>

#include "writer.h"

namespace ral::trace {

struct OpName {
  std::uint32_t id = 0;
  bool ignored = false;  // the profiler's own plumbing
  // A TorchDispatchMode can see it: an operator, and not one that is composed of others before the mode is asked
  // (CompositeImplicitAutograd).
  bool visible = false;
};

class OpNames {
 public:
  explicit OpNames(const WriterApi& api) : api_(api) {}
  OpName of(const at::RecordFunction& function);

 private:
  struct Entry {
    const char* key = nullptr;  // the name's address inside the operator's schema
    OpName name;
  };

  OpName look_up(const at::RecordFunction& function);

  const WriterApi& api_;
  std::array<Entry, 2048> cache_{};
};

}  // namespace ral::trace
