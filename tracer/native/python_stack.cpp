// An op runs without the GIL, and taking it would stop the program for as long as another thread keeps it. So the frames
// are read without it: those of the calling thread do not change while the thread is here. They give (code, instruction)
// pairs, which a cache of the thread turns into a node. The cache owns a reference to each code object that it names, so
// that its address cannot come to mean another one.
#include "python_stack.h"

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "writer_state.h"

#define RAL_KNOWS_FRAMES (PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000)
#if RAL_KNOWS_FRAMES
#include <internal/pycore_frame.h>
#endif

namespace ral::trace {

namespace {

// Of a thread's cache: powers of two. A large model has thousands of stacks, most threads have a few.
constexpr std::size_t kLeastSets = 16;
constexpr std::size_t kMostSets = 4096;
constexpr std::size_t kWays = 4;

std::atomic<bool> g_public_frames{!RAL_KNOWS_FRAMES};

// Where a frame is: what it runs, and how far it is, in bytes of its instructions.
struct Position {
  PyCodeObject* code;
  std::int64_t offset;
  bool operator==(const Position& other) const noexcept { return code == other.code && offset == other.offset; }
};

// A thread's stack, innermost first.
struct Walk {
  std::array<Position, kMaxStackFrames> positions;
  std::size_t depth = 0;
  std::uint64_t hash = 0;

  void add(PyCodeObject* code, std::int64_t offset) noexcept {
    positions[depth++] = {code, offset};
    hash = (hash ^ (reinterpret_cast<std::uintptr_t>(code) + static_cast<std::uint64_t>(offset))) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  [[nodiscard]] bool full() const noexcept { return depth == kMaxStackFrames; }
};

struct DropReference {
  void operator()(void* object) const noexcept { Py_DECREF(static_cast<PyObject*>(object)); }
};
template <typename T>
using Owned = std::unique_ptr<T, DropReference>;  // destroyed under the GIL

struct Entry {
  std::uint64_t hash = 0;
  std::uint32_t node = 0;
  std::vector<Position> positions;
  std::vector<Owned<PyCodeObject>> codes;  // of the positions

  [[nodiscard]] bool is(const Walk& walk) const noexcept {
    return hash == walk.hash && positions.size() == walk.depth &&
           std::equal(positions.begin(), positions.end(), walk.positions.begin());
  }
};

class Cache {
 public:
  [[nodiscard]] const Entry* find(const Walk& walk) const noexcept {
    for (const Entry& entry : sets_[set_of(walk.hash)].ways) {
      if (entry.is(walk)) {
        return &entry;
      }
    }
    return nullptr;
  }

  // Returns what had to make room.
  Entry put(Entry entry) {
    if (!has_room(entry.hash) && sets_.size() < kMostSets) {
      grow();
    }
    return take(std::move(entry));
  }

  Cache* older = nullptr;  // in g_left

 private:
  struct Set {
    std::array<Entry, kWays> ways;
    std::size_t next = 0;
  };

  [[nodiscard]] std::size_t set_of(std::uint64_t hash) const noexcept { return hash >> 32 & (sets_.size() - 1); }
  [[nodiscard]] bool has_room(std::uint64_t hash) const noexcept { return sets_[set_of(hash)].next < kWays; }
  Entry take(Entry entry) noexcept {
    Set& set = sets_[set_of(entry.hash)];
    return std::exchange(set.ways[set.next++ % kWays], std::move(entry));
  }
  // Those of one set go to one of two: there is room for all.
  void grow() {
    std::vector<Set> old(2 * sets_.size());
    old.swap(sets_);
    for (Set& set : old) {
      for (Entry& entry : set.ways) {
        if (!entry.positions.empty()) {
          take(std::move(entry));
        }
      }
    }
  }

