// What the traced program's Python calls of the writer: annotations, Python's own pauses, calls of modules. Bound by hand
// where it is on a program's way: pybind11 takes several times as long for a call. Typed in ../_native.pyi.
#include "python_bindings.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "python_stack.h"
#include "writer_state.h"

namespace py = pybind11;

namespace ral::trace {

namespace {

const WriterApi& api() noexcept {
  static const WriterApi& writer = Writer::instance().api();
  return writer;
}

// 0 for a text that cannot be said in UTF-8: the event stays.
std::uint32_t intern_text(PyObject* text) noexcept {
  Py_ssize_t length = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text, &length);
  if (bytes == nullptr) {
    PyErr_Clear();
    return 0;
  }
  return api().intern(bytes, static_cast<std::size_t>(length));
}

void emit_annotation(std::uint32_t name, std::uint64_t start, std::uint64_t end, AnnotationSort sort,
                     std::uint32_t class_name, std::uint8_t flags) noexcept {
  Record record = make_record(Kind::kAnnotation, name);
  record.start_ticks = start;
  record.end_ticks = end;
  record.arg0 = sort;
  record.arg1 = class_name;
  record.flags = flags;
  api().emit(record);
}

// The annotations that are open on a thread, by number, innermost last. Everything here is under the GIL.
using OpenNumbers = std::vector<std::uint64_t>;

const std::shared_ptr<OpenNumbers>& open_on_this_thread() {
  thread_local const std::shared_ptr<OpenNumbers> numbers = std::make_shared<OpenNumbers>();
  return numbers;
}

// One entry into an annotation.
struct Opened {
  std::uint64_t start_ticks;
  std::uint64_t number;
  std::uint64_t context_version;
  std::shared_ptr<OpenNumbers> thread;  // may outlive its thread
};

struct AnnotationObject {
  PyObject_HEAD PyObject* name;
  std::uint32_t name_id;  // 0: not asked yet
  AnnotationSort sort;
  std::vector<Opened> opened;  // one object may be entered again inside itself, and by several threads
};

AnnotationObject& annotation(PyObject* self) noexcept { return *reinterpret_cast<AnnotationObject*>(self); }

PyObject* annotation_new(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"name", "sort", nullptr};
  PyObject* name = nullptr;
  int sort = kUser;
  if (keywords == nullptr && PyTuple_GET_SIZE(arguments) == 1 && PyUnicode_Check(PyTuple_GET_ITEM(arguments, 0))) {
    name = PyTuple_GET_ITEM(arguments, 0);  // the usual way; reading arguments takes longer than all the rest
  } else if (PyArg_ParseTupleAndKeywords(arguments, keywords, "U|i:Annotation", const_cast<char**>(names), &name,
                                         &sort) == 0) {
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    AnnotationObject& made = annotation(self);
    made.name = Py_NewRef(name);
    made.sort = static_cast<AnnotationSort>(sort);
    ::new (&made.opened) std::vector<Opened>();
  }
  return self;
}

// Takes an annotation off its thread's list. True where it was the innermost: all that began inside it has ended. What
// was inside it and has not is overtaken, and is found missing when it ends.
bool close_number(OpenNumbers& open, std::uint64_t number) noexcept {
  const auto found = std::lower_bound(open.begin(), open.end(), number);  // they only grow
  if (found == open.end() || *found != number) {
    return false;
  }
  const bool innermost = found + 1 == open.end();
  open.erase(found, open.end());
  return innermost;
}

void forget_number(OpenNumbers& open, std::uint64_t number) noexcept {
  const auto found = std::lower_bound(open.begin(), open.end(), number);
  if (found != open.end() && *found == number) {
    open.erase(found);
  }
}

void annotation_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  for (const Opened& left : annotation(self).opened) {  // never ended: it must not stand above those that are
    forget_number(*left.thread, left.number);
  }
  annotation(self).opened.~vector();
  Py_DECREF(annotation(self).name);
  type->tp_free(self);
  Py_DECREF(type);
}

std::uint64_t context_version() noexcept { return PyThreadState_Get()->context_ver; }

// Whether asyncio runs callbacks on this thread. Keeps the caller's exception.
bool runs_event_loop() {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  bool runs = false;
  if (PyObject* events = PyDict_GetItemString(PyImport_GetModuleDict(), "asyncio.events"); events != nullptr) {
    const auto loop = py::reinterpret_steal<py::object>(PyObject_CallMethod(events, "_get_running_loop", nullptr));
    runs = loop && !loop.is_none();
  }
  PyErr_Restore(type, value, traceback);
  return runs;
}

