// Small RAII over file descriptors and mappings, and the checks that everything in the rendezvous must pass.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace ral::trace {

class File {
 public:
  File() noexcept = default;
  explicit File(int descriptor) noexcept : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~File();
  [[nodiscard]] int get() const noexcept { return descriptor_; }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(void* address, std::size_t bytes) noexcept : address_(address), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();
  [[nodiscard]] void* get() const noexcept { return address_; }
  explicit operator bool() const noexcept { return address_ != nullptr; }
  // Gives up ownership: the mapping lives as long as the process.
  void* release() noexcept { return std::exchange(address_, nullptr); }

 private:
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
};

// Creates a new file of exactly `bytes`, every page of it backed: a sparse file on a full tmpfs would kill its writer
// with SIGBUS at the first touch. Returns no mapping when there is no room, or the file exists.
Mapping create_mapped(const std::string& path, std::size_t bytes) noexcept;
// Of `bytes` only the first `backed` have memory, yet: back() others before they are touched.
Mapping create_mapped(const std::string& path, std::size_t bytes, std::size_t backed) noexcept;
// Makes sure that a part of a file has memory. False: there is no room.
bool back(const std::string& path, std::size_t offset, std::size_t bytes) noexcept;

// Opens an existing file that must be regular, ours, and closed to others; no file otherwise.
File open_owned(const std::string& path, int flags) noexcept;

// Whether `path` is a folder of ours that nobody else can enter, and no link to one.
bool is_private_folder(const std::string& path) noexcept;
// Makes sure that `path` is a folder of ours with mode 0700, creating it if need be. False, and `why`, when it is not.
bool ensure_private_folder(const std::string& path, std::string* why);

// Field 22 of /proc/<pid>/stat: with the pid it names a process for good. 0: no such process.
std::uint64_t process_started(pid_t pid) noexcept;
pid_t parent_of(pid_t pid) noexcept;

// $RAL_TRACE_DIR, else /dev/shm/ral-trace-<euid>, else /tmp/ral-trace-<euid>. Not created here.
std::string rendezvous_folder();

}  // namespace ral::trace
