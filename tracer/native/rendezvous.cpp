#include "rendezvous.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

namespace ral::trace {

namespace {

bool read_page(const File& file, Page* page) noexcept {
  return ::pread(file.get(), page, sizeof *page, 0) == static_cast<ssize_t>(sizeof *page);
}

}  // namespace

std::unique_ptr<Rendezvous> Rendezvous::open() {
  std::string folder = rendezvous_folder();
  std::string why;
  if (!ensure_private_folder(folder, &why)) {
    throw std::runtime_error(why);
  }
  const std::string path = folder + "/page";
  ::close(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  const File file = open_owned(path, O_RDWR);
  // The first to come fills it; the lock keeps a second one from reading it half-made.
  struct stat status{};
  if (!file || ::flock(file.get(), LOCK_EX) != 0 || ::fstat(file.get(), &status) != 0) {
    throw std::runtime_error(path + ": must be a file of yours that nobody else can read (mode 0600)");
  }
  if (status.st_size == 0 && ::posix_fallocate(file.get(), 0, kHeaderBytes) != 0) {
    throw std::runtime_error(path + ": no room for 4096 bytes");
  }
  if (status.st_size != 0 && status.st_size != static_cast<off_t>(kHeaderBytes)) {
    throw std::runtime_error(path + ": has the wrong size; remove it when nothing is being recorded");
  }
  Page page{};
  bool whole = read_page(file, &page);
  // Also when whoever made it died before this point.
  if (whole && page.magic == 0) {
    page.version = kLayoutVersion;
    page.magic = kPageMagic;
    whole = ::pwrite(file.get(), &page, offsetof(Page, generation), 0) == offsetof(Page, generation);
  }
  void* address = ::mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (!whole || address == MAP_FAILED) {
    throw std::runtime_error(path + ": cannot be read and mapped");
  }
  Mapping mapping(address, kHeaderBytes);
  // Said outright, because the mapping keeps the open file, and with it the lock, alive.
  ::flock(file.get(), LOCK_UN);
  if (page.magic != kPageMagic || page.version != kLayoutVersion) {
    throw std::runtime_error(path +
                             ": was made by another version of ral-trace; remove it when nothing is being recorded");
  }
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(folder), std::move(mapping), status.st_ino));
}

File Rendezvous::file(int flags) const noexcept {
  File file = open_owned(folder_ + "/page", flags);
  struct stat status{};
  const bool same = file && ::fstat(file.get(), &status) == 0 && status.st_ino == inode_ &&
                    status.st_size == static_cast<off_t>(kHeaderBytes);
  return same ? std::move(file) : File{};
}

std::optional<Page> Rendezvous::read(bool* for_now) const noexcept {
  Page page{};
  errno = 0;
  const File opened = file(O_RDONLY);
  if (for_now != nullptr) {
    *for_now = !opened && (errno == EMFILE || errno == ENFILE || errno == ENOMEM);
  }
  return opened && read_page(opened, &page) ? std::optional(page) : std::nullopt;
}

void Rendezvous::raise(std::size_t offset) noexcept {
  ::syscall(SYS_futex, address(offset), FUTEX_WAKE_OP, INT_MAX, 0, address(offset),
            FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0));
}

bool Rendezvous::wait(std::size_t offset, std::uint32_t seen) noexcept {
  return ::syscall(SYS_futex, address(offset), FUTEX_WAIT, seen, nullptr, nullptr, 0) == 0 || errno == EAGAIN ||
         errno == EINTR;
}

bool Rendezvous::notify_reloads(std::unique_ptr<Rendezvous> page, int descriptor) noexcept {
  struct Watch {
    std::unique_ptr<Rendezvous> page;
    int descriptor;
    std::uint32_t seen;
  };
  const std::optional<Page> first = page->read();
  auto watch = std::make_unique<Watch>(Watch{std::move(page), descriptor, first ? first->reloads : 0});
  const auto run = [](void* context) -> void* {
    auto* watch = static_cast<Watch*>(context);
    pthread_setname_np(pthread_self(), "ral-reload");
    while (watch->page->wait(offsetof(Page, reloads), watch->seen)) {
      const std::optional<Page> now = watch->page->read();
      if (!now) {
        break;
      }
      if (now->reloads != std::exchange(watch->seen, now->reloads)) {
        ::eventfd_write(watch->descriptor, 1);
      }
    }
    return nullptr;
  };
  // A signal of the program must never land on it.
  sigset_t all;
  sigset_t previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  pthread_t thread{};
  const bool started = pthread_create(&thread, nullptr, run, watch.get()) == 0;
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  if (started) {
    pthread_detach(thread);
    watch.release();
  }
  return started;
}

PageEditor::PageEditor(const Rendezvous& rendezvous) : file_(rendezvous.file(O_RDWR)) {
  if (!file_ || ::flock(file_.get(), LOCK_EX) != 0 || !read_page(file_, &page_)) {
    throw std::runtime_error(rendezvous.folder() + "/page: is not what it was; begin the recording again");
  }
}

namespace {

std::size_t offset_of(std::size_t slot) { return offsetof(Page, slots) + slot * sizeof(SessionSlot); }

}  // namespace

void PageEditor::set_state(std::size_t slot, SlotState state) noexcept {
  page_.slots[slot].state = state;
  (void)!::pwrite(file_.get(), &state, sizeof state, static_cast<off_t>(offset_of(slot)));
}

void PageEditor::fill(std::size_t slot, SessionSlot content) noexcept {
  const SlotState state = std::exchange(content.state, SlotState::kClaimed);
  set_state(slot, SlotState::kClaimed);
  page_.slots[slot] = content;
  (void)!::pwrite(file_.get(), &content, sizeof content, static_cast<off_t>(offset_of(slot)));
  set_state(slot, state);
}

}  // namespace ral::trace
