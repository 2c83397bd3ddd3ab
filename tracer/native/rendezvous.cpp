#include "rendezvous.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

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
void Rendezvous::wait_reload(std::uint32_t seen) noexcept { wait_for_change(page().reloads, seen); }

}  // namespace ral::trace
