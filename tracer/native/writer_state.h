// The writer of this process: sessions it records for, rings of its threads, the watcher that learns of new sessions.
// Internal to `_native`.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "names.h"
#include "rendezvous.h"
#include "ring.h"
#include "writer.h"

namespace ral::trace {

// In the environment of a command that is recorded: which session is its own.
inline constexpr const char* kSessionVariable = "RAL_TRACE_SESSION";

// A session that records this process. The header stays mapped for good: a thread may still count into it after the
// session ended.
struct Attachment {
  std::uint64_t session = 0;
  std::string folder;
  std::uint64_t ring_records = 0;
  OnFull on_full = OnFull::kDrop;
  std::uint32_t details = 0;
  ProcessHeader* header = nullptr;
  // Made by who joins the session, so that the first thread with an event does not wait for its memory.
  RingWriter spare;
};

// What a slot of the page asks for, copied and checked.
struct Wanted {
  std::uint64_t session;
  std::int32_t target_pid;
  std::uint64_t ring_records;
  std::string folder;
  OnFull on_full;
  std::uint32_t details;
};

class Writer {
 public:
  static Writer& instance();

  // Starts watching for sessions, and joins those that record already before it returns. `hooks` is the library with
  // torch's callbacks, opened at the first session, or empty; `note` says why it is empty. Returns why watching is
  // impossible, or nothing.
  std::optional<std::string> start(const std::string& hooks, const std::string& note);
  // Joins and leaves sessions as the page says now.
  void sync();

  void emit_to_all(const Record& record) noexcept;
  void emit(std::uint32_t sessions, const Record& record) noexcept;
  std::uint32_t intern(std::string_view text) noexcept;
  // A node of a stack for a line of it (text of a StackNode's frame), called from another node.
  std::uint32_t stack_node(std::uint32_t caller, std::string_view frame) noexcept;
  void add_listener(const SessionListener& listener);
  // Who knows Python's frames; until somebody says so, there are no stacks.
  void set_python_stack(std::uint32_t (*python_stack)() noexcept) noexcept { api_.python_stack = python_stack; }
  void raise_alarm(Alarm alarm) noexcept;
  // Calls `applied` after every change of what is wanted, on whatever thread noticed it, under no lock of ours; once.
  void on_details(void (*applied)(std::uint32_t details)) noexcept { details_applied_ = applied; }
  ThreadView* thread_view() noexcept;
  std::uint64_t next_correlation() noexcept;
  // Ends a step of the program: from the last call (or from when recording could begin) to now.
  void step() noexcept;

  [[nodiscard]] const WriterApi& api() const noexcept { return api_; }

 private:
  Writer();
  template <typename Body>
  void each_ring(const Body& body) noexcept;
  void join_and_leave();
  void attach(std::size_t slot, const Wanted& wanted);
  void detach(std::size_t slot);
  [[nodiscard]] bool wants_this_process(const Wanted& wanted) const;
  ProcessHeader* make_process_files(std::string* folder);
  void load_hooks();
  // Tells the listeners when the sum of what the sessions want has changed.
  void update_details();
  void watch();
  void start_watcher();
  void after_fork_in_child();
  friend struct ForkHandlers;
  friend struct ThreadState;

  WriterApi api_{};
  std::atomic<std::uint32_t> sessions_{0};
  std::atomic<std::uint32_t> details_{0};
  std::atomic<void (*)(std::uint32_t)> details_applied_{nullptr};
  std::array<std::atomic<std::uint64_t>, kSessions> session_of_slot_{};
  // Set once, when the first session attaches; read without a lock.
  std::atomic<Names*> names_{nullptr};
  const Names* parents_names_ = nullptr;  // after fork, until then: event sites still hold its ids
  std::atomic<std::uint64_t> step_ticks_{0};
  std::atomic<std::uint64_t> step_number_{0};

  std::mutex sync_mutex_;      // joining and leaving, one at a time; taken before the next one
  std::mutex registry_mutex_;  // attachments_, listeners_
  std::array<Attachment, kSessions> attachments_;
  std::vector<SessionListener> listeners_;

  std::unique_ptr<Rendezvous> rendezvous_;
  std::string hooks_;
  std::string note_;
  std::string stated_session_;  // $RAL_TRACE_SESSION when we started: reading it later would race with the program
  bool hooks_loaded_ = false;
  bool started_ = false;
  bool exiting_ = false;
};

}  // namespace ral::trace
