// What an op was given: shapes and types as text, and the blocks of memory that it uses.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstdint>
#include <vector>

#include "writer.h"

namespace ral::trace {

// {"shapes":[[4,4],[]],"dtypes":["float32","Scalar"]} as a name id. A list of tensors has a list in either; what is
// neither tensor nor number has [] and "". Inputs that do not fit into a name are counted: "more":3. A signature that
// this thread has met costs a hash.
class ShapeTexts {
 public:
  explicit ShapeTexts(const WriterApi& api) : api_(api) {}
  std::uint32_t of(c10::ArrayRef<const c10::IValue> inputs);

 private:
  struct Entry {
    std::uint64_t key = 0;
    std::uint32_t id = 0;
  };

  const WriterApi& api_;
  std::array<Entry, 1024> cache_{};
};

// A record of kAccess for every tensor that an op is given, and for every one that it makes.
void emit_inputs_used(const WriterApi& api, const c10::FunctionSchema& schema, c10::ArrayRef<const c10::IValue> inputs,
                      std::uint64_t correlation);
void emit_outputs_made(const WriterApi& api, const c10::FunctionSchema& schema, const std::vector<c10::IValue>& outputs,
                       std::uint64_t correlation);

}  // namespace ral::trace
