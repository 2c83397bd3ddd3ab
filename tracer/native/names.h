// Text to number, once a process. The table lies in shared memory, so that the collector can read it after the writer
// died.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "files.h"
#include "layout.h"

namespace ral::trace {

class Names {
 public:
  // A table in a new file at `path`; with `copy`, it begins with the names of another table (a child after fork keeps
  // its parent's ids). nullptr: no room.
  static std::unique_ptr<Names> create(const std::string& path, const Names* copy) noexcept;
  ~Names();
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;

  // Lock-free. The same text gives the same id; 0 when the table is full (counted). Text over kMaxNameBytes is cut.
  std::uint32_t intern(std::string_view text) noexcept;
  // Lock-free, like intern(): the node of a stack's line (a name) under its caller's node. 0 when there is no room.
  std::uint32_t stack_node(std::uint32_t caller, std::uint32_t frame) noexcept;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // The file stays when the object goes: a forked child must not remove its parent's.
  void keep_file() noexcept { owns_file_ = false; }

 private:
  static constexpr std::uint32_t kIndexSlots = 2 * kMaxNames;
  static_assert(kMaxStackNodes == kMaxNames, "both indices have the same size");
  using Index = std::atomic<std::uint32_t>*;

  Names(std::string path, std::size_t backed_bytes, Mapping table, Mapping index)
      : path_(std::move(path)), backed_bytes_(backed_bytes), table_(std::move(table)), index_(std::move(index)) {}
  [[nodiscard]] NameTable& table() const noexcept { return *static_cast<NameTable*>(table_.get()); }
  [[nodiscard]] Index name_index() const noexcept { return static_cast<Index>(index_.get()); }
  [[nodiscard]] Index stack_index() const noexcept { return name_index() + kIndexSlots; }
  [[nodiscard]] std::string_view text(std::uint32_t id) const noexcept;
  std::uint32_t append(std::string_view text) noexcept;
  std::uint32_t append_stack(std::uint32_t caller, std::uint32_t frame) noexcept;
  // Whether the pool has memory up to `end`; takes more of it where it has not.
  bool make_room(std::size_t end) noexcept;

  std::string path_;
  std::atomic<std::size_t> backed_bytes_;  // of the pool; the rest of the file has no memory yet
  std::atomic<bool> no_room_{false};       // there was none for more; not asked for again at every new name
  Mapping table_;
  Mapping index_;  // of names, then of stacks: open addressing; holds ids; private memory of the process
  bool owns_file_ = true;
};

}  // namespace ral::trace
