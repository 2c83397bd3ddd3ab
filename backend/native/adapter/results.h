// What comes out of a call: learnt from one run, made before the kernel runs in all later ones.
#pragma once

#include <optional>
#include <vector>

#include "alias.h"
#include "call.h"
#include "plan.h"

namespace ral {

// One run, as its thread left it.
struct Outcome {
  std::vector<at::Tensor> arguments;  // the aliases of Call::tensors(), as the kernel left them
  Stack results;
};

// Raises where a kernel made what no ral device holds: a tensor that is not strided, or quantised.
void check_holdable(const Operator& op, const at::Tensor& tensor);

// What was learnt, and the memory in which the run left what is new.
struct Learnt {
  Layout layout;
  std::vector<c10::Storage> fresh;    // of Layout::storages
  std::vector<c10::Storage> resized;  // of Layout::resized
  bool complete = true;               // no result but tensors, no argument resized that is also read
};
Learnt learn(const Call& call, const Outcome& outcome);

// The results of the call, from torch's arguments; memory for what is new. Arguments that are resized are resized, here
// and in the call.
struct Results {
  Stack values;
  c10::SmallVector<HandOut::Place, 2> places;   // of Layout::storages
  c10::SmallVector<HandOut::Place, 1> resized;  // of Layout::resized
};
Results make_results(const Layout& layout, Call& call, const Stack& stack);

// After the kernel: where it did not leave a result in the place that was made for it, it is copied there.
void settle(const Layout& layout, const Stack& results, c10::ArrayRef<HandOut::Place> places);

// Bytes of the results that are no arguments.
std::int64_t fresh_bytes(const Layout& layout);

// In place of the arguments.
void put_results(const Operator& op, Stack& stack, Stack&& results);

}  // namespace ral
