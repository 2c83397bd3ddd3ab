#include "launch_site.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <atomic>

namespace ral {

namespace {

std::atomic<bool> recording{false};

bool is_of_torch(const std::string& file) { return file.find("/torch/") != std::string::npos; }

}  // namespace

void record_launch_sites(bool on) noexcept { recording.store(on, std::memory_order_relaxed); }
bool records_launch_sites() noexcept { return recording.load(std::memory_order_relaxed); }

LaunchSite gather_launch_site() {
  if (C10_LIKELY(!records_launch_sites())) {
    return nullptr;
  }
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

std::string describe_site(const LaunchSite& site) {
  if (site == nullptr) {
    return "";
  }
  const auto symbols = torch::symbolize({static_cast<torch::CapturedTraceback*>(site.get())});
  const auto& frames = symbols.tracebacks.at(0);
  std::string innermost;
  for (const std::uint64_t number : frames) {
    const auto& frame = symbols.all_frames.at(number);
    const std::string text = frame.filename + ":" + std::to_string(frame.lineno) + " in " + frame.funcname;
    if (!is_of_torch(frame.filename)) {
      return text;
    }
    innermost = innermost.empty() ? text : innermost;
  }
  return innermost;
}

}  // namespace ral
