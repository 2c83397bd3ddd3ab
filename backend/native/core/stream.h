// Work on a device goes through a stream, as typed items in order. For now an item runs in place, on the thread that
// submits it; callers must not count on that: what an item needs it carries, and only wait() says that it is done.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace ral {

enum class WorkKind : std::uint8_t { kHost, kTransfer, kCompute, kSync };

struct Work {
  WorkKind kind;
  std::uint32_t name;  // name id of the op that it is for; 0: nobody records
  void (*run)(void* state);
  void* state;
};

class Stream {
 public:
  void submit(const Work& work) {
    submitted_.fetch_add(1, std::memory_order_relaxed);
    if (work.name != 0) {
      last_name_.store(work.name, std::memory_order_relaxed);
    }
    work.run(work.state);
    completed_.fetch_add(1, std::memory_order_release);
  }

  template <class Function>
  void submit(WorkKind kind, std::uint32_t name, Function&& function) {
    using Callable = std::remove_reference_t<Function>;
    submit(Work{kind, name, [](void* state) { (*static_cast<Callable*>(state))(); }, &function});
  }

  // Returns when all that was submitted before is done.
  void wait() const {}
  bool idle() const { return completed_.load(std::memory_order_acquire) == submitted_.load(std::memory_order_relaxed); }
  // What a wait now would wait for: the op of the newest item.
  std::uint32_t last_name() const { return last_name_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint32_t> last_name_{0};
};

}  // namespace ral
