#include "files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace ral::trace {

File::~File() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Mapping::~Mapping() {
  if (address_ != nullptr) {
    ::munmap(address_, bytes_);
  }
}

namespace {

// A signal of the program (a sampling profiler's, say) interrupts it without having done anything.
bool allocate(const File& file, std::size_t offset, std::size_t bytes) noexcept {
  int failed = 0;
  do {
    failed = ::posix_fallocate(file.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (failed == EINTR);
  return failed == 0;
}

Mapping create(const std::string& path, std::size_t bytes, std::size_t backed, int flags) noexcept {
  const File file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) {
    return {};
  }
  void* address = MAP_FAILED;
  if (allocate(file, 0, backed) && ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0) {
    address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file.get(), 0);
  }
  if (address == MAP_FAILED) {
    ::unlink(path.c_str());
    return {};
  }
  return {address, bytes};
}

}  // namespace

Mapping create_mapped(const std::string& path, std::size_t bytes) noexcept {
  return create(path, bytes, bytes, MAP_POPULATE);
}

Mapping create_mapped(const std::string& path, std::size_t bytes, std::size_t backed) noexcept {
  // Not MAP_POPULATE, which would back all of it.
  return create(path, bytes, backed, 0);
}

bool back(const std::string& path, std::size_t offset, std::size_t bytes) noexcept {
  const File file = open_owned(path, O_RDWR);
  return file && allocate(file, offset, bytes);
}

File open_owned(const std::string& path, int flags) noexcept {
  File file(::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0) {
    return {};
  }
  const bool ours = S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
  return ours ? std::move(file) : File{};
}

bool is_private_folder(const std::string& path) noexcept {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
         (status.st_mode & 077) == 0;
}

bool ensure_private_folder(const std::string& path, std::string* why) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    *why = path + ": cannot be made (" + std::strerror(errno) + ")";
    return false;
  }
  if (!is_private_folder(path)) {
    *why = path + ": must be a folder of yours that nobody else can enter (mode 0700)";
    return false;
  }
  return true;
}

namespace {

// The fields of /proc/<pid>/stat after the command, which is in parentheses and may hold anything.
std::optional<std::string> stat_fields(pid_t pid) noexcept {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const File file(::open(path, O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t length = file ? ::read(file.get(), text, sizeof text - 1) : -1;
  if (length <= 0) {
    return std::nullopt;
  }
  text[length] = '\0';
  const char* after = std::strrchr(text, ')');
  return after == nullptr ? std::nullopt : std::optional<std::string>(after + 1);
}

// Field number as in proc(5); the first one after the command is 3.
std::uint64_t stat_field(pid_t pid, int number) noexcept {
  const auto fields = stat_fields(pid);
  if (!fields) {
    return 0;
  }
  const char* cursor = fields->c_str();
  for (int field = 3; field <= number; ++field) {
    cursor += std::strspn(cursor, " ");
    if (field == number) {
      return std::strtoull(cursor, nullptr, 10);
    }
    cursor += std::strcspn(cursor, " ");
  }
  return 0;
}

}  // namespace

std::uint64_t process_started(pid_t pid) noexcept { return stat_field(pid, 22); }

pid_t parent_of(pid_t pid) noexcept { return static_cast<pid_t>(stat_field(pid, 4)); }

std::string rendezvous_folder() {
  if (const char* stated = std::getenv("RAL_TRACE_DIR"); stated != nullptr && *stated != '\0') {
    return stated;
  }
  const std::string base = ::access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
  return base + "/ral-trace-" + std::to_string(::geteuid());
}

}  // namespace ral::trace
