// The page on which collectors say what they record and traced processes learn of it.
#pragma once

#include <memory>
#include <string>

#include "files.h"
#include "layout.h"

namespace ral::trace {

class Rendezvous {
 public:
  // Opens the page, making folder and page when this is the first process to come. Throws std::runtime_error that says
  // what is wrong with the place.
  static std::unique_ptr<Rendezvous> open();

  [[nodiscard]] Page& page() const noexcept { return *static_cast<Page*>(mapping_.get()); }
  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }

  // Tells every waiting process that a slot changed.
  void announce() noexcept;
  // Waits until the generation is no longer `seen`. Never polls.
  void wait(std::uint32_t seen) noexcept;

  // Asks programs with devices to read their kernel manifests again.
  void request_reload() noexcept;
  // Adds 1 to an eventfd at each such request from now on, from a thread of its own: who reads it may be a Python thread,
  // which must not come out of a wait of ours while the interpreter ends. The page stays open for good. False: there can
  // be no more threads.
  static bool notify_reloads(std::unique_ptr<Rendezvous> page, int descriptor) noexcept;

 private:
  Rendezvous(std::string folder, Mapping mapping) : folder_(std::move(folder)), mapping_(std::move(mapping)) {}

  std::string folder_;
  Mapping mapping_;
};

}  // namespace ral::trace
