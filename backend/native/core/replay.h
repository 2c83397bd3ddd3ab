// Does again what a trace says a program did to an allocator, under settings of one's choice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "allocator.h"

namespace ral {

enum class ReplayAction : std::uint8_t { kAllocate, kFree, kSubmit, kFinish };

inline constexpr std::array<std::string_view, 4> kReplayActionNames = {"allocate", "free", "submit", "finish"};

// A sequence in columns, each of `count` values:
//
//   action   | block                  | amount          | stream
//   allocate | a number, not in use   | bytes asked for | on which
//   free     | the allocation's number| -               | -
//   submit   | -                      | -               | to which
//   finish   | -                      | ticket          | of which
struct ReplaySteps {
  std::size_t count = 0;
  const std::uint8_t* action = nullptr;
  const std::uint32_t* block = nullptr;
  const std::uint64_t* amount = nullptr;
  const std::uint8_t* stream = nullptr;
};

struct Replayed {
  AllocatorStats stats;
  std::optional<std::size_t> peak_reserved_step;  // the first at which as much was reserved as ever
  std::optional<std::size_t> out_of_memory_step;  // the replay ends there, as the program would
  std::size_t largest_free_block = 0;
};

// A free of a block that is not in use is passed over: a trace may have lost its alloc. Throws std::invalid_argument for
// a configuration that cannot be, an unknown action or stream, and a block that is in use already.
Replayed replay(const AllocatorConfig& config, const ReplaySteps& steps);

}  // namespace ral
