// What was learnt of one operator on arguments that look like these: who runs it, and what comes out. Later calls that
// look the same are launched without waiting.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace ral {

struct Decision;

// 128 bits over all that the layout of the results can depend on: two calls with the same key have the same plan.
struct PlanKey {
  std::uint64_t first = 0x243F6A8885A308D3u;
  std::uint64_t second = 0x13198A2E03707344u;

  void add(std::uint64_t value) noexcept {
    first = (first ^ value) * 0x9E3779B97F4A7C15u;
    first ^= first >> 32;
    second = (second + value) * 0xD6E8FEB86659FD93u;
    second ^= second >> 29;
  }
  bool operator==(const PlanKey& other) const noexcept { return first == other.first && second == other.second; }
};

// One tensor that comes out, or an argument as the call leaves it.
struct TensorLayout {
  enum class From : std::uint8_t { kFresh, kArgument, kUndefined };
  From from = From::kUndefined;
  bool same = false;         // kArgument: it is that very tensor
  std::uint32_t source = 0;  // kFresh: which of the plan's storages; kArgument: which tensor of the call
  std::int64_t offset = 0;   // in elements; kArgument: from that tensor's own offset
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::DimVector sizes;
  c10::DimVector strides;
};

struct ReturnLayout {
  int argument = -1;  // it is the argument at this position, as the schema says
  bool list = false;
  std::uint32_t first = 0;  // in Layout::tensors
  std::uint32_t count = 0;
};

// An out= argument that the operator resizes.
struct Resized {
  std::uint32_t tensor = 0;  // of the call
  std::size_t storage_bytes = 0;
  TensorLayout layout;
};

struct Layout {
  std::vector<ReturnLayout> returns;
  std::vector<TensorLayout> tensors;
  std::vector<std::size_t> storages;  // bytes of each that is made anew
  std::vector<Resized> resized;
};

enum class Route : std::uint8_t { kNative, kReference, kCompiled, kCpu, kComposed };

inline constexpr std::array<const char*, 5> kRouteNames = {"native", "reference", "compiled", "cpu", "composed"};

struct Plan {
  Route route = Route::kCpu;
  const Decision* decision = nullptr;  // lives for ever
  std::uint32_t generation = 0;        // of the vendor's kernels when it was made
  std::optional<Layout> layout;        // none: each call waits for its kernel
  std::string refused;                 // why the kernel that the manifest names cannot be called like that
  // The kernel declines some values of these arguments: each call waits to hear.
  mutable std::atomic<bool> may_decline{false};
};

// The plans of one operator, on all devices. Bounded: the oldest make room.
class PlanTable {
 public:
  std::shared_ptr<const Plan> find(const PlanKey& key, std::uint32_t generation) const;
  void put(const PlanKey& key, std::shared_ptr<const Plan> plan);

 private:
  static constexpr std::size_t kSets = 64;
  static constexpr std::size_t kWays = 8;
  struct Entry {
    PlanKey key;
    std::shared_ptr<const Plan> plan;
  };
  struct Set {
    std::array<Entry, kWays> entries;
    std::size_t next = 0;
  };

  mutable std::mutex mutex_;
  std::vector<Set> sets_;
};

}  // namespace ral
