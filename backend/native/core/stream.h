// Work on a device goes through a stream, as typed items in order. An item is moved into its stream and owns all that it
// needs: nothing in it points to the stack of the thread that submits it. For now it runs in place, on that thread, and
// submit() hands it back with what it produced; a stream with a thread of its own will keep it until it is done, and
// only wait() will say that it is.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <utility>

namespace ral {

enum class WorkKind : std::uint8_t { kHost, kTransfer, kCompute, kSync };

// What every item is derived from; each kind adds `void run()`, what that reads, and what comes out of it.
struct Work {
  WorkKind kind;
  std::uint32_t name;  // name id of the op that it is for; 0: nobody records
};

class Stream {
 public:
  // What an item throws, it throws here.
  template <class Item>
  Item submit(Item item) {
    static_assert(std::is_base_of_v<Work, Item> && std::is_move_constructible_v<Item>);
    submitted_.fetch_add(1, std::memory_order_relaxed);
    if (item.name != 0) {
      last_name_.store(item.name, std::memory_order_relaxed);
    }
    // One item at a time, whichever threads submit: a stream is in order. Recursive, because an item that runs in place
    // may submit another.
    const std::lock_guard in_order(running_);
    const Completion completion(completed_);
    item.run();
    return item;
  }

  // Returns when all that was submitted before is done.
  void wait() const {}
  bool idle() const { return completed_.load(std::memory_order_acquire) == submitted_.load(std::memory_order_relaxed); }
  // What a wait now would wait for: the op of the newest item.
  std::uint32_t last_name() const { return last_name_.load(std::memory_order_relaxed); }

 private:
  // An item that failed is done too.
  class Completion {
   public:
    explicit Completion(std::atomic<std::uint64_t>& count) : count_(count) {}
    ~Completion() { count_.fetch_add(1, std::memory_order_release); }
    Completion(const Completion&) = delete;
    Completion& operator=(const Completion&) = delete;

   private:
    std::atomic<std::uint64_t>& count_;
  };

  std::recursive_mutex running_;
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint32_t> last_name_{0};
};

}  // namespace ral
