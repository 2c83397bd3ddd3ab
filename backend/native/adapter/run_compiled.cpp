// The compiled tier: one shared library a kind of call, run by AOTInductor's runner on aliases of the device's memory.
#include <ATen/ops/copy_ops.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "compiled.h"
#include "immortal.h"
#include "layout_rules.h"
#include "results.h"
#include "run.h"

namespace ral {

namespace {

using Runner = torch::inductor::AOTIModelContainerRunnerCpu;

// A kernel, or why there is none.
struct CompiledKernel {
  explicit CompiledKernel(const std::string& op) : name("compiled:" + op) {}
  events::Name name;
  Layout layout;
  std::unique_ptr<Runner> runner;
  std::string refused;
};

std::atomic<bool> switched_on{false};

// All that were made in this process. They live for ever: what is queued holds plain pointers.
class CompiledKernels {
 public:
  // Arguments that change with each call would keep the compiler busy for good.
  static constexpr std::size_t kMostOfOneOperator = 32;

  static CompiledKernels& instance() {
    static Immortal<CompiledKernels> holder;
    static CompiledKernels* const kernels = holder.emplace();
    return *kernels;
  }
  const CompiledKernel* find(const Operator& op, const PlanKey& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const OfOperator& known = kernels_[&op];
    const auto found = known.find({key.first, key.second});
    return found != known.end() ? found->second.get() : nullptr;
  }
  bool has_room(const Operator& op) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kernels_[&op].size() < kMostOfOneOperator;
  }
  // The first of a key stays: another thread may have made the same meanwhile.
  const CompiledKernel* put(const Operator& op, const PlanKey& key, std::unique_ptr<CompiledKernel> kernel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kernels_[&op].try_emplace({key.first, key.second}, std::move(kernel)).first->second.get();
  }

 private:
  using OfOperator = std::map<std::pair<std::uint64_t, std::uint64_t>, std::unique_ptr<CompiledKernel>>;
  std::mutex mutex_;
  std::map<const Operator*, OfOperator> kernels_;
};

// All of them: -0.0 is another constant than 0.0.
std::uint64_t bits_of(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

void add_value(PlanKey& key, const c10::IValue& value) {
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      add_value(key, element);
    }
  } else if (value.isDouble()) {
    key.add(bits_of(value.toDouble()));
  } else if (value.isComplexDouble()) {
    key.add(bits_of(value.toComplexDouble().real()));
    key.add(bits_of(value.toComplexDouble().imag()));
  } else if (value.isInt() || value.isBool()) {
    key.add(c10::IValue::hash(value));
  }
}

// A plan's key leaves numbers out; compiled code has them in it.
PlanKey key_with_values(const Call& call) {
  PlanKey key = call.key();
  for (std::size_t i = 0; i < call.values().size(); ++i) {
    if (!call.op().shapes_result(i)) {
      add_value(key, call.values()[i]);
    }
  }
  for (const at::Tensor& tensor : call.host_tensors()) {
    if (is_wrapped_number(tensor)) {
      add_value(key, c10::IValue(tensor.item()));
    }
  }
  return key;
}

std::string refusal(const Call& call) {
  const c10::OperatorHandle& handle = call.op().handle();
  if (call.depends_on_data()) {
    return "what comes out depends on the data";
  }
  if (handle.hasTag(at::Tag::nondeterministic_seeded)) {
    return "it draws random numbers";
  }
  if (!call.device().info().source->memory_is_mapped()) {
    return "the memory is not mapped in this process";
  }
  return writes_into_what_it_reads(call) ? "an output overlaps itself or part of an input" : "";
}

std::string refusal(const std::optional<Layout>& layout) {
  if (!layout.has_value()) {
    return "what comes out is not known before it runs";
  }
  if (!layout->resized.empty()) {
    return "it resizes out=";
  }
  for (const TensorLayout& tensor : layout->tensors) {
    if (tensor.from == TensorLayout::From::kUndefined) {
      return "it leaves a result out";
    }
  }
  return "";
}

std::unique_ptr<CompiledKernel> make(const Call& call, const Decision& decision) {
  auto kernel = std::make_unique<CompiledKernel>(call.op().name().text());
  kernel->refused = refusal(call);
  if (!kernel->refused.empty()) {
    return kernel;
  }
  std::optional<Layout> layout = layout_without_running(call);
  kernel->refused = refusal(layout);
  if (!kernel->refused.empty()) {
    return kernel;
  }
  kernel->layout = std::move(*layout);
  const MadeKernel made = make_kernel(call, kernel->layout);
  decision.compile_ns.fetch_add(made.spent_ns, std::memory_order_relaxed);
  kernel->refused = made.refused;
  if (made.library.empty()) {
    return kernel;
  }
  try {
    kernel->runner = std::make_unique<Runner>(made.library);
  } catch (const std::exception& error) {
    kernel->refused = std::string("the library cannot be loaded (") + error.what() + ")";
  }
  return kernel;
}

