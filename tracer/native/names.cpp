#include "names.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

namespace ral::trace {

std::unique_ptr<Names> Names::create(const std::string& path, const Names* copy) noexcept {
  // What has this name is left from before this process called exec.
  ::unlink(path.c_str());
  Mapping table = create_mapped(path, sizeof(NameTable));
  constexpr std::size_t index_bytes = kIndexSlots * sizeof(std::atomic<std::uint32_t>);
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
    std::memcpy(static_cast<void*>(fresh), static_cast<const void*>(copy->table_.get()), sizeof(NameTable));
    std::memcpy(index, copy->index_.get(), index_bytes);
    // The parent goes on while its child copies; what it added meanwhile is not ours.
    for (std::uint32_t id = fresh->next_id; id < kMaxNames; ++id) {
      fresh->entries[id].length = 0;
    }
  } else {
    fresh->version = kLayoutVersion;
    fresh->next_id = 1;
  }
  fresh->magic = kNamesMagic;
  return std::unique_ptr<Names>(new Names(path, std::move(table), Mapping(index, index_bytes)));
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
  if (!room || offset + text.size() > kNamePoolBytes) {
    names.refused.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  std::memcpy(names.pool.data() + offset, text.data(), text.size());
  names.entries[id].offset = offset;
  names.entries[id].length.store(static_cast<std::uint32_t>(text.size()) + 1, std::memory_order_release);
  return id;
}

std::uint32_t Names::intern(std::string_view text) noexcept {
  text = text.substr(0, kMaxNameBytes);
  std::uint32_t appended = 0;
  std::size_t slot = std::hash<std::string_view>{}(text) % kIndexSlots;
  for (std::uint32_t probe = 0; probe < kIndexSlots; ++probe, slot = (slot + 1) % kIndexSlots) {
    std::uint32_t found = index()[slot].load(std::memory_order_acquire);
    if (found == 0) {
      if (appended == 0 && (appended = append(text)) == 0) {
        return 0;
      }
      if (index()[slot].compare_exchange_strong(found, appended, std::memory_order_acq_rel)) {
        return appended;
      }
    }
    // Two threads may have appended the same text; the one that lost the slot takes the winner's id.
    if (this->text(found) == text) {
      return found;
    }
  }
  return 0;
}

}  // namespace ral::trace