PyObject* annotation_enter(PyObject* self, PyObject* /*none*/) {
  if (__builtin_expect(wants(api(), kAnnotations), 0)) {
    static std::uint64_t next_number = 0;
    AnnotationObject& mine = annotation(self);
    mine.name_id = mine.name_id != 0 ? mine.name_id : intern_text(mine.name);
    try {
      const std::shared_ptr<OpenNumbers>& open = open_on_this_thread();
      open->push_back(++next_number);
      mine.opened.push_back({0, next_number, context_version(), open});
    } catch (const std::bad_alloc&) {
      return Py_NewRef(self);
    }
    mine.opened.back().start_ticks = ticks(api().clock);
  }
  return Py_NewRef(self);
}

// The last entry by this thread; of one that another thread made, the last.
Opened take_opened(AnnotationObject& mine) noexcept {
  const OpenNumbers* here = open_on_this_thread().get();
  auto found = std::find_if(mine.opened.rbegin(), mine.opened.rend(),
                            [&](const Opened& opened) { return opened.thread.get() == here; });
  found = found == mine.opened.rend() ? mine.opened.rbegin() : found;
  Opened opened = std::move(*found);
  mine.opened.erase(std::next(found).base());
  return opened;
}

PyObject* annotation_exit(PyObject* self, PyObject* const* /*error*/, Py_ssize_t /*count*/) {
  AnnotationObject& mine = annotation(self);
  if (__builtin_expect(!mine.opened.empty(), 0)) {
    const std::uint64_t end = ticks(api().clock);
    const Opened opened = take_opened(mine);
    const bool innermost = close_number(*opened.thread, opened.number);
    bool whole = mine.sort == kResumed || (innermost && opened.thread == open_on_this_thread());
    if (wants(api(), kAnnotations)) {
      // Each turn of the loop's tasks runs in a context of its own, so its change says that there was one.
      if (whole && mine.sort == kUser && opened.context_version != context_version()) {
        whole = !runs_event_loop();
      }
      emit_annotation(mine.name_id, opened.start_ticks, end, mine.sort, 0, whole ? 0 : kSuspended);
    }
  }
  Py_RETURN_NONE;
}

PyObject* annotation_name(PyObject* self, void* /*closure*/) { return Py_NewRef(annotation(self).name); }

