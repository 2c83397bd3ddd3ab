// The ways in which a routed call is carried out. Each leaves the results on the stack in place of the arguments.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "call.h"
#include "plan.h"
#include "results.h"

namespace ral {

// A run that its launching thread waits for.
struct Trial {
  std::optional<Call> call;  // handed back
  Outcome outcome;
  std::int64_t fresh_bytes = 0;
  std::exception_ptr error;
};

// For an item of the current stream. Raises what a kernel before it threw.
void wait_for_trial(Device& device, std::uint64_t ticket);

void run_view(const Operator& op, Device& device, Stack& stack);
void run_aten(Call& call, const std::shared_ptr<const Plan>& plan, Stack& stack, const events::Launch& launch);

// False: the kernel declines, nothing was done, the call is as it was, `reason` says why.
bool run_native(Call& call, const std::shared_ptr<const Plan>& plan, Stack& stack, const events::Launch& launch,
                std::string* reason);
// A plan for the vendor's kernel: the layout of what comes out is asked of torch. Nothing, with the reason: the kernel
// cannot be called like that.
std::shared_ptr<const Plan> plan_native(const Call& call, const Decision& decision, std::string* reason);

// PyTorch's CPU kernel on copies: waits for the device.
void run_on_cpu(const Operator& op, Device& device, Stack& stack, const events::Launch& launch,
                const Decision& decision, const events::Name& reasons);

}  // namespace ral
