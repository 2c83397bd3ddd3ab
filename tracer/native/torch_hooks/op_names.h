// From a RecordFunction to what is known of its op, without touching its text after the first time.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>

#include "writer.h"

namespace ral::trace {

using Descriptor = std::variant<std::string, at::RecordFunction::schema_ref_t>;

namespace {

// RecordFunction shows its schema only as a copy, and its text only through two calls that tell nobody which of both it
// has. C++ lets an explicit instantiation name a private member, and checks its type: where torch changes it, this does
// not compile.
const Descriptor& descriptor_of(const at::RecordFunction& function);

template <Descriptor at::RecordFunction::* Member>
struct Shown {
  friend const Descriptor& descriptor_of(const at::RecordFunction& function) { return function.*Member; }
};
template struct Shown<&at::RecordFunction::fn_>;

}  // namespace

struct OpName {
  const c10::FunctionSchema* schema = nullptr;  // nullptr: made from a text
  std::uint32_t id = 0;
  bool ignored = false;  // the profiler's own plumbing
  // A TorchDispatchMode can see it: an operator, and not one that is composed of others before the mode is asked
  // (CompositeImplicitAutograd).
  bool visible = false;
};

class OpNames {
 public:
  explicit OpNames(const WriterApi& api) : api_(api) {}

  // Valid until the next call.
  const OpName& of(const at::RecordFunction& function) {
    const Descriptor& descriptor = descriptor_of(function);
    if (const auto* schema = std::get_if<at::RecordFunction::schema_ref_t>(&descriptor)) {
      OpName& known = cache_[slot_of(&schema->get())];
      if (__builtin_expect(known.schema != &schema->get() || known.id == 0, 0)) {
        look_up(schema->get(), known);
      }
      return known;
    }
    const std::string& text = *std::get_if<std::string>(&descriptor);
    text_.id = api_.intern(text.data(), text.size());
    return text_;
  }

 private:
  static constexpr std::size_t kSlotBits = 11;

  static std::size_t slot_of(const c10::FunctionSchema* schema) {
    return reinterpret_cast<std::uintptr_t>(schema) * 0x9e3779b97f4a7c15u >> (64 - kSlotBits);
  }
  void look_up(const c10::FunctionSchema& schema, OpName& name);

  const WriterApi& api_;
  OpName text_;
  std::array<OpName, std::size_t{1} << kSlotBits> cache_{};
};

}  // namespace ral::trace