  std::vector<Set> sets_{kLeastSets};
};

// Caches of threads that are gone: whoever has the GIL next frees them, because the end of a thread must not wait for it.
std::atomic<Cache*> g_left{nullptr};

void leave(std::unique_ptr<Cache> cache) noexcept {
  Cache* left = cache.release();
  left->older = g_left.load(std::memory_order_relaxed);
  while (!g_left.compare_exchange_weak(left->older, left, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void free_left() noexcept {
  for (Cache* left = g_left.exchange(nullptr, std::memory_order_acquire); left != nullptr;) {
    const std::unique_ptr<Cache> cache(left);
    left = cache->older;
  }
}

struct ThreadCache {
  std::unique_ptr<Cache> cache;
  ~ThreadCache() {
    if (cache != nullptr) {
      leave(std::move(cache));
    }
  }
};

thread_local ThreadCache t_cache;

class Gil {
 public:
  // A thread that asks for the GIL of an interpreter that ends is ended by Python, by force. Those who call us cannot be
  // unwound, so it stays here, as it would in Python 3.14.
  Gil() {
    try {
      state_ = PyGILState_Ensure();
    } catch (abi::__forced_unwind&) {
      for (;;) {
        ::pause();
      }
    }
  }
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// The caller's exception, if it has one, is none of our business.
class KeptException {
 public:
  KeptException() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~KeptException() { PyErr_Restore(type_, value_, traceback_); }
  KeptException(const KeptException&) = delete;
  KeptException& operator=(const KeptException&) = delete;

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

bool is_finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

#if RAL_KNOWS_FRAMES
void walk_own(PyThreadState* thread, Walk* walk) noexcept {
  for (const _PyInterpreterFrame* frame = thread->cframe->current_frame; frame != nullptr && !walk->full();
       frame = frame->previous) {
    PyCodeObject* code = frame->f_code;
    const bool begun =
        frame->owner == FRAME_OWNED_BY_GENERATOR || frame->prev_instr >= _PyCode_CODE(code) + code->_co_firsttraceable;
    if (begun) {
      walk->add(code, static_cast<std::int64_t>(_PyInterpreterFrame_LASTI(frame)) *
                          static_cast<std::int64_t>(sizeof(_Py_CODEUNIT)));
    }
  }
}
#endif

// Under the GIL. What it finds lives as long as the frames do.
void walk_public(PyThreadState* thread, Walk* walk) noexcept {
  for (Owned<PyFrameObject> frame(PyThreadState_GetFrame(thread)); frame != nullptr && !walk->full();
       frame.reset(PyFrame_GetBack(frame.get()))) {
    const Owned<PyCodeObject> code(PyFrame_GetCode(frame.get()));
    walk->add(code.get(), PyFrame_GetLasti(frame.get()));
  }
}

void append_text(PyObject* text, std::string* to) {
  // A file's name may hold bytes that are no UTF-8.
  const Owned<PyObject> bytes(PyUnicode_AsEncodedString(text, "utf-8", "surrogateescape"));
  if (bytes == nullptr) {
    PyErr_Clear();
    return;
  }
  to->append(PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get())));
}

// The text of StackNode::frame.
std::string describe(const Position& position) {
  std::string text;
  if (const int line = PyCode_Addr2Line(position.code, static_cast<int>(position.offset)); line >= 0) {
    text = std::to_string(line);
  }
  text += '\t';
  append_text(position.code->co_qualname, &text);
  text += '\t';
  append_text(position.code->co_filename, &text);
  return text;
}

std::uint32_t make_node(const Walk& walk) {
  std::uint32_t node = 0;
  for (std::size_t i = walk.depth; i-- > 0;) {
    node = Writer::instance().stack_node(node, describe(walk.positions[i]));
    if (node == 0) {
      return 0;
    }
  }
  return node;
}

// Under the GIL.
std::uint32_t learn(Cache& cache, const Walk& walk) {
  const KeptException kept;
  Entry entry;
  entry.hash = walk.hash;
  entry.node = make_node(walk);
  const std::uint32_t node = entry.node;
  if (node == 0 && !recording(Writer::instance().api())) {
    return 0;  // there is no table yet; else it is full, and stays so
  }
  entry.positions.assign(walk.positions.begin(), walk.positions.begin() + static_cast<std::ptrdiff_t>(walk.depth));
  entry.codes.reserve(walk.depth);
  for (const Position& position : entry.positions) {
    entry.codes.emplace_back(reinterpret_cast<PyCodeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(position.code))));
  }
  // The end of a code object may run the program's code, which may come here again: all is in order by then.
  const Entry replaced = cache.put(std::move(entry));
  free_left();
  return node;
}

std::uint32_t stack_of(PyThreadState* thread) {
  if (t_cache.cache == nullptr) {
    t_cache.cache = std::make_unique<Cache>();
  }
  Cache& cache = *t_cache.cache;
  Walk walk;
#if RAL_KNOWS_FRAMES
  if (!g_public_frames.load(std::memory_order_relaxed)) {
    walk_own(thread, &walk);
    if (walk.depth == 0) {
      return 0;
    }
    if (const Entry* known = cache.find(walk); known != nullptr) {
      return known->node;
    }
    const Gil gil;
    return learn(cache, walk);
  }
#endif
  const Gil gil;
  walk_public(thread, &walk);
  if (walk.depth == 0) {
    return 0;
  }
  const Entry* known = cache.find(walk);
  return known != nullptr ? known->node : learn(cache, walk);
}

}  // namespace

std::uint32_t python_stack() noexcept {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  // With subinterpreters a thread has several states, and Python does not say which is in use without the GIL.
  if (thread == nullptr || is_finalizing() || PyInterpreterState_Head() != PyInterpreterState_Main()) {
    return 0;
  }
  try {
    return stack_of(thread);
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void use_public_frames(bool use) noexcept { g_public_frames.store(use || !RAL_KNOWS_FRAMES); }

}  // namespace ral::trace