PyMethodDef annotation_methods[] = {
    {"__enter__", annotation_enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(annotation_exit)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyGetSetDef annotation_attributes[] = {
    {"name", annotation_name, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};
PyType_Slot annotation_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(annotation_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(annotation_dealloc)},
    {Py_tp_methods, annotation_methods},
    {Py_tp_getset, annotation_attributes},
    {0, nullptr},
};
PyType_Spec annotation_type = {"ral_trace.tracer._native.Annotation", sizeof(AnnotationObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, annotation_slots};

PyObject* annotating(PyObject* /*module*/, PyObject* /*none*/) {
  return PyBool_FromLong(wants(api(), kAnnotations) ? 1 : 0);
}

PyObject* now(PyObject* /*module*/, PyObject* /*none*/) { return PyLong_FromUnsignedLongLong(ticks(api().clock)); }

// end_whole(name, start_ticks): the whole life of what was suspended in between.
PyObject* end_whole(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  const std::uint64_t end = ticks(api().clock);
  const std::uint64_t start = count == 2 ? PyLong_AsUnsignedLongLong(arguments[1]) : 0;
  if (count != 2 || PyErr_Occurred() != nullptr) {
    return PyErr_Format(PyExc_TypeError, "end_whole(name, start_ticks)");
  }
  if (start != 0 && wants(api(), kAnnotations)) {
    emit_annotation(intern_text(arguments[0]), start, end, kUser, 0, kSuspended);
  }
  Py_RETURN_NONE;
}

// end_module(name, class_name, start_ticks)
PyObject* end_module(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  const std::uint64_t end = ticks(api().clock);
  const std::uint64_t start = count == 3 ? PyLong_AsUnsignedLongLong(arguments[2]) : 0;
  if (count != 3 || PyErr_Occurred() != nullptr) {
    return PyErr_Format(PyExc_TypeError, "end_module(name, class_name, start_ticks)");
  }
  if (wants(api(), kModules)) {
    emit_annotation(intern_text(arguments[0]), start, end, kModule, intern_text(arguments[1]), 0);
  }
  Py_RETURN_NONE;
}

std::uint64_t number_in(PyObject* info, const char* key) noexcept {
  PyObject* value = PyDict_GetItemString(info, key);  // borrowed
  const std::uint64_t number = value == nullptr ? 0 : PyLong_AsUnsignedLongLong(value);
  PyErr_Clear();
  return number;
}

// An entry of gc.callbacks: collected(phase, info).
PyObject* collected(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  thread_local std::uint64_t start_ticks = 0;
  if (count == 2 && PyUnicode_Check(arguments[0]) && PyDict_Check(arguments[1])) {
    if (PyUnicode_CompareWithASCIIString(arguments[0], "start") == 0) {
      start_ticks = wants(api(), kPauses) ? ticks(api().clock) : 0;
    } else if (start_ticks != 0 && wants(api(), kPauses)) {
      constexpr std::string_view name = "gc.collect";
      Record record = make_record(Kind::kPython, api().intern(name.data(), name.size()));
      record.start_ticks = std::exchange(start_ticks, 0);
      record.end_ticks = ticks(api().clock);
      record.arg0 = number_in(arguments[1], "generation");
      record.arg1 = number_in(arguments[1], "collected");
      api().emit(record);
    }
  }
  Py_RETURN_NONE;
}

template <typename Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef functions[] = {
    {"annotating", annotating, METH_NOARGS, nullptr},
    {"now", now, METH_NOARGS, nullptr},
    {"end_whole", as_method(end_whole), METH_FASTCALL, nullptr},
    {"end_module", as_method(end_module), METH_FASTCALL, nullptr},
    {"collected", as_method(collected), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

// What the agent (../agent.py) looks at: whether somebody records, and what only Python can do for them.
constexpr std::uint32_t kAgentDetails = kPauses | kModules;
constexpr std::uint32_t kRecorded = 1u << 31;

std::uint32_t agent_details(std::uint32_t details) noexcept {
  return details == 0 ? 0 : kRecorded | (details & kAgentDetails);
}

// The details change on a thread that may not wait for the GIL, so that another one tells the agent.
class AgentCaller {
 public:
  static void details_changed(std::uint32_t details) noexcept {
    const std::uint32_t wanted = agent_details(details);
    if (wanted == last_.exchange(wanted) || ready_in_.load() != ::getpid()) {
      return;
    }
    calling_.fetch_add(1);
    if (closed_.load() || !start_thread()) {
      calling_.fetch_sub(1);
    }
  }

  // This process has a Python that may be called: from its start, and again after a fork, when Python has mended itself
  // (its parent's calls are not its own).
  static void ready() noexcept {
    calling_.store(0);
    ready_in_.store(::getpid());
    last_.store(agent_details(api().details->load()));
  }

  // Python ends: no more calls. Who is on its way is let in.
  static void close() {
    closed_.store(true);
    const py::gil_scoped_release released;
    for (int waited_ms = 0; waited_ms < kCloseMs && calling_.load() != 0; ++waited_ms) {
      ::usleep(1000);
    }
  }

 private:
  static constexpr int kCloseMs = 1000;

  static bool start_thread() noexcept {
    // A signal of the program must never land on it.
    sigset_t all;
    sigset_t previous;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous);
    pthread_t thread{};
    const bool started = pthread_create(&thread, nullptr, &call, nullptr) == 0;
    if (started) {
      pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &previous, nullptr);
    return started;
  }

  // Python ends a thread that asks for the GIL too late by unwinding it: so this is not noexcept, and owns nothing that
  // would be destroyed on the way.
  static void* call(void* /*nothing*/) {
    pthread_setname_np(pthread_self(), "ral-agent");
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject* agent = PyImport_ImportModule("ral_trace.tracer.agent");
    PyObject* done = agent == nullptr ? nullptr : PyObject_CallMethod(agent, "apply", nullptr);
    if (done == nullptr) {
      PyErr_WriteUnraisable(agent);
    }
    Py_XDECREF(done);
    Py_XDECREF(agent);
    PyGILState_Release(state);
    calling_.fetch_sub(1);
    return nullptr;
  }

  static inline std::atomic<std::uint32_t> last_{0};
  static inline std::atomic<pid_t> ready_in_{0};
  static inline std::atomic<int> calling_{0};
  static inline std::atomic<bool> closed_{false};
};

}  // namespace

void bind_program(py::module_& module) {
  Writer::instance().set_python_stack(&python_stack);
  Writer::instance().on_details(&AgentCaller::details_changed);
  AgentCaller::ready();
  const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&annotation_type));
  if (!type || PyModule_AddFunctions(module.ptr(), functions) != 0) {
    throw py::error_already_set();
  }
  module.attr("Annotation") = type;
  module.def("details", [] { return api().details->load(); });
  module.def("step", [] { Writer::instance().step(); });
  module.def("forked", &AgentCaller::ready);
  module.def("close", &AgentCaller::close);
  module.def("python_stack", &python_stack);
  module.def("use_public_frames", &use_public_frames, py::arg("use"));
  module.attr("ALARM_UNCAUGHT_EXCEPTION") = static_cast<std::uint32_t>(Alarm::kUncaughtException);
  module.attr("ALARM_OUT_OF_MEMORY") = static_cast<std::uint32_t>(Alarm::kOutOfMemory);
  module.def(
      "raise_alarm", [](std::uint32_t alarm) { Writer::instance().raise_alarm(static_cast<Alarm>(alarm)); },
      py::arg("alarm"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace ral::trace
