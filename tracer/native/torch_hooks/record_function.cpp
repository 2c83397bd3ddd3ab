// Ops, autograd's backward nodes and annotations of any PyTorch program, through at::RecordFunction. Loaded at the
// first session, never before.
#include <ATen/record_function.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "host_blocks.h"
#include "inputs.h"
#include "op_names.h"

namespace ral::trace {

namespace {

const WriterApi* g_api = nullptr;
// When the hooks were installed, in both clocks: the rate of the ticks since then.
std::uint64_t g_installed_ticks = 0;
std::uint64_t g_installed_ns = 0;

// Our own cost is measured at every such op of a thread, and taken for that of the others.
constexpr std::uint32_t kSampleEvery = 256;
// What torch itself adds to an op for having a callback at all. Measured: an empty callback adds 111 to 123 ns to an op
// of 1230; what is measured here is the rest.
constexpr std::uint64_t kTorchsPartNs = 110;

std::uint64_t ticks_of(std::uint64_t ns) {
  const std::uint64_t elapsed_ns = monotonic_ns() - g_installed_ns;
  const std::uint64_t elapsed_ticks = ticks(g_api->clock) - g_installed_ticks;
  return elapsed_ns == 0 ? ns
                         : static_cast<std::uint64_t>(static_cast<double>(ns) * static_cast<double>(elapsed_ticks) /
                                                      static_cast<double>(elapsed_ns));
}

// How long ops of a name take, for shedding the small ones.
class MeanDurations {
 public:
  struct Name {
    std::uint32_t id = 0;
    std::uint32_t measured = 0;
    std::uint32_t skipped = 0;  // since the last measurement
    std::uint64_t mean_ticks = 0;
  };

  Name& of(std::uint32_t id) {
    Name& name = names_[id % names_.size()];
    if (name.id != id) {
      name = {};
      name.id = id;
    }
    return name;
  }

  // Whether the next op of the name is to be left out; now and then one is measured again, in case that it has grown.
  static bool skips(Name& name, std::uint64_t small_ticks) {
    if (name.measured < kLearnt || name.mean_ticks > small_ticks || name.skipped == kMeasureAgain) {
      return false;
    }
    ++name.skipped;
    return true;
  }

  // Whether an op that was measured is to be left out all the same.
  static bool drops(Name& name, std::uint64_t taken_ticks, std::uint64_t small_ticks) {
    const bool known_small = name.measured >= kLearnt && name.mean_ticks <= small_ticks;
    name.skipped = 0;
    ++name.measured;
    const auto difference = static_cast<std::int64_t>(taken_ticks) - static_cast<std::int64_t>(name.mean_ticks);
    name.mean_ticks += static_cast<std::uint64_t>(difference / std::min<std::int64_t>(name.measured, kWindow));
    return known_small && taken_ticks <= small_ticks;
  }

 private:
  static constexpr std::uint32_t kLearnt = 4;
  static constexpr std::uint32_t kMeasureAgain = 63;
  static constexpr std::int64_t kWindow = 8;

  std::array<Name, 1024> names_{};
};

// An op that has begun on this thread. Ops end in the reverse order of their begin, on the thread where they began.
struct OpenOp {
  const at::RecordFunction* function;
  std::uint64_t entered_ticks;  // before our own work, where that is measured; else 0
  std::uint64_t start_ticks;    // before the op's
  std::uint32_t name;
  bool is_visible;
  // Only where more is wanted than ops.
  bool is_skipped;
  std::uint32_t shapes;
  std::uint32_t stack;
  std::uint64_t correlation;
  const c10::FunctionSchema* schema;
};

constexpr std::size_t kMaxDepth = 512;

struct ThreadOps {
  ThreadOps() : view(g_api->thread_view()), names(*g_api) {}

