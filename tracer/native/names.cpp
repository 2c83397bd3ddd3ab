#include "names.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

namespace ral::trace {

namespace {

// Most programs have a few hundred names, and /dev/shm has 64 MiB in many containers.
constexpr std::size_t kPoolStepBytes = 256 * 1024;

std::size_t whole_steps(std::size_t bytes) {
  return std::min((bytes / kPoolStepBytes + 1) * kPoolStepBytes, kNamePoolBytes);
}

}  // namespace

std::unique_ptr<Names> Names::create(const std::string& path, const Names* copy) noexcept {
  // What has this name is left from before this process called exec.
  ::unlink(path.c_str());
  // The parent goes on while its child copies; what it adds meanwhile is not ours.
  const std::size_t used = copy == nullptr ? 0 : std::min<std::size_t>(copy->table().used_bytes, kNamePoolBytes);
  const std::size_t backed = whole_steps(used);
  constexpr std::size_t pool = offsetof(NameTable, pool);
  Mapping table = create_mapped(path, sizeof(NameTable), pool + backed);
  constexpr std::size_t index_bytes = 2 * kIndexSlots * sizeof(std::atomic<std::uint32_t>);
  void* index = ::mmap(nullptr, index_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!table || index == MAP_FAILED) {
    if (table) {
      ::unlink(path.c_str());
    }
    if (index != MAP_FAILED) {
      ::munmap(index, index_bytes);
    }
    return nullptr;
  }
  auto* fresh = static_cast<NameTable*>(table.get());
  if (copy != nullptr) {
    std::memcpy(static_cast<void*>(fresh), static_cast<const void*>(copy->table_.get()), pool + used);
    std::memcpy(index, copy->index_.get(), index_bytes);
    for (std::uint32_t id = fresh->next_id; id < kMaxNames; ++id) {
      fresh->entries[id].length = 0;
    }
    for (std::uint32_t id = fresh->next_stack; id < kMaxStackNodes; ++id) {
      fresh->stacks[id].frame = 0;
    }
  } else {
    fresh->version = kLayoutVersion;
    fresh->next_id = 1;
    fresh->next_stack = 1;
  }
  fresh->magic = kNamesMagic;
  return std::unique_ptr<Names>(new Names(path, backed, std::move(table), Mapping(index, index_bytes)));
}

Names::~Names() {
  if (owns_file_) {
    ::unlink(path_.c_str());
  }
}

std::string_view Names::text(std::uint32_t id) const noexcept {
  const NameEntry& entry = table().entries[id];
  return {table().pool.data() + entry.offset, entry.length.load(std::memory_order_acquire) - 1};
}

bool Names::make_room(std::size_t end) noexcept {
  std::size_t backed = backed_bytes_.load(std::memory_order_acquire);
  while (end > backed) {
    // Two threads may ask for the same part: the second gets what is there already.
    const std::size_t wanted = whole_steps(end);
    if (no_room_.load(std::memory_order_relaxed) || !back(path_, offsetof(NameTable, pool) + backed, wanted - backed)) {
      // A process that can open no more files may again.
      if (errno != EMFILE && errno != ENFILE) {
        no_room_.store(true, std::memory_order_relaxed);
      }
      return false;
    }
    if (backed_bytes_.compare_exchange_strong(backed, wanted, std::memory_order_acq_rel)) {
      return true;
    }
  }
  return true;
}

std::uint32_t Names::append(std::string_view text) noexcept {
  NameTable& names = table();
  const std::uint32_t id = names.next_id.load(std::memory_order_relaxed) < kMaxNames
                               ? names.next_id.fetch_add(1, std::memory_order_relaxed)
                               : kMaxNames;
  const std::uint32_t used = names.used_bytes.load(std::memory_order_relaxed);
  const bool room = id < kMaxNames && used + text.size() <= kNamePoolBytes;
  const std::uint32_t offset =
      room ? names.used_bytes.fetch_add(static_cast<std::uint32_t>(text.size()), std::memory_order_relaxed) : 0;
  // A second thread may have taken the last bytes meanwhile.
  if (!room || offset + text.size() > kNamePoolBytes || !make_room(offset + text.size())) {
    names.refused.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  std::memcpy(names.pool.data() + offset, text.data(), text.size());
  names.entries[id].offset = offset;
  names.entries[id].length.store(static_cast<std::uint32_t>(text.size()) + 1, std::memory_order_release);
  return id;
}

std::uint32_t Names::append_stack(std::uint32_t caller, std::uint32_t frame) noexcept {
  NameTable& names = table();
  const std::uint32_t id = names.next_stack.load(std::memory_order_relaxed) < kMaxStackNodes
                               ? names.next_stack.fetch_add(1, std::memory_order_relaxed)
                               : kMaxStackNodes;
  if (id >= kMaxStackNodes) {
    names.refused_stacks.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  names.stacks[id].caller = caller;
  names.stacks[id].frame.store(frame, std::memory_order_release);
  return id;
}

namespace {

// The id at which an open-addressed index has what `same` knows, else what `append` makes; 0 where it makes nothing.
template <typename Same, typename Append>
std::uint32_t find_or_append(std::atomic<std::uint32_t>* index, std::uint32_t slots, std::size_t hash, const Same& same,
                             const Append& append) noexcept {
  std::uint32_t appended = 0;
  std::size_t slot = hash % slots;
  for (std::uint32_t probe = 0; probe < slots; ++probe, slot = (slot + 1) % slots) {
    std::uint32_t found = index[slot].load(std::memory_order_acquire);
    if (found == 0) {
      if (appended == 0 && (appended = append()) == 0) {
        return 0;
      }
      if (index[slot].compare_exchange_strong(found, appended, std::memory_order_acq_rel)) {
        return appended;
      }
    }
    // Two threads may have appended the same; the one that lost the slot takes the winner's id.
    if (same(found)) {
      return found;
    }
  }
  return 0;
}

}  // namespace

std::uint32_t Names::intern(std::string_view text) noexcept {
  const std::string_view kept = text.substr(0, kMaxNameBytes);
  return find_or_append(
      name_index(), kIndexSlots, std::hash<std::string_view>{}(kept),
      [&](std::uint32_t id) { return this->text(id) == kept; },
      [&] {
        if (kept.size() < text.size()) {
          table().cut.fetch_add(1, std::memory_order_relaxed);
        }
        return append(kept);
      });
}

std::uint32_t Names::stack_node(std::uint32_t caller, std::uint32_t frame) noexcept {
  if (frame == 0) {
    return 0;
  }
  const std::uint64_t key = std::uint64_t{caller} << 32 | frame;
  // The highest bits are the only ones that all of the key has a part in.
  return find_or_append(
      stack_index(), kIndexSlots, key * 0x9e3779b97f4a7c15u >> 40,
      [&](std::uint32_t id) {
        const StackNode& node = table().stacks[id];
        return node.frame.load(std::memory_order_acquire) == frame && node.caller == caller;
      },
      [&] { return append_stack(caller, frame); });
}

}  // namespace ral::trace
