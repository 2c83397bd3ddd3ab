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

  // The same for kernel manifests: how often programs were asked to read theirs again, asking, and waiting for it.
  [[nodiscard]] std::uint32_t reloads() const noexcept { return page().reloads.load(std::memory_order_acquire); }
  void request_reload() noexcept;
  void wait_reload(std::uint32_t seen) noexcept;

 private:
  Rendezvous(std::string folder, Mapping mapping) : folder_(std::move(folder)), mapping_(std::move(mapping)) {}

  std::string folder_;
  Mapping mapping_;
};

}  // namespace ral::trace
