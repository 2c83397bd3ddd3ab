#include "router.h"

#include <torch/library.h>

#include "alias.h"
#include "compiled.h"
#include "fallback_storm.h"
#include "immortal.h"
#include "python_backend.h"
#include "run.h"

namespace ral {

namespace {

// The first `ral` device among the arguments; otherwise the one that a Device argument names, or the current one.
Device& find_device(const Operator& op, const Stack& stack) {
  const std::size_t first = stack.size() - op.argument_count();
  std::optional<c10::Device> found;
  for (const ArgSpec& spec : op.arguments()) {
    const c10::IValue& value = stack[first + spec.position];
    for_each_tensor(spec, value, [&](const at::Tensor& tensor) {
      if (!found.has_value() && tensor.device().type() == kRal) {
        found = tensor.device();
      }
    });
    if (!found.has_value() && spec.kind == ArgKind::kDevice && value.isDevice() && value.toDevice().type() == kRal) {
      found = value.toDevice();
    }
    if (found.has_value()) {
      break;
    }
  }
  return Runtime::get().device(found.has_value() ? found->index() : current_device());
}

const events::Name& route_name(Route route) {
  static const std::array<events::Name, kRouteNames.size()> names = {
      events::Name(kRouteNames[0]), events::Name(kRouteNames[1]), events::Name(kRouteNames[2]),
      events::Name(kRouteNames[3]), events::Name(kRouteNames[4])};
  return names[static_cast<std::size_t>(route)];
}

std::shared_ptr<const Plan> plain_plan(Route route, const Decision& decision, std::string refused = "") {
  auto plan = std::make_shared<Plan>();
  plan->route = route;
  plan->decision = &decision;
  plan->generation = decision.generation;
  plan->refused = std::move(refused);
  return plan;
}

// torch composes it of other operators, which come back here one by one.
void expand(const Operator& op, Stack& stack) {
  op.handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse2), &stack);
}

// Who runs a call that looks like this: native, reference, composed, the CPU.
std::shared_ptr<const Plan> make_plan(const Call& call) {
  const Operator& op = call.op();
  const Decision& decision = op.decisions().decide(call.device(), op.name().text(), call.shape());
  const bool native = decision.kernel != nullptr && !decision.kernel->is_aten();
  std::string reason;
  if (native) {
    if (auto plan = plan_native(call, decision, &reason)) {
      return plan;
    }
  } else if (!op.is_torchs_own()) {
    reason = "another library's CPU kernel runs on the program's own threads, for it may be Python";
  } else if (decision.kernel != nullptr) {
    return plain_plan(Route::kNative, decision);
  } else if (call.device().host_addressable()) {
    return plain_plan(Route::kReference, decision);
  }
  return plain_plan(op.is_composed() ? Route::kComposed : Route::kCpu, decision, std::move(reason));
}

// What is left where neither a native kernel nor the reference takes the call: compiled code where that is switched on,
// then the CPU. `native` says why a kernel refused after it was chosen.
void fall_back(Call& call, const Decision& decision, const std::string& native, Stack& stack, events::Launch& launch) {
  Device& device = call.device();
  std::string refused = native.empty() ? "" : "native: " + native;
  std::string chain = decision.reasons.text();
  if (!native.empty()) {
    chain = refused + (device.host_addressable() ? "" : "; reference: the memory is not the host's");
  }
  if (compiled_on()) {
    launch.set_route(route_name(Route::kCompiled));
    std::string reason;
    if (run_compiled(call, decision, stack, launch, &reason)) {
      decision.route.store(Route::kCompiled, std::memory_order_relaxed);
      return;
    }
    refused += (refused.empty() ? "compiled: " : "; compiled: ") + reason;
    chain += "; compiled: " + reason;
  }
  launch.set_route(route_name(Route::kCpu));
  launch.note_fallback();
  if (refused.empty()) {
    run_on_cpu(call.op(), device, stack, launch, decision, decision.reasons);
  } else {
    decision.set_refused(refused);
    run_on_cpu(call.op(), device, stack, launch, decision, events::Name(chain));
  }
  watch_for_storm(device);
}

void count(const Plan& plan, Device& device) {
  plan.decision->route.store(plan.route, std::memory_order_relaxed);
  plan.decision->launches.fetch_add(1, std::memory_order_relaxed);
  device.load().launches.fetch_add(1, std::memory_order_relaxed);
}

