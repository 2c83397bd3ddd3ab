// Says once when much of a program runs on the CPU after all: which operators to implement first.
#pragma once

#include <functional>

#include "operator.h"

namespace ral {

// Shares of a device's launches (0 to 1) from which a warning, and a louder one, is given; above 1: never.
struct StormThresholds {
  double warn = 0.1;
  double shout = 0.3;
};

StormThresholds storm_thresholds() noexcept;
void set_storm_thresholds(const StormThresholds& thresholds) noexcept;

// After a fallback of the device.
void watch_for_storm(Device& device);

// Every decision of every operator that was called in this process.
void visit_decisions(const std::function<void(const Operator&, const Decision&)>& visitor);

}  // namespace ral
