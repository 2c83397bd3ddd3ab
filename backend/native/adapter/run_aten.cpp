// ATen's CPU kernels in place on a device's memory: the native library of `host`, and the reference of every device whose
// memory the host can address.
#include <ATen/ops/copy_ops.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "results.h"
#include "run.h"

namespace ral {

namespace {

class AtenWork final : public Work {
 public:
  // With `trial` the kernel's own results are handed to the waiting thread, also its exception.
  AtenWork(Call&& call, std::shared_ptr<const Plan> plan, c10::SmallVector<HandOut::Place, 2>&& places,
           const events::Launch& launch, Trial* trial)
      : Work(WorkKind::kCompute, Pipeline::kCompute, launch.name()),
        call_(std::move(call)),
        plan_(std::move(plan)),
        places_(std::move(places)),
        started_(launch),
        trial_(trial) {
    site = launch.site();
    if (started_.active()) {
      bytes_ = call_.bytes() + (plan_->layout.has_value() ? fresh_bytes(*plan_->layout) : 0);
    }
  }

  void run() override {
    if (trial_ != nullptr) {
      try {
        try_out();
      } catch (...) {  // it belongs to the thread that waits
        trial_->error = std::current_exception();
      }
      return;
    }
    const HandOut here(places_);  // before the stack, whose results come back here when they go
    const CallAliases aliases(call_);
    Stack stack = aliases.stack();
    try {
      call_.op().cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    } catch (const c10::Error& error) {
      throw std::runtime_error(error.what_without_backtrace());  // the frames are ours, not the program's
    }
    settle(*plan_->layout, stack, places_);
  }

  void ended(const Times& times) noexcept override {
    if (started_.active() && (trial_ == nullptr || trial_->error == nullptr)) {
      started_.work(trace::Kind::kKernel, times.start_ticks, times.end_ticks,
                    trial_ == nullptr ? bytes_ : bytes_ + trial_->fresh_bytes, call_.op().name().id(),
                    call_.device().vendor_name().id());
    }
  }

  std::uint64_t model_ns(const DeviceModel& model) const noexcept override {
    return model.kernel_ns(static_cast<std::uint64_t>(call_.bytes()));
  }
  std::string what() const override { return call_.op().name().text(); }

 private:
  void try_out() {
    const CallAliases aliases(call_);
    Stack stack = aliases.stack();
    call_.op().cpu_handle().redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    for (std::size_t i = 0; i < aliases.size(); ++i) {
      trial_->outcome.arguments.push_back(aliases.tensor(i));
    }
    trial_->outcome.results = std::move(stack);
    for (std::size_t i = 0; i < trial_->outcome.results.size(); ++i) {
      const c10::IValue& result = trial_->outcome.results[i];
      if (call_.op().return_argument(i) < 0) {
        for_each_result(result, [&](const at::Tensor& tensor) {
          if (tensor.defined()) {
            check_holdable(call_.op(), tensor);
            trial_->fresh_bytes += static_cast<std::int64_t>(tensor.nbytes());
          }
        });
      }
    }
    trial_->call.emplace(std::move(call_));
  }

  template <class Visitor>
  static void for_each_result(const c10::IValue& result, Visitor&& visit) {
    if (result.isTensor()) {
      visit(result.toTensor());
    } else if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorList()) {
        visit(tensor);
      }
    }
  }

  Call call_;
  std::shared_ptr<const Plan> plan_;
  c10::SmallVector<HandOut::Place, 2> places_;
  events::Started started_;
  std::int64_t bytes_ = -1;
  Trial* trial_;
};

// Brings what a trial made into the memory that the program gets.
class FillWork final : public Work {
 public:
  FillWork(std::vector<c10::Storage>&& from, std::vector<HandOut::Place>&& to)
      : Work(WorkKind::kHost, Pipeline::kCompute, 0), from_(std::move(from)), to_(std::move(to)) {}
  void run() override {
    for (std::size_t i = 0; i < to_.size(); ++i) {
      if (to_[i].bytes != 0 && to_[i].data != from_[i].data()) {
        std::memcpy(to_[i].data, from_[i].data(), std::min(to_[i].bytes, from_[i].nbytes()));
      }
    }
  }
  std::string what() const override { return "a first result"; }

 private:
  std::vector<c10::Storage> from_;
  std::vector<HandOut::Place> to_;
};

void remember(const Call& call, const Plan& plan, const Layout& layout) {
  auto complete = std::make_shared<Plan>();
  complete->route = plan.route;
  complete->decision = plan.decision;
  complete->generation = plan.generation;
  complete->layout = layout;
  call.op().plans().put(call.key(), std::move(complete));
}

void put_first_results(Call& call, const Plan& plan, const Outcome& outcome, Stream& stream, Stack& stack) {
  Learnt learnt = learn(call, outcome);
  if (learnt.complete && !call.depends_on_data()) {
    remember(call, plan, learnt.layout);
  }
  Results results = make_results(learnt.layout, call, stack);
  std::vector<HandOut::Place> to(results.places.begin(), results.places.end());
  to.insert(to.end(), results.resized.begin(), results.resized.end());
  std::vector<c10::Storage> from = std::move(learnt.fresh);
  from.insert(from.end(), learnt.resized.begin(), learnt.resized.end());
  if (!to.empty()) {
    stream.submit<FillWork>(std::move(from), std::move(to));
  }
  for (std::size_t i = 0; i < outcome.results.size(); ++i) {
    const ReturnLayout& result = learnt.layout.returns[i];
    if (result.argument < 0 && !result.list && result.count == 0) {
      results.values[i] = outcome.results[i];  // what is no tensor passes as it is
    }
  }
  put_results(call.op(), stack, std::move(results.values));
}

}  // namespace

void wait_for_trial(Device& device, std::uint64_t ticket) {
  device.current_stream().wait(ticket);
  device.raise_failure();  // of what ran before it
}

void run_aten(Call& call, const std::shared_ptr<const Plan>& plan, Stack& stack, const events::Launch& launch) {
  Stream& stream = call.device().current_stream();
  if (plan->layout.has_value()) {
    Results results = make_results(*plan->layout, call, stack);
    const Operator& op = call.op();
    stream.submit<AtenWork>(std::move(call), plan, std::move(results.places), launch, nullptr);
    put_results(op, stack, std::move(results.values));
    return;
  }
  // Never seen: its first run shows what comes out.
  Trial trial;
  Device& device = call.device();
  {
    const events::Wait waiting(launch, device.index());
    wait_for_trial(
        device, stream.submit<AtenWork>(std::move(call), plan, c10::SmallVector<HandOut::Place, 2>(), launch, &trial));
  }
  if (trial.error != nullptr) {
    std::rethrow_exception(trial.error);
  }
  put_first_results(*trial.call, *plan, trial.outcome, stream, stack);
}

}  // namespace ral