void launch_call(Call& call, Stack& stack) {
  const Operator& op = call.op();
  const PlanKey key = call.key();
  std::shared_ptr<const Plan> plan = op.plans().find(key, call.device().kernels().generation());
  const bool fresh = plan == nullptr;
  if (fresh) {
    plan = make_plan(call);
  }
  count(*plan, call.device());
  if (fresh && (plan->route == Route::kComposed || plan->route == Route::kCpu)) {
    op.plans().put(key, plan);
  }
  if (plan->route == Route::kComposed) {
    expand(op, stack);
    return;
  }
  events::Launch launch(op.name(), call.device().index(), call.device().current_stream_row());
  launch.set_route(route_name(plan->route));
  if (plan->route == Route::kCpu) {
    fall_back(call, *plan->decision, plan->refused, stack, launch);
    return;
  }
  if (plan->decision->kernel == nullptr || plan->decision->kernel->is_aten()) {
    run_aten(call, plan, stack, launch);
    return;
  }
  std::string reason;
  const bool done = run_native(call, plan, stack, launch, &reason);
  if (fresh) {
    plan->may_decline.store(!done, std::memory_order_relaxed);
    op.plans().put(key, plan);
  }
  if (!done) {
    fall_back(call, *plan->decision, "kernel declined (" + reason + ")", stack, launch);
  }
}

// False: it is none of those that the vendor's Python class runs.
bool run_python(const Operator& op, Device& device, Stack& stack) {
  events::Launch launch(op.name(), device.index(), device.current_stream_row());
  launch.set_route(route_name(Route::kNative));
  std::string not_mine;
  if (dispatch_python(op, device, stack, launch, &not_mine)) {
    device.load().launches.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  launch.cancel();
  return false;
}

void route_call(const Operator& op, Stack& stack) {
  Device& device = find_device(op, stack);
  if (op.is_view()) {
    run_view(op, device, stack);
    return;
  }
  if (has_python_backend(device) && run_python(op, device, stack)) {
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(C10_LIKELY(op.has_cpu_kernel()), op.name().text(), " has no kernel for ",
                              device.torch_device(), " and none for the CPU to fall back to");
  Call call(op, device, stack);
  launch_call(call, stack);
}

void route_any(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
  (void)keys;
  route_call(Operator::of(handle), *stack);
}

// One operator's own way in: no look-up.
class RoutedOperator final : public c10::OperatorKernel {
 public:
  explicit RoutedOperator(Operator& op) : op_(op) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    (void)handle;
    (void)keys;
    route_call(op_, *stack);
  }

 private:
  Operator& op_;
};

}  // namespace

void route_operators(const std::vector<std::string>& names) {
  struct Libraries {
    std::mutex mutex;
    std::vector<std::unique_ptr<torch::Library>> list;
  };
  static Immortal<Libraries> holder;
  static Libraries* const libraries = holder.emplace();
  const std::lock_guard<std::mutex> lock(libraries->mutex);
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                                                  static_cast<std::uint32_t>(__LINE__));
  for (const std::string& name : names) {
    const auto dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(), overload.c_str());
    if (!handle.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      library->impl(name.substr(std::string("aten::").size()).c_str(),
                    torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RoutedOperator>(Operator::of(handle))));
    }
  }
  libraries->list.push_back(std::move(library));
}

LookUpTimes time_look_ups(Device& device, std::size_t count) {
  const Operator& op = Operator::of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor"));
  const at::Tensor x = make_tensor(device_storage(device, 64), caffe2::TypeMeta::Make<float>(), {4, 4}, {4, 1}, 0);
  const Stack stack = {x, x, at::Scalar(1)};
  Stack first = stack;
  route_call(op, first);
  const auto mean_ns = [count](auto&& once) {
    const std::uint64_t begin = trace::monotonic_ns();
    for (std::size_t i = 0; i < count; ++i) {
      once();
    }
    return static_cast<double>(trace::monotonic_ns() - begin) / static_cast<double>(count);
  };
  LookUpTimes times;
  times.read_ns = mean_ns([&] { Call(op, device, stack); });
  const Call call(op, device, stack);
  times.find_ns = mean_ns([&] {
    TORCH_CHECK(op.plans().find(call.key(), device.kernels().generation()) != nullptr, "the add has no plan");
  });
  return times;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&route_any>()); }

}  // namespace ral
