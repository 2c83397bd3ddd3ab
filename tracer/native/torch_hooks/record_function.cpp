// Ops, autograd's backward nodes and annotations of any PyTorch program, through at::RecordFunction. Loaded at the
// first session, never before.
#include <ATen/record_function.h>

#include <array>
#include <memory>
#include <optional>

#include "op_names.h"

namespace ral::trace {

namespace {

const WriterApi* g_api = nullptr;
std::optional<at::CallbackHandle> g_callback;

// An op that has begun on this thread. Ops end in the reverse order of their begin, on the thread where they began.
struct OpenOp {
  const at::RecordFunction* function;
  std::uint64_t start_ticks;
  std::uint32_t name;
  bool is_visible;
};

constexpr std::size_t kMaxDepth = 512;

struct ThreadOps {
  ThreadOps() : names(*g_api), view(g_api->thread_view()) {}

  OpNames names;
  ThreadView* view;
  std::size_t depth = 0;
  std::array<OpenOp, kMaxDepth> open;
};

// Behind a pointer: the thread-local storage of a library that is opened late is small. The pointer's destructor runs
// when the thread ends.
ThreadOps& thread_ops() {
  thread_local const std::unique_ptr<ThreadOps> ops = std::make_unique<ThreadOps>();
  return *ops;
}

// Annotations may end on another thread or out of order, so that each carries its own begin.
struct OpenAnnotation : at::ObserverContext {
  std::uint64_t start_ticks;
  std::uint32_t name;
};

void emit_span(Kind kind, std::uint32_t name, std::uint64_t start_ticks, std::uint64_t sequence_nr,
               std::uint8_t flags) {
  Record record = make_record(kind, name);
  record.start_ticks = start_ticks;
  record.end_ticks = ticks(g_api->clock);
  record.arg0 = sequence_nr;
  record.flags = flags;
  g_api->emit(record);
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  if (function.scope() == at::RecordScope::USER_SCOPE) {
    auto annotation = std::make_unique<OpenAnnotation>();
    annotation->name = thread_ops().names.of(function).id;
    annotation->start_ticks = ticks(g_api->clock);
    return annotation;
  }
  ThreadOps& ops = thread_ops();
  const OpName name = ops.names.of(function);
  if (name.ignored || ops.depth == kMaxDepth) {
    return nullptr;
  }
  const bool is_visible = name.visible && ops.view->visible_op == 0;
  if (is_visible) {
    ops.view->visible_op = name.id;
  }
  ops.view->op_depth = static_cast<std::uint32_t>(ops.depth + 1);
  ops.open[ops.depth++] = {&function, ticks(g_api->clock), name.id, is_visible};
  return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  if (function.scope() == at::RecordScope::USER_SCOPE) {
    // A user scope that began before the recording has no context.
    if (const auto* annotation = static_cast<OpenAnnotation*>(context); annotation != nullptr) {
      emit_span(Kind::kAnnotation, annotation->name, annotation->start_ticks, 0, 0);
    }
    return;
  }
  ThreadOps& ops = thread_ops();
  // One that was not opened above (ignored, too deep) is not on top.
  if (ops.depth == 0 || ops.open[ops.depth - 1].function != &function) {
    return;
  }
  const OpenOp& op = ops.open[--ops.depth];
  if (op.is_visible) {
    ops.view->visible_op = 0;
  }
  ops.view->op_depth = static_cast<std::uint32_t>(ops.depth);
  const bool backward = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  const auto sequence_nr = function.seqNr() < 0 ? 0 : static_cast<std::uint64_t>(function.seqNr());
  emit_span(Kind::kOp, op.name, op.start_ticks, sequence_nr, backward ? kBackward : 0);
}

void on_details(std::uint32_t details, void* /*context*/) {
  if (g_callback) {
    at::removeCallback(*g_callback);
    g_callback.reset();
  }
  if ((details & (kOps | kAnnotations)) != 0) {
    auto callback = at::RecordFunctionCallback(&on_start, &on_end);
    callback.scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
    g_callback = at::addGlobalCallback(callback);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void ral_trace_install_hooks(const WriterApi* api,
                                                                               void (*add)(const SessionListener&)) {
  if (api->version == kWriterApiVersion) {
    g_api = api;
    add({nullptr, nullptr, &on_details, nullptr});
  }
}

}  // namespace ral::trace
