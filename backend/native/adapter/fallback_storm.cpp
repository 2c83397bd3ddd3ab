#include "fallback_storm.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "runtime.h"

namespace ral {

namespace {

// Before that many launches a share says nothing: a program begins with what it does once.
constexpr std::uint64_t kFewest = 500;
constexpr std::size_t kNamed = 5;

std::atomic<double> warn_at{StormThresholds().warn};
std::atomic<double> shout_at{StormThresholds().shout};

// By the time that the fallbacks took.
std::string to_implement_first(const Device& device) {
  std::map<std::string, std::uint64_t> cost_ns;
  visit_decisions([&](const Operator& op, const Decision& decision) {
    if (decision.device == &device && decision.fallbacks.load(std::memory_order_relaxed) != 0) {
      cost_ns[base_name(op.name().text())] += decision.fallback_ns.load(std::memory_order_relaxed) + 1;
    }
  });
  std::vector<std::pair<std::uint64_t, std::string>> ranked;
  for (const auto& [name, ns] : cost_ns) {
    ranked.emplace_back(ns, name);
  }
  std::sort(ranked.rbegin(), ranked.rend());
  std::string names;
  for (std::size_t i = 0; i < std::min(kNamed, ranked.size()); ++i) {
    names += (names.empty() ? "" : ", ") + ranked[i].second;
  }
  return names;
}

}  // namespace

StormThresholds storm_thresholds() noexcept { return {warn_at.load(), shout_at.load()}; }

void set_storm_thresholds(const StormThresholds& thresholds) noexcept {
  warn_at.store(thresholds.warn);
  shout_at.store(thresholds.shout);
}

void watch_for_storm(Device& device) {
  Device::Load& load = device.load();
  const std::uint64_t fallbacks = load.fallbacks.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::uint64_t launches = load.launches.load(std::memory_order_relaxed);
  if (launches < kFewest) {
    return;
  }
  const double share = static_cast<double>(fallbacks) / static_cast<double>(launches);
  const StormThresholds thresholds = storm_thresholds();
  const int level = share >= thresholds.shout ? 2 : share >= thresholds.warn ? 1 : 0;
  int said = load.said.load(std::memory_order_relaxed);
  if (level <= said || !load.said.compare_exchange_strong(said, level)) {
    return;
  }
  std::ostringstream text;
  text << (level == 2 ? "FALLBACK STORM" : "fallbacks") << " on " << device.torch_device() << " ("
       << device.info().vendor.name << "): " << static_cast<int>(share * 100 + 0.5) << " % of " << launches
       << " launches ran on the CPU, with copies; implement first: " << to_implement_first(device)
       << " (torch.ral.dispatch_records() says why each)";
  TORCH_WARN(text.str());
}

void visit_decisions(const std::function<void(const Operator&, const Decision&)>& visitor) {
  Operator::visit_all(
      [&](const Operator& op) { op.decisions().visit([&](const Decision& decision) { visitor(op, decision); }); });
}

}  // namespace ral
