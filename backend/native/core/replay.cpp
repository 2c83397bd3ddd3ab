#include "replay.h"

#include <stdexcept>
#include <unordered_map>

#include "manual_clock.h"

namespace ral {

namespace {

class Replay {
 public:
  Replay(const AllocatorConfig& config, const ReplaySteps& steps)
      : steps_(steps), allocator_(config, std::make_unique<ImaginaryRegions>(), nullptr, &clock_) {}

  Replayed run() {
    Replayed result;
    std::size_t most = 0;
    for (std::size_t step = 0; step < steps_.count; ++step) {
      try {
        take(step);
      } catch (const OutOfMemory&) {
        result.out_of_memory_step = step;
        break;
      }
      if (reserved_ > most) {
        most = reserved_;
        result.peak_reserved_step = step;
      }
    }
    result.stats = allocator_.stats();
    result.largest_free_block = allocator_.largest_free_block();
    return result;
  }

 private:
  std::uint8_t stream(std::size_t step) const {
    if (steps_.stream[step] >= kMaxStreams) {
      throw std::invalid_argument("step " + std::to_string(step) + ": there is no such stream");
    }
    return steps_.stream[step];
  }

  void take(std::size_t step) {
    switch (static_cast<ReplayAction>(steps_.action[step])) {
      case ReplayAction::kAllocate:
        return allocate(step);
      case ReplayAction::kFree:
        return free(steps_.block[step]);
      case ReplayAction::kSubmit:
        clock_.submit(stream(step));
        return;
      case ReplayAction::kFinish:
        return clock_.finish(stream(step), steps_.amount[step]);
    }
    throw std::invalid_argument("step " + std::to_string(step) + ": there is no such action");
  }

  void allocate(std::size_t step) {
    const auto [place, is_new] = live_.try_emplace(steps_.block[step], nullptr);
    if (!is_new) {
      throw std::invalid_argument("step " + std::to_string(step) + ": the block is in use already");
    }
    place->second = allocator_.allocate(steps_.amount[step], stream(step));
    // Only an allocation changes it upwards.
    reserved_ = allocator_.reserved();
  }

  void free(std::uint32_t number) {
    if (const auto found = live_.find(number); found != live_.end()) {
      allocator_.free(found->second);
      live_.erase(found);
    }
  }

  ReplaySteps steps_;
  ManualClock clock_;
  RegionAllocator allocator_;
  std::unordered_map<std::uint32_t, Block*> live_;
  std::size_t reserved_ = 0;
};

}  // namespace

Replayed replay(const AllocatorConfig& config, const ReplaySteps& steps) { return Replay(config, steps).run(); }

}  // namespace ral
