// The page on which collectors say what they record and traced processes learn of it.
//
// Any process of the user can cut the file short, and a load from a page that is gone kills who does it. So nobody does:
// the page is read and written by system calls, and only the kernel uses the address, to wait and to count.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "files.h"
#include "layout.h"

namespace ral::trace {

class Rendezvous {
 public:
  // Opens the page, making folder and page when this is the first process to come. Throws std::runtime_error that says
  // what is wrong with the place.
  static std::unique_ptr<Rendezvous> open();

  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }
  // Nothing: the page was cut short, or is no longer the one that was opened. (A program may have closed all its
  // descriptors, so none is kept.)
  // `for_now`: it may be there, but this process can open no more files.
  [[nodiscard]] std::optional<Page> read(bool* for_now = nullptr) const noexcept;

  // Tells every waiting process that a slot changed.
  void announce() noexcept { raise(offsetof(Page, generation)); }
  // Waits until the generation is no longer `seen`. Never polls. False: this page can no longer be waited for.
  bool wait(std::uint32_t seen) noexcept { return wait(offsetof(Page, generation), seen); }
  // A program could not make its files for the session in a slot.
  void count_attach_failure(std::size_t slot) noexcept {
    raise(offsetof(Page, slots) + slot * sizeof(SessionSlot) + offsetof(SessionSlot, attach_failures));
  }

  // Asks programs with devices to read their kernel manifests again.
  void request_reload() noexcept { raise(offsetof(Page, reloads)); }
  // Adds 1 to an eventfd at each such request from now on, from a thread of its own: who reads it may be a Python thread,
  // which must not come out of a wait of ours while the interpreter ends. The page stays open for good. False: there can
  // be no more threads.
  static bool notify_reloads(std::unique_ptr<Rendezvous> page, int descriptor) noexcept;

 private:
  friend class PageEditor;
  Rendezvous(std::string folder, Mapping mapping, std::uint64_t inode)
      : folder_(std::move(folder)), mapping_(std::move(mapping)), inode_(inode) {}
  // No file when it is cut short or another one.
  [[nodiscard]] File file(int flags) const noexcept;
  // One system call adds 1 to a counter and wakes who waits for it: atomic, and an error where the page is gone.
  void raise(std::size_t offset) noexcept;
  bool wait(std::size_t offset, std::uint32_t seen) noexcept;
  [[nodiscard]] void* address(std::size_t offset) const noexcept {
    return static_cast<char*>(mapping_.get()) + offset;  // for the kernel only
  }

  std::string folder_;
  Mapping mapping_;
  std::uint64_t inode_;
};

// Changes slots, one collector at a time.
class PageEditor {
 public:
  // Waits for other collectors. Throws std::runtime_error where the page is gone.
  explicit PageEditor(const Rendezvous& rendezvous);

  [[nodiscard]] const SessionSlot& slot(std::size_t slot) const { return page_.slots.at(slot); }
  void set_state(std::size_t slot, SlotState state) noexcept;
  // Who reads meanwhile sees what was there, or a slot that is being claimed, or all of the new one.
  void fill(std::size_t slot, SessionSlot content) noexcept;

 private:
  File file_;  // and with it the lock
  Page page_{};
};

}  // namespace ral::trace