  OpenOp* top = &open.front();  // what is innermost; the first of all is none
  ThreadView* view;
  std::uint32_t until_sample = kSampleEvery;
  std::uint32_t stack = 0;     // of the outermost op, while there is one
  std::uint64_t too_deep = 0;  // ops that found no room below
  std::uint64_t small_ticks = 0;
  OpNames names;
  std::array<OpenOp, kMaxDepth + 1> open{};
  // Made where they are needed.
  std::unique_ptr<ShapeTexts> shapes;
  std::unique_ptr<MeanDurations> durations;
};

// initial-exec: a plain load instead of a call, twice an op. A pointer, because such room is scarce.
__attribute__((tls_model("initial-exec"))) thread_local ThreadOps* t_ops = nullptr;

__attribute__((noinline, cold)) ThreadOps& make_thread_ops() {
  // Where the process has no key left, the memory of an ended thread is not given back.
  static const std::optional<pthread_key_t> key = []() -> std::optional<pthread_key_t> {
    pthread_key_t fresh{};
    const int failed = pthread_key_create(&fresh, [](void* ops) {
      const std::unique_ptr<ThreadOps> gone(static_cast<ThreadOps*>(ops));
      t_ops = nullptr;
    });
    return failed == 0 ? std::optional(fresh) : std::nullopt;
  }();
  auto ops = std::make_unique<ThreadOps>();
  if (key) {
    pthread_setspecific(*key, ops.get());
  }
  t_ops = ops.release();  // owned by the thread; the key's destructor takes it back
  return *t_ops;
}

ThreadOps& thread_ops() {
  ThreadOps* ops = t_ops;
  return __builtin_expect(ops != nullptr, 1) ? *ops : make_thread_ops();
}

// --- what more may be wanted of an op ---

void look_closer(ThreadOps& ops, OpenOp& op, const OpName& name, const at::RecordFunction& function) {
  const std::uint32_t details = g_api->details->load(std::memory_order_relaxed);
  op.is_skipped = false;
  op.shapes = op.stack = 0;
  op.correlation = 0;
  op.schema = nullptr;
  if ((details & kSmallOps) == 0) {
    if (ops.durations == nullptr) {
      ops.durations = std::make_unique<MeanDurations>();
      ops.small_ticks = ticks_of(kSmallOpNs);
    }
    op.is_skipped = MeanDurations::skips(ops.durations->of(op.name), ops.small_ticks);
    if (op.is_skipped) {
      return;
    }
  }
  if ((details & kOpStacks) != 0) {
    // What an op calls has the same lines of Python above it.
    ops.stack = ops.top == &ops.open[1] ? g_api->python_stack() : ops.stack;
    op.stack = ops.stack;
  }
  if ((details & kShapes) != 0) {
    if (ops.shapes == nullptr) {
      ops.shapes = std::make_unique<ShapeTexts>(*g_api);
    }
    op.shapes = ops.shapes->of(function.inputs());
  }
  if ((details & kAccesses) != 0 && op.is_visible) {
    op.correlation = g_api->next_correlation();
    op.schema = name.schema;
    emit_inputs_used(*g_api, *op.schema, function.inputs(), op.correlation);
  }
}

// --- an op ---

// Begin and end of our own work around an op: what it took is an estimate of what all took.
void add_spent(const OpenOp& op, std::uint64_t end_ticks) {
  const std::uint64_t ours = op.start_ticks - op.entered_ticks + (ticks(g_api->clock) - end_ticks);
  g_api->add_spent((ours + ticks_of(kTorchsPartNs)) * kSampleEvery);
}

__attribute__((noinline, cold)) void tell_of_too_deep(ThreadOps& ops) {
  const std::string text =
      std::to_string(ops.too_deep) + " ops were nested deeper than " + std::to_string(kMaxDepth) + ": not recorded";
  ops.too_deep = 0;
  Record record = make_record(Kind::kInstant, g_api->intern(text.data(), text.size()));
  emit_instant(*g_api, record);
}

std::uint64_t autograd_key_of(const at::RecordFunction& function, bool backward) {
  const std::uint64_t thread = backward ? function.forwardThreadId() : function.threadId();
  // Nodes without a forward op (AccumulateGrad) and ops that autograd does not see have no number. Threads begin at 1.
  return function.seqNr() < 0 || thread == 0 ? 0 : autograd_key(thread, static_cast<std::uint64_t>(function.seqNr()));
}

// An op is not on top if it was not opened (ignored, too deep), or if one that is cannot have ended on this thread.
__attribute__((noinline, cold)) bool close_those_above(ThreadOps& ops, const at::RecordFunction& function) {
  OpenOp* none = &ops.open.front();
  OpenOp* op = ops.top;
  while (op != none && op->function != &function) {
    --op;
  }
  if (op == none) {
    return false;
  }
  for (; ops.top != op; --ops.top) {
    if (ops.top->is_visible) {
      ops.view->visible_op = 0;
    }
  }
  return true;
}

// Closer: all that look_closer() looks for. A callback of one kind ends what a callback of that kind began, because a
// RecordFunction keeps the callbacks that it began with.
template <bool kCloser>
std::unique_ptr<at::ObserverContext> begin_op(const at::RecordFunction& function) {
  ThreadOps& ops = thread_ops();
  std::uint64_t entered_ticks = 0;
  if (__builtin_expect(--ops.until_sample == 0, 0)) {
    ops.until_sample = kSampleEvery;
    entered_ticks = ticks(g_api->clock);
  }
  const OpName& name = ops.names.of(function);
  if (__builtin_expect(name.ignored, 0)) {
    return nullptr;
  }
  if (__builtin_expect(ops.top == &ops.open.back(), 0)) {
    ++ops.too_deep;
    return nullptr;
  }
  OpenOp& op = *++ops.top;
  op.function = &function;
  op.entered_ticks = entered_ticks;
  op.name = name.id;
  op.is_visible = name.visible && ops.view->visible_op == 0;
  if (op.is_visible) {
    ops.view->visible_op = name.id;
  }
  if constexpr (kCloser) {
    look_closer(ops, op, name, function);
    if (op.is_skipped && entered_ticks == 0) {
      return nullptr;
    }
  }
  op.start_ticks = ticks(g_api->clock);
  return nullptr;
}

template <bool kCloser>
void end_op(const at::RecordFunction& function, at::ObserverContext* /*none*/) {
  ThreadOps& ops = thread_ops();
  if (__builtin_expect(ops.top->function != &function, 0) && !close_those_above(ops, function)) {
    return;
  }
  const OpenOp& op = *ops.top;
  Record record = make_record(Kind::kOp, op.name);
  bool is_left_out = false;
  if constexpr (kCloser) {
    if (!op.is_skipped || op.entered_ticks != 0) {
      record.end_ticks = ticks(g_api->clock);
    }
    is_left_out = op.is_skipped;
    if (!is_left_out && !wants(*g_api, kSmallOps) && ops.durations != nullptr) {
      is_left_out =
          MeanDurations::drops(ops.durations->of(op.name), record.end_ticks - op.start_ticks, ops.small_ticks);
    }
    record.arg1 = op.shapes;
    record.stack = op.stack;
    record.correlation = op.correlation;
    if (op.correlation != 0) {
      emit_outputs_made(*g_api, *op.schema, function.outputs(), op.correlation);
    }
  } else {
    record.end_ticks = ticks(g_api->clock);
  }
  --ops.top;
  if (op.is_visible) {
    ops.view->visible_op = 0;
  }
  if (kCloser && ops.top == &ops.open.front()) {
    ops.stack = 0;
  }
  if (kCloser && is_left_out) {
    g_api->count_shed();
  } else {
    const bool backward = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
    record.start_ticks = op.start_ticks;
    record.arg0 = autograd_key_of(function, backward);
    record.flags = backward ? kBackward : 0;
    g_api->emit(record);
  }
  if (__builtin_expect(op.entered_ticks != 0, 0)) {
    add_spent(op, record.end_ticks);
  }
  if (__builtin_expect(ops.too_deep != 0, 0) && ops.top == &ops.open.front()) {
    tell_of_too_deep(ops);
  }
}

// --- an annotation ---

// May end on another thread or out of order, so that each carries its own begin.
struct OpenAnnotation : at::ObserverContext {
  std::uint64_t start_ticks;
  std::uint32_t name;
};

std::unique_ptr<at::ObserverContext> begin_annotation(const at::RecordFunction& function) {
  auto annotation = std::make_unique<OpenAnnotation>();
  annotation->name = thread_ops().names.of(function).id;
  annotation->start_ticks = ticks(g_api->clock);
  return annotation;
}

void end_annotation(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  const auto* annotation = static_cast<OpenAnnotation*>(context);
  if (annotation == nullptr) {
    return;  // its begin failed
  }
  Record record = make_record(Kind::kAnnotation, annotation->name);
  record.start_ticks = annotation->start_ticks;
  record.end_ticks = ticks(g_api->clock);
  g_api->emit(record);
}

// --- what is registered ---

struct Callbacks {
  std::optional<at::CallbackHandle> ops;
  std::optional<at::CallbackHandle> annotations;
  std::uint32_t details = 0;  // those that `ops` was made for
};

constexpr std::uint32_t kOpDetails = kOps | kSmallOps | kShapes | kAccesses | kOpStacks;

void replace(std::optional<at::CallbackHandle>& handle, bool wanted, const at::RecordFunctionCallback& callback) {
  if (handle) {
    at::removeCallback(*handle);
    handle.reset();
  }
  if (wanted) {
    handle = at::addGlobalCallback(callback);
  }
}

void on_details(std::uint32_t details, void* /*context*/) {
  static Callbacks registered;  // changed by one thread at a time: the writer's lock
  if ((details & kOpDetails) != registered.details) {
    registered.details = details & kOpDetails;
    const bool closer = (details & (kShapes | kAccesses | kOpStacks)) != 0 || (details & kSmallOps) == 0;
    auto callback = closer ? at::RecordFunctionCallback(&begin_op<true>, &end_op<true>)
                           : at::RecordFunctionCallback(&begin_op<false>, &end_op<false>);
    callback.scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION})
        .needsInputs((details & (kShapes | kAccesses)) != 0)
        .needsOutputs((details & kAccesses) != 0);
    replace(registered.ops, (details & kOps) != 0, callback);
  }
  if (const bool wanted = (details & kAnnotations) != 0; wanted != registered.annotations.has_value()) {
    auto callback = at::RecordFunctionCallback(&begin_annotation, &end_annotation);
    callback.scopes({at::RecordScope::USER_SCOPE});
    replace(registered.annotations, wanted, callback);
  }
  watch_host_blocks(*g_api, details);
}

}  // namespace

// The writer looks at this before it calls anything.
extern "C" __attribute__((visibility("default"))) const std::uint32_t ral_trace_hooks_version = kWriterApiVersion;

extern "C" __attribute__((visibility("default"))) void ral_trace_install_hooks(const WriterApi* api,
                                                                               void (*add)(const SessionListener&)) {
  g_api = api;
  g_installed_ticks = ticks(api->clock);
  g_installed_ns = monotonic_ns();
  add({nullptr, nullptr, &on_details, nullptr});
}

}  // namespace ral::trace
