#include "writer.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "ring.h"
#include "writer_state.h"

namespace ral::trace {

// What one thread owns. Found through one thread-local pointer; freed when the thread ends.
struct ThreadState {
  struct Slot {
    std::uint64_t session = 0;        // what follows belongs to this session
    RingWriter ring;                  // not ok() where there was no room for it
    ProcessHeader* header = nullptr;  // counts what such a ring misses
  };

  // The one ring that this thread writes to, as long as the sessions are those of `epoch`: the short way of an event.
  RingWriter* only = nullptr;
  std::uint64_t epoch = 0;
  ThreadView view{0, static_cast<std::uint32_t>(::syscall(SYS_gettid))};
  std::uint64_t next_correlation = 0;
  std::uint64_t last_correlation = 0;
  std::array<Slot, kSessions> slots;

  static ThreadState* current() noexcept;
  // Makes this thread's ring in a session. False when the session is over.
  bool join(std::size_t slot, std::uint64_t session) noexcept;
};

namespace {

// initial-exec: a plain load instead of a call, at every event.
__attribute__((tls_model("initial-exec"))) thread_local ThreadState* t_state = nullptr;

// Nothing where the process has no key left: then a thread's state outlives it.
std::optional<pthread_key_t> thread_end_key() {
  static const std::optional<pthread_key_t> key = []() -> std::optional<pthread_key_t> {
    pthread_key_t fresh{};
    const int failed = pthread_key_create(&fresh, [](void* value) {
      const std::unique_ptr<ThreadState> state(static_cast<ThreadState*>(value));
      for (ThreadState::Slot& slot : state->slots) {
        slot.ring.close();
      }
      t_state = nullptr;
    });
    return failed == 0 ? std::optional(fresh) : std::nullopt;
  }();
  return key;
}

// Correlation ids are taken from the process in blocks, so that threads do not meet at one counter.
constexpr std::uint64_t kCorrelationBlock = 1024;
std::atomic<std::uint64_t> g_next_correlation_block{1};

// Raised after every change of the sessions. Begins above what a new thread has.
std::atomic<std::uint64_t> g_epoch{1};

__attribute__((noinline, cold)) void emit_slowly(const Record& record) noexcept {
  Writer::instance().emit_to_all(record);
}

}  // namespace

ThreadState* ThreadState::current() noexcept {
  if (__builtin_expect(t_state == nullptr, 0)) {
    auto state = std::make_unique<ThreadState>();
    if (const auto key = thread_end_key()) {
      pthread_setspecific(*key, state.get());
    }
    t_state = state.release();  // owned by the thread; the key's destructor takes it back
  }
  return t_state;
}

namespace {

constexpr std::uint64_t kShareOfRoom = 8;

// No ring takes more than a part of the room there is, so that many threads and processes find some.
std::uint64_t affordable_records(const std::string& folder, std::uint64_t records) noexcept {
  struct statvfs status{};
  if (::statvfs(folder.c_str(), &status) != 0) {
    return records;
  }
  const std::uint64_t room = std::uint64_t{status.f_bavail} * status.f_frsize / kShareOfRoom;
  while (records > kLeastRingRecords && records * sizeof(Record) > room) {
    records /= 2;
  }
  return records;
}

RingWriter make_ring(const Attachment& attachment, std::uint32_t number) noexcept {
  const std::uint64_t records = affordable_records(attachment.folder, attachment.ring_records);
  return RingWriter::create(attachment.folder + "/ring-" + std::to_string(number), records, attachment.on_full);
}

}  // namespace

bool ThreadState::join(std::size_t slot, std::uint64_t session) noexcept {
  Writer& writer = Writer::instance();
  const std::lock_guard lock(writer.registry_mutex_);
  Attachment& attachment = writer.attachments_[slot];
  if (attachment.session != session || attachment.header == nullptr) {
    return false;
  }
  Slot& mine = slots[slot];
  mine.ring.close();
  // Counted when it is whole, so that the collector never meets half a ring; the lock is what makes that one step.
  const std::uint32_t number = attachment.header->rings.load(std::memory_order_relaxed);
  if (attachment.spare.ok()) {
    mine.ring = std::exchange(attachment.spare, RingWriter{});
  } else if (number < kMaxRings) {
    mine.ring = make_ring(attachment, number);
  }
  if (mine.ring.ok()) {
    mine.ring.begin(view.tid);
    attachment.header->rings.store(number + 1, std::memory_order_release);
  }
  mine.header = attachment.header;
  mine.session = session;
  return true;
}

struct ForkHandlers {
  static void prepare() {
    Writer::instance().sync_mutex_.lock();
    Writer::instance().registry_mutex_.lock();
  }
  static void parent() {
    Writer::instance().registry_mutex_.unlock();
    Writer::instance().sync_mutex_.unlock();
  }
  static void child() {
    parent();
    Writer::instance().after_fork_in_child();
  }
};

Writer& Writer::instance() {
  // In place and never destroyed: threads emit until the process is gone.
  alignas(Writer) static std::array<std::byte, sizeof(Writer)> storage;
  static Writer* const writer = ::new (storage.data()) Writer;
  return *writer;
}

Writer::Writer() {
  api_.version = kWriterApiVersion;
  api_.clock = detect_clock_source();
  api_.sessions = &sessions_;
  api_.details = &details_;
  api_.emit = [](const Record& record) noexcept {
    ThreadState* state = t_state;
    if (__builtin_expect(state != nullptr && state->epoch == g_epoch.load(std::memory_order_acquire), 1)) {
      state->only->push(record);
    } else {
      emit_slowly(record);
    }
  };
  api_.emit_to = [](std::uint32_t sessions, const Record& record) noexcept { instance().emit(sessions, record); };
  api_.intern = [](const char* text, std::size_t length) noexcept { return instance().intern({text, length}); };
  api_.next_correlation = []() noexcept { return instance().next_correlation(); };
  api_.thread_view = []() noexcept { return instance().thread_view(); };
  api_.add_listener = [](const SessionListener& listener) { instance().add_listener(listener); };
  api_.python_stack = []() noexcept { return std::uint32_t{0}; };
  api_.count_shed = []() noexcept { instance().each_ring([](RingWriter& ring) { ring.count_shed(); }); };
  api_.add_spent = [](std::uint64_t ticks) noexcept {
    instance().each_ring([ticks](RingWriter& ring) { ring.add_spent(ticks); });
  };
  api_.raise_alarm = [](Alarm alarm) noexcept { instance().raise_alarm(alarm); };
}

template <typename Body>
void Writer::each_ring(const Body& body) noexcept {
  ThreadState* state = ThreadState::current();
  for (std::uint32_t sessions = sessions_.load(std::memory_order_acquire); sessions != 0; sessions &= sessions - 1) {
    const auto slot = static_cast<std::size_t>(__builtin_ctz(sessions));
    const std::uint64_t session = session_of_slot_[slot].load(std::memory_order_relaxed);
    ThreadState::Slot& mine = state->slots[slot];
    if ((mine.session == session || state->join(slot, session)) && mine.ring.ok()) {
      body(mine.ring);
    }
  }
}

void Writer::raise_alarm(Alarm alarm) noexcept {
  // The headers stay mapped: who detaches meanwhile only makes us count in vain.
  const std::lock_guard lock(registry_mutex_);
  for (const Attachment& attachment : attachments_) {
    if (attachment.header != nullptr) {
      attachment.header->alarm.store(alarm, std::memory_order_relaxed);
      attachment.header->alarms.fetch_add(1, std::memory_order_release);
    }
  }
}

std::uint32_t Writer::stack_node(std::uint32_t caller, std::string_view frame) noexcept {
  Names* names = names_.load(std::memory_order_acquire);
  return names == nullptr ? 0 : names->stack_node(caller, names->intern(frame));
}

void Writer::emit_to_all(const Record& record) noexcept {
  const std::uint64_t epoch = g_epoch.load(std::memory_order_acquire);
  // Pairs with attach(): who sees the bit sees the session.
  const std::uint32_t sessions = sessions_.load(std::memory_order_acquire);
  emit(sessions, record);
  if (__builtin_popcount(sessions) == 1) {
    ThreadState* state = ThreadState::current();
    if (RingWriter& ring = state->slots[static_cast<std::size_t>(__builtin_ctz(sessions))].ring; ring.ok()) {
      state->only = &ring;
      state->epoch = epoch;
    }
  }
}

void Writer::emit(std::uint32_t sessions, const Record& record) noexcept {
  ThreadState* state = ThreadState::current();
  while (sessions != 0) {
    const auto slot = static_cast<std::size_t>(__builtin_ctz(sessions));
    sessions &= sessions - 1;
    const std::uint64_t session = session_of_slot_[slot].load(std::memory_order_relaxed);
    ThreadState::Slot& mine = state->slots[slot];
    if (__builtin_expect(mine.session != session, 0) && !state->join(slot, session)) {
      continue;
    }
    if (__builtin_expect(mine.ring.ok(), 1)) {
      mine.ring.push(record);
    } else if (mine.header != nullptr) {
      mine.header->unrecorded.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

std::uint32_t Writer::intern(std::string_view text) noexcept {
  Names* names = names_.load(std::memory_order_acquire);
  return names == nullptr ? 0 : names->intern(text);
}

ThreadView* Writer::thread_view() noexcept { return &ThreadState::current()->view; }

std::uint64_t Writer::next_correlation() noexcept {
  ThreadState* state = ThreadState::current();
  if (state->next_correlation == state->last_correlation) {
    state->next_correlation = g_next_correlation_block.fetch_add(1, std::memory_order_relaxed) * kCorrelationBlock;
    state->last_correlation = state->next_correlation + kCorrelationBlock;
  }
  return state->next_correlation++;
}

void Writer::step() noexcept {
  const std::uint64_t now = ticks(api_.clock);
  const std::uint64_t begin = step_ticks_.exchange(now, std::memory_order_relaxed);
  const std::uint64_t number = step_number_.fetch_add(1, std::memory_order_relaxed);
  if (!recording(api_)) {
    return;
  }
  char name[32];
  const int length = std::snprintf(name, sizeof name, "step#%" PRIu64, number);
  Record record = make_record(Kind::kAnnotation, intern({name, static_cast<std::size_t>(length)}));
  record.start_ticks = begin == 0 ? now : begin;
  record.end_ticks = now;
  api_.emit(record);
}

void Writer::add_listener(const SessionListener& listener) {
  const std::lock_guard joining(sync_mutex_);
  {
    const std::lock_guard lock(registry_mutex_);
    listeners_.push_back(listener);
  }
  if (const std::uint32_t sessions = sessions_.load(); sessions != 0) {
    if (listener.on_attach != nullptr) {
      listener.on_attach(sessions, listener.context);
    }
    if (listener.on_details != nullptr) {
      listener.on_details(details_.load(), listener.context);
    }
  }
}

std::optional<std::string> Writer::start(const std::string& hooks, const std::string& note) {
  {
    const std::lock_guard lock(sync_mutex_);
    if (started_) {
      return std::nullopt;
    }
    hooks_ = hooks;
    note_ = note;
    const char* stated = std::getenv(kSessionVariable);
    stated_session_ = stated == nullptr ? "" : stated;
    try {
      rendezvous_ = Rendezvous::open();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    started_ = true;
    step_ticks_ = ticks(api_.clock);
    pthread_atfork(&ForkHandlers::prepare, &ForkHandlers::parent, &ForkHandlers::child);
    std::atexit([] {
      Writer& writer = instance();
      // No session is joined from here on: the libraries that listen are being torn down.
      const std::lock_guard joining(writer.sync_mutex_);
      writer.exiting_ = true;
      const std::lock_guard registry(writer.registry_mutex_);
      for (const Attachment& attachment : writer.attachments_) {
        if (attachment.header != nullptr) {
          attachment.header->state.store(ProcessState::kExited, std::memory_order_release);
        }
      }
      if (const Names* names = writer.names_.load(); names != nullptr) {
        ::unlink(names->path().c_str());
      }
    });
  }
  sync();
  start_watcher();
  return std::nullopt;
}

void Writer::start_watcher() {
  // A signal of the program must never land on the watcher.
  sigset_t all;
  sigset_t previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  // Not std::thread, which throws where a process may have no more threads; then only the program's own calls of sync()
  // join sessions.
  pthread_t thread{};
  const auto watch = [](void* writer) -> void* {
    static_cast<Writer*>(writer)->watch();
    return nullptr;
  };
  if (pthread_create(&thread, nullptr, watch, this) == 0) {
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

constexpr useconds_t kWithoutFilesUs = 100'000;

void Writer::watch() {
  pthread_setname_np(pthread_self(), "ral-watcher");
  for (;;) {
    bool for_now = false;
    const std::optional<Page> seen = rendezvous_->read(&for_now);
    if (for_now) {
      ::usleep(kWithoutFilesUs);
      continue;
    }
    sync();
    // A page that is gone announces nothing any more; what recorded us cannot tell us to stop, so it is left.
    if (!seen || !rendezvous_->wait(seen->generation)) {
      sync();
      return;
    }
  }
}

namespace {

std::optional<Wanted> checked(const SessionSlot& slot) {
  const std::string folder(slot.folder.data(), ::strnlen(slot.folder.data(), slot.folder.size()));
  const std::uint64_t records = slot.ring_records;
  const bool sound = slot.state == SlotState::kRecording && slot.session != 0 && records >= kLeastRingRecords &&
                     records <= kMaxRingRecords && (records & (records - 1)) == 0 && !folder.empty() &&
                     folder[0] != '.' && folder.find('/') == std::string::npos &&
                     (slot.on_full == OnFull::kDrop || slot.on_full == OnFull::kOverwrite);
  return sound ? std::optional(Wanted{slot.session, slot.target_pid, records, folder, slot.on_full, slot.details})
               : std::nullopt;
}

// A collector may be changing a slot while we read it: what it says counts if it says the same twice. Else another
// wake-up follows.
bool says_the_same(SessionSlot first, SessionSlot second) noexcept {
  first.attach_failures = second.attach_failures = 0;
  return std::memcmp(&first, &second, sizeof first) == 0;
}

}  // namespace

void Writer::sync() {
  const std::uint32_t before = details_.load();
  if (join_and_leave(); details_.load() != before) {
    if (auto* applied = details_applied_.load(); applied != nullptr) {
      applied(details_.load());
    }
  }
}

void Writer::join_and_leave() {
  const std::lock_guard joining(sync_mutex_);
  if (rendezvous_ == nullptr || exiting_) {
    return;
  }
  bool for_now = false;
  const std::optional<Page> first = rendezvous_->read(&for_now);
  const std::optional<Page> page = first ? rendezvous_->read(&for_now) : first;
  if (for_now) {
    return;  // who records goes on
  }
  for (std::size_t i = 0; i < kSessions; ++i) {
    const bool whole = page && says_the_same(first->slots[i], page->slots[i]);
    const std::optional<Wanted> wanted = whole ? checked(page->slots[i]) : std::nullopt;
    const std::uint64_t attached = attachments_[i].session;
    const bool still = wanted && wanted->session == attached;
    if (attached != 0 && !still) {
      detach(i);
    }
    if (wanted && !still && wants_this_process(*wanted)) {
      attach(i, *wanted);
    }
  }
  update_details();
}

void Writer::update_details() {
  std::uint32_t wanted = 0;
  std::vector<SessionListener> listeners;
  {
    const std::lock_guard lock(registry_mutex_);
    for (const Attachment& attachment : attachments_) {
      if (attachment.header != nullptr) {
        wanted |= attachment.details & ~attachment.header->shed.load(std::memory_order_relaxed);
      }
    }
    listeners = listeners_;
  }
  if (details_.exchange(wanted) == wanted) {
    return;
  }
  for (const SessionListener& listener : listeners) {
    if (listener.on_details != nullptr) {
      listener.on_details(wanted, listener.context);
    }
  }
}

bool Writer::wants_this_process(const Wanted& wanted) const {
  if (wanted.target_pid == 0) {
    return true;
  }
  // A child whose parent is gone still has its environment.
  char session[32];
  std::snprintf(session, sizeof session, "%016" PRIx64, wanted.session);
  if (stated_session_ == session) {
    return true;
  }
  for (pid_t pid = ::getpid(); pid > 1; pid = parent_of(pid)) {
    if (pid == wanted.target_pid) {
      return true;
    }
  }
  return false;
}

// `folder` gets a suffix where this process was recorded before it called exec.
ProcessHeader* Writer::make_process_files(std::string* folder) {
  const std::string identity = std::to_string(::getpid()) + "-" + std::to_string(process_started(::getpid()));
  if (names_.load() == nullptr) {
    names_.store(Names::create(rendezvous_->folder() + "/names-" + identity, parents_names_).release(),
                 std::memory_order_release);
  }
  const Names* names = names_.load();
  if (names == nullptr) {
    return nullptr;
  }
  const std::string plain = *folder;
  for (int image = 1; ::mkdir(folder->c_str(), 0700) != 0; ++image) {
    if (errno != EEXIST || image > 99) {
      return nullptr;
    }
    *folder = plain + "." + std::to_string(image);
  }
  if (::link(names->path().c_str(), (*folder + "/names").c_str()) != 0) {
    return nullptr;
  }
  // Under another name until it is whole: the collector looks for `process`.
  Mapping mapping = create_mapped(*folder + "/.process", kHeaderBytes);
  if (!mapping) {
    return nullptr;
  }
  auto* header = static_cast<ProcessHeader*>(mapping.get());
  header->magic = kProcessMagic;
  header->version = kLayoutVersion;
  header->pid = ::getpid();
  header->parent = ::getppid();
  header->started = process_started(::getpid());
  header->attached_ticks = ticks(api_.clock);
  header->clock = api_.clock;
  header->state = ProcessState::kRecording;
  std::snprintf(header->note.data(), header->note.size(), "%s", note_.c_str());
  // Written here because a short-lived process is gone before the collector looks.
  if (const File words(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC)); words) {
    (void)!::read(words.get(), header->command.data(), header->command.size() - 2);
  }
  if (std::rename((*folder + "/.process").c_str(), (*folder + "/process").c_str()) != 0) {
    return nullptr;
  }
  return static_cast<ProcessHeader*>(mapping.release());
}

void Writer::attach(std::size_t slot, const Wanted& wanted) {
  const std::string identity = std::to_string(::getpid()) + "-" + std::to_string(process_started(::getpid()));
  const std::string session_folder = rendezvous_->folder() + "/" + wanted.folder;
  std::string folder = session_folder + "/" + identity;
  load_hooks();
  ProcessHeader* header = is_private_folder(session_folder) ? make_process_files(&folder) : nullptr;
  if (header == nullptr) {
    rendezvous_->count_attach_failure(slot);
  }
  {
    const std::lock_guard lock(registry_mutex_);
    // Also after a failure, so that it is not tried again at every wake-up.
    attachments_[slot] =
        Attachment{wanted.session, folder, wanted.ring_records, wanted.on_full, wanted.details, header, RingWriter{}};
    if (header != nullptr) {
      attachments_[slot].spare = make_ring(attachments_[slot], 0);
    }
  }
  if (header == nullptr) {
    return;
  }
  const std::uint32_t bit = 1u << slot;
  session_of_slot_[slot].store(wanted.session, std::memory_order_relaxed);
  sessions_.fetch_or(bit, std::memory_order_release);
  g_epoch.fetch_add(1, std::memory_order_release);
  std::vector<SessionListener> listeners;
  {
    const std::lock_guard lock(registry_mutex_);
    listeners = listeners_;
  }
  for (const SessionListener& listener : listeners) {
    if (listener.on_attach != nullptr) {
      listener.on_attach(bit, listener.context);
    }
  }
}

void Writer::detach(std::size_t slot) {
  const std::uint32_t remaining = sessions_.fetch_and(~(1u << slot)) & ~(1u << slot);
  g_epoch.fetch_add(1, std::memory_order_release);
  std::vector<SessionListener> listeners;
  {
    const std::lock_guard lock(registry_mutex_);
    // The header and the rings stay mapped: a thread may be in the middle of an event.
    if (attachments_[slot].header != nullptr) {
      attachments_[slot].header->state.store(ProcessState::kDetached, std::memory_order_release);
    }
    attachments_[slot] = Attachment{};
    listeners = listeners_;
  }
  for (const SessionListener& listener : listeners) {
    if (listener.on_detach != nullptr) {
      listener.on_detach(remaining, listener.context);
    }
  }
}

void Writer::load_hooks() {
  if (hooks_.empty() || hooks_loaded_) {
    return;
  }
  hooks_loaded_ = true;
  void* library = ::dlopen(hooks_.c_str(), RTLD_NOW | RTLD_LOCAL);
  using Install = void (*)(const WriterApi*, void (*)(const SessionListener&));
  auto* install = library == nullptr ? nullptr : reinterpret_cast<Install>(::dlsym(library, "ral_trace_install_hooks"));
  if (install == nullptr) {
    note_ = std::string("ops are not recorded: ") + ::dlerror();
    return;
  }
  if (const auto* version = static_cast<const std::uint32_t*>(::dlsym(library, "ral_trace_hooks_version"));
      version == nullptr || *version != kWriterApiVersion) {
    note_ = "ops are not recorded: " + hooks_ + " was built for another ral-trace; install ral-trace again";
    return;
  }
  // Not add_listener: that would wait for the lock that our caller holds.
  install(&api_, [](const SessionListener& listener) {
    const std::lock_guard lock(instance().registry_mutex_);
    instance().listeners_.push_back(listener);
  });
}

void Writer::after_fork_in_child() {
  // The listeners hear of it in sync() when the details are others for the child, as where nobody records it.
  sessions_ = 0;
  g_epoch.fetch_add(1, std::memory_order_release);
  if (t_state != nullptr) {
    for (ThreadState::Slot& slot : t_state->slots) {
      slot.ring.forget();
      slot.session = 0;
      slot.header = nullptr;
    }
    t_state->view.tid = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  }
  attachments_ = {};
  // The child takes over its parent's names when it is recorded: most children call exec, and need none.
  if (Names* parents = names_.exchange(nullptr); parents != nullptr) {
    parents->keep_file();
    parents_names_ = parents;
  }
  sync();
  start_watcher();
}

}  // namespace ral::trace