class CompiledWork final : public Work {
 public:
  CompiledWork(Call&& call, const CompiledKernel& kernel, c10::SmallVector<HandOut::Place, 2>&& places,
               const events::Launch& launch)
      : Work(WorkKind::kCompute, Pipeline::kCompute, launch.name()),
        call_(std::move(call)),
        kernel_(kernel),
        places_(std::move(places)),
        bytes_(call_.bytes() + fresh_bytes(kernel.layout)),
        started_(launch) {}

  void run() override {
    // Inductor allocates in its own order: of several results each would be born in the place of another.
    std::optional<HandOut> here;
    if (places_.size() == 1) {
      here.emplace(places_);
    }
    const CallAliases aliases(call_);
    std::vector<at::Tensor> made = kernel_.runner->run(inputs(aliases));
    std::size_t next = 0;
    const Stack results = take_results(made, &next);
    write_back(aliases, made, next);
    settle(kernel_.layout, results, places_);
  }

  void ended(const Times& times) noexcept override {
    if (started_.active()) {
      started_.work(trace::Kind::kKernel, times.start_ticks, times.end_ticks, bytes_, kernel_.name.id(),
                    call_.device().vendor_name().id());
    }
  }

  std::uint64_t model_ns(const DeviceModel& model) const noexcept override {
    return model.kernel_ns(static_cast<std::uint64_t>(bytes_));
  }
  std::string what() const override { return call_.op().name().text(); }

 private:
  // Numbers are in the code.
  static std::vector<at::Tensor> inputs(const CallAliases& aliases) {
    std::vector<at::Tensor> tensors;
    for (std::size_t i = 0; i < aliases.size(); ++i) {
      if (aliases.tensor(i).defined() && !is_wrapped_number(aliases.tensor(i))) {
        tensors.push_back(aliases.tensor(i));
      }
    }
    return tensors;
  }

  // As the operator returns them: what comes first of all that the library makes.
  Stack take_results(const std::vector<at::Tensor>& made, std::size_t* next) const {
    Stack results;
    for (const ReturnLayout& expected : kernel_.layout.returns) {
      if (expected.argument >= 0) {
        results.emplace_back();
      } else if (!expected.list) {
        results.emplace_back(made.at((*next)++));
      } else {
        c10::List<at::Tensor> list;
        for (std::uint32_t i = 0; i < expected.count; ++i) {
          list.push_back(made.at((*next)++));
        }
        results.emplace_back(std::move(list));
      }
    }
    return results;
  }

  // Then come the arguments that the operator writes, in their order.
  void write_back(const CallAliases& aliases, const std::vector<at::Tensor>& made, std::size_t next) const {
    call_.for_each_argument([&](const ArgSpec& spec, std::size_t first, std::size_t count) {
      for (std::size_t i = first; spec.written && i < first + count; ++i) {
        if (aliases.tensor(i).defined()) {
          at::_ops::copy_::call(const_cast<at::Tensor&>(aliases.tensor(i)), made.at(next++), false);
        }
      }
    });
  }

  Call call_;
  const CompiledKernel& kernel_;
  c10::SmallVector<HandOut::Place, 2> places_;
  std::int64_t bytes_;
  events::Started started_;
};

}  // namespace

bool compiled_on() noexcept { return switched_on.load(std::memory_order_relaxed); }
void set_compiled(bool on) noexcept { switched_on.store(on, std::memory_order_relaxed); }

bool run_compiled(Call& call, const Decision& decision, Stack& stack, events::Launch& launch, std::string* reason) {
  CompiledKernels& kernels = CompiledKernels::instance();
  const Operator& op = call.op();
  const PlanKey key = key_with_values(call);
  const CompiledKernel* kernel = kernels.find(op, key);
  if (kernel == nullptr && !kernels.has_room(op)) {
    *reason = "its arguments keep changing, there are " + std::to_string(CompiledKernels::kMostOfOneOperator) +
              " kernels of it already";
    return false;
  }
  if (kernel == nullptr) {
    kernel = kernels.put(op, key, make(call, decision));
  }
  if (kernel->runner == nullptr) {
    *reason = kernel->refused;
    return false;
  }
  decision.compiled.fetch_add(1, std::memory_order_relaxed);
  Stream& stream = call.device().current_stream();
  Results results = make_results(kernel->layout, call, stack);
  stream.submit<CompiledWork>(std::move(call), *kernel, std::move(results.places), launch);
  put_results(op, stack, std::move(results.values));
  return true;
}

}  // namespace ral
