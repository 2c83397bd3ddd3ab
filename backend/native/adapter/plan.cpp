#include "plan.h"

namespace ral {

std::shared_ptr<const Plan> PlanTable::find(const PlanKey& key, std::uint32_t generation) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (sets_.empty()) {
    return nullptr;
  }
  for (const Entry& entry : sets_[key.first % kSets].entries) {
    if (entry.key == key && entry.plan != nullptr && entry.plan->generation == generation) {
      return entry.plan;
    }
  }
  return nullptr;
}

void PlanTable::put(const PlanKey& key, std::shared_ptr<const Plan> plan) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sets_.resize(kSets);
  Set& set = sets_[key.first % kSets];
  for (Entry& entry : set.entries) {
    if (entry.key == key) {
      entry.plan = std::move(plan);
      return;
    }
  }
  set.entries[set.next++ % kWays] = {key, std::move(plan)};
}

}  // namespace ral
