#include "memory_report.h"

#include <Python.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <array>
#include <iomanip>
#include <map>
#include <sstream>

namespace ral {

namespace {

constexpr std::size_t kHolders = 3;

struct Held {
  std::size_t size;
  std::shared_ptr<void> context;
};

struct Holder {
  std::size_t bytes = 0;
  std::size_t blocks = 0;
};

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

std::vector<Held> used_blocks(Device& device) {
  std::vector<Held> held;
  device.memory().visit(nullptr, [&](Block& block) {
    if (block.state == BlockState::kUsed) {
      held.push_back({block.size, block.context});
    }
  });
  return held;
}

bool in_a_library(const std::string& file) {
  return file.find("/torch/") != std::string::npos || file.find("/ral_trace/") != std::string::npos;
}

// The innermost frame that is the program's own.
std::string call_site(const torch::SymbolizedTracebacks& symbols, std::size_t index) {
  for (const std::uint64_t number : symbols.tracebacks[index]) {
    const auto& frame = symbols.all_frames[number];
    if (!in_a_library(frame.filename)) {
      return "by " + frame.filename.substr(frame.filename.rfind('/') + 1) + ":" + std::to_string(frame.lineno) + " (" +
             frame.funcname + ")";
    }
  }
  return "by code without Python frames";
}

// By the line that allocated where stacks were recorded, else by size. A worker, which never takes the GIL, says sizes.
std::map<std::string, Holder> holders(const std::vector<Held>& held) {
  const bool has_python = PyGILState_GetThisThreadState() != nullptr;
  std::vector<torch::CapturedTraceback*> tracebacks;
  for (const Held& one : held) {
    if (has_python && one.context != nullptr) {
      tracebacks.push_back(
          static_cast<torch::CapturedTraceback*>(static_cast<c10::GatheredContext*>(one.context.get())));
    }
  }
  torch::SymbolizedTracebacks symbols;
  if (!tracebacks.empty()) {
    const Gil gil;
    symbols = torch::symbolize(tracebacks);
  }
  std::map<std::string, Holder> result;
  std::size_t index = 0;
  for (const Held& one : held) {
    Holder& holder =
        result[has_python && one.context != nullptr ? call_site(symbols, index++) : "of " + format_size(one.size)];
    holder.bytes += one.size;
    ++holder.blocks;
  }
  return result;
}

void describe_holders(std::ostream& text, const std::vector<Held>& held) {
  const auto by_name = holders(held);
  std::vector<std::pair<std::string, Holder>> sorted(by_name.begin(), by_name.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  sorted.resize(std::min(sorted.size(), kHolders));
  const char* separator = " Held most: ";
  for (const auto& [name, holder] : sorted) {
    text << separator << format_size(holder.bytes) << " in " << holder.blocks
         << (holder.blocks == 1 ? " block " : " blocks ") << name;
    separator = ", ";
  }
  text << (sorted.empty() ? "" : ".");
}

}  // namespace

std::string format_size(std::size_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  std::ostringstream text;
  if (bytes < 1024) {
    text << bytes << " bytes";
    return text.str();
  }
  double amount = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < kUnits.size(); ++unit) {
    amount /= 1024;
  }
  text << std::fixed << std::setprecision(2) << amount << ' ' << kUnits[unit];
  return text.str();
}

std::string describe_out_of_memory(Device& device, const OutOfMemory::Facts& facts) {
  const std::vector<Held> held = used_blocks(device);
  std::ostringstream text;
  text << "ral:" << static_cast<int>(device.index()) << " (" << device.info().vendor.name
       << ") out of memory. Tried to allocate " << format_size(facts.requested)
       << ". The device has a total capacity of " << format_size(facts.capacity) << " of which "
       << format_size(facts.capacity - std::min(facts.capacity, facts.reserved)) << " is free. Of "
       << format_size(facts.reserved) << " reserved in regions, " << format_size(facts.allocated)
       << " is allocated and " << format_size(facts.free) << " is free; the largest free block is "
       << format_size(facts.largest_free) << " (fragmentation " << std::fixed << std::setprecision(1)
       << 100 * facts.fragmentation() << "%).";
  const std::uint64_t handles = device.memory().stats().regions.current;
  if (handles + device.memory().config().striping.domains > device.memory().config().max_regions) {
    text << " All of the device's " << device.memory().config().max_regions
         << " region handles are in use: no memory can be added, only what is reserved is there.";
  }
  describe_holders(text, held);
  return text.str();
}

}  // namespace ral
