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

#include <climits>
#include <csignal>
#include <utility>

namespace ral::trace {

std::unique_ptr<Rendezvous> Rendezvous::open() {
  std::string folder = rendezvous_folder();
  std::string why;
  if (!ensure_private_folder(folder, &why)) {
    throw std::runtime_error(why);
  }
  const std::string path = folder + "/page";
  ::close(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
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
  void* address = ::mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) {
    throw std::runtime_error(path + ": cannot be mapped");
  }
  Mapping mapping(address, kHeaderBytes);
  auto* page = static_cast<Page*>(address);
  // Also when whoever made it died before this point.
  if (page->magic == 0) {
    page->version = kLayoutVersion;
    page->magic = kPageMagic;
  }
  // Said outright, because the mapping keeps the open file, and with it the lock, alive.
  ::flock(file.get(), LOCK_UN);
  if (page->magic != kPageMagic || page->version != kLayoutVersion) {
    throw std::runtime_error(path +
                             ": was made by another version of ral-trace; remove it when nothing is being recorded");
  }
  return std::unique_ptr<Rendezvous>(new Rendezvous(std::move(folder), std::move(mapping)));
}

namespace {

void raise(std::atomic<std::uint32_t>& count) noexcept {
  count.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, &count, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wait_for_change(std::atomic<std::uint32_t>& count, std::uint32_t seen) noexcept {
  ::syscall(SYS_futex, &count, FUTEX_WAIT, seen, nullptr, nullptr, 0);
}

}  // namespace

void Rendezvous::announce() noexcept { raise(page().generation); }
void Rendezvous::wait(std::uint32_t seen) noexcept { wait_for_change(page().generation, seen); }

void Rendezvous::request_reload() noexcept { raise(page().reloads); }

bool Rendezvous::notify_reloads(std::unique_ptr<Rendezvous> page, int descriptor) noexcept {
  struct Watch {
    std::unique_ptr<Rendezvous> page;
    int descriptor;
    std::uint32_t seen;
  };
  const std::uint32_t seen = page->page().reloads.load(std::memory_order_acquire);
  auto watch = std::make_unique<Watch>(Watch{std::move(page), descriptor, seen});
  const auto run = [](void* context) -> void* {
    auto* watch = static_cast<Watch*>(context);
    std::atomic<std::uint32_t>& reloads = watch->page->page().reloads;
    pthread_setname_np(pthread_self(), "ral-reload");
    for (;;) {
      wait_for_change(reloads, watch->seen);
      const std::uint32_t now = reloads.load(std::memory_order_acquire);
      if (now != std::exchange(watch->seen, now)) {
        ::eventfd_write(watch->descriptor, 1);
      }
    }
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

}  // namespace ral::trace
