// What the devices' allocators show to Python. No Python object is made under an allocator's lock.
#include "memory_bindings.h"

#include <pybind11/stl.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "memory_history.h"
#include "runtime.h"

namespace py = pybind11;

namespace ral {

namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

Device& device_of(int index) { return Runtime::get().any_device(static_cast<c10::DeviceIndex>(index)); }

template <class Do>
void on_all_devices(Do each) {
  for (int i = 0; i < Runtime::get().device_count(); ++i) {
    each(device_of(i));
  }
}

// --- snapshot ---------------------------------------------------------------------------------------------------------

struct BlockRow {
  std::uint64_t address;
  std::size_t size, requested;
  std::uint64_t generation, uses;
  BlockState state;
  std::uint8_t stream;
  std::vector<Piece> pieces;
  std::shared_ptr<void> context;
};

struct SegmentRow {
  std::uint64_t address = 0;
  std::size_t length = 0;
  std::vector<BlockRow> blocks;
};

std::vector<SegmentRow> read_segments(Device& device) {
  std::vector<SegmentRow> segments;
  const Extent* current = nullptr;
  device.memory().visit(nullptr, [&](Block& block) {
    if (block.extent != current) {
      current = block.extent;
      segments.push_back({current->range.address, current->range.length, {}});
    }
    segments.back().blocks.push_back({block.address, block.size, block.requested, block.generation, block.uses.load(),
                                      block.state, block.stream, block.pieces(), block.context});
  });
  return segments;
}

const char* to_text(BlockState state) {
  switch (state) {
    case BlockState::kFree:
      return "inactive";
    case BlockState::kUsed:
      return "active_allocated";
    case BlockState::kPending:
      return "active_pending_free";
  }
  return "";
}

const char* to_text(MemoryHistory::Action action) {
  switch (action) {
    case MemoryHistory::Action::kAlloc:
      return "alloc";
    case MemoryHistory::Action::kFreeRequested:
      return "free_requested";
    case MemoryHistory::Action::kFreeCompleted:
      return "free_completed";
    case MemoryHistory::Action::kSegmentAlloc:
      return "segment_alloc";
    case MemoryHistory::Action::kSegmentFree:
      return "segment_free";
    case MemoryHistory::Action::kOutOfMemory:
      return "oom";
  }
  return "";
}

// Python stacks by what was gathered; each is made into text once.
class Stacks {
 public:
  void want(const std::shared_ptr<void>& context) {
    if (context != nullptr && lists_.emplace(context.get(), py::list()).second) {
      order_.push_back(static_cast<torch::CapturedTraceback*>(static_cast<c10::GatheredContext*>(context.get())));
    }
  }
  void resolve() {
    const torch::SymbolizedTracebacks symbols = torch::symbolize(order_);
    std::vector<py::dict> frames;
    for (const auto& frame : symbols.all_frames) {
      py::dict row;
      row["filename"] = frame.filename;
      row["name"] = frame.funcname;
      row["line"] = frame.lineno;
      frames.push_back(row);
    }
    for (std::size_t i = 0; i < order_.size(); ++i) {
      py::list list = lists_[static_cast<c10::GatheredContext*>(order_[i])];
      for (const std::uint64_t number : symbols.tracebacks[i]) {
        list.append(frames[number]);
      }
    }
  }
  py::list of(const std::shared_ptr<void>& context) const {
    return context == nullptr ? py::list() : lists_.at(context.get());
  }

 private:
  std::unordered_map<void*, py::list> lists_;
  std::vector<torch::CapturedTraceback*> order_;
};

py::dict segment_dict(const SegmentRow& segment, int device, const Stacks& stacks) {
  std::size_t allocated = 0, active = 0, requested = 0;
  py::list blocks;
  for (const BlockRow& block : segment.blocks) {
    const bool used = block.state == BlockState::kUsed;
    allocated += used ? block.size : 0;
    requested += used ? block.requested : 0;
    active += block.state != BlockState::kFree ? block.size : 0;
    py::dict row;
    row["address"] = block.address;
    row["size"] = block.size;
    row["requested_size"] = block.state == BlockState::kFree ? 0 : block.requested;
    row["state"] = to_text(block.state);
    row["frames"] = stacks.of(block.context);
    blocks.append(row);
  }
  py::dict row;
  row["device"] = device;
  row["address"] = segment.address;
  row["total_size"] = segment.length;
  row["allocated_size"] = allocated;
  row["active_size"] = active;
  row["requested_size"] = requested;
  row["stream"] = 0;  // blocks have streams here, segments have not
  row["segment_type"] = "large";
  row["segment_pool_id"] = py::make_tuple(0, 0);
  row["is_expandable"] = false;
  row["frames"] = py::list();
  row["blocks"] = blocks;
  return row;
}

py::dict entry_dict(const MemoryHistory::Entry& entry, const Stacks& stacks) {
  py::dict row;
  row["action"] = to_text(entry.action);
  row[entry.action == MemoryHistory::Action::kOutOfMemory ? "device_free" : "addr"] = entry.address;
  row["size"] = entry.size_bytes;
  row["stream"] = entry.stream;
  row["time_us"] = entry.time_ns / 1000;
  row["frames"] = stacks.of(entry.context);
  return row;
}

// The segments and the trace of one device.
py::tuple memory_snapshot(int index) {
  Device& device = device_of(index);
  const std::vector<SegmentRow> segments = read_segments(device);
  const std::vector<MemoryHistory::Entry> entries = device.memory_events().history().entries();
  Stacks stacks;
  for (const SegmentRow& segment : segments) {
    for (const BlockRow& block : segment.blocks) {
      stacks.want(block.context);
    }
  }
  for (const MemoryHistory::Entry& entry : entries) {
    stacks.want(entry.context);
  }
  stacks.resolve();
  py::list segment_rows;
  for (const SegmentRow& segment : segments) {
    segment_rows.append(segment_dict(segment, index, stacks));
  }
  py::list trace;
  for (const MemoryHistory::Entry& entry : entries) {
    trace.append(entry_dict(entry, stacks));
  }
  return py::make_tuple(segment_rows, trace);
}

// What is used or pending now, with where it lies.
py::list buffer_views(int index) {
  py::list rows;
  for (const SegmentRow& segment : read_segments(device_of(index))) {
    for (const BlockRow& block : segment.blocks) {
      if (block.state == BlockState::kFree) {
        continue;
      }
      py::list pieces;
      for (const Piece& piece : block.pieces) {
        pieces.append(py::make_tuple(piece.handle, piece.domain, piece.offset, piece.length));
      }
      py::dict row;
      row["address"] = block.address;
      row["size_bytes"] = block.size;
      row["requested_bytes"] = block.requested;
      row["generation"] = block.generation;
      row["uses"] = block.uses;
      row["stream"] = block.stream;
      row["state"] = to_text(block.state);
      row["pieces"] = pieces;
      rows.append(row);
    }
  }
  return rows;
}

// --- settings ---------------------------------------------------------------------------------------------------------

void set_settings(const std::string& text) {
  const AllocatorSettings settings = parse_settings(text);
  on_all_devices([&](Device& device) { device.memory().set_settings(settings); });
}

void start_history(std::size_t max_entries, bool stacks_of_frees) {
  on_all_devices([&](Device& device) { device.memory_events().history().start({max_entries, stacks_of_frees}); });
}

}  // namespace

void bind_memory(py::module_& m) {
  m.def(
      "set_memory_limit", [](int index, std::size_t bytes) { device_of(index).memory().set_limit(bytes); },
      py::arg("index"), py::arg("bytes"));
  m.def("memory_limit", [](int index) { return device_of(index).memory().limit(); }, py::arg("index"));
  m.def("empty_cache", [](int index) { return device_of(index).memory().empty_cache(); }, py::arg("index"), NoGil());
  m.def(
      "collect_garbage", [](int index) { return device_of(index).memory().collect_garbage(); }, py::arg("index"),
      NoGil());
  m.def(
      "largest_free_block", [](int index) { return device_of(index).memory().largest_free_block(); }, py::arg("index"));
  m.def("check_memory", [](int index) { return device_of(index).memory().check(); }, py::arg("index"));
  m.def("buffer_views", &buffer_views, py::arg("index"));
  m.def("set_allocator_settings", &set_settings, py::arg("settings"));
  m.def("allocator_settings", [] { return to_text(device_of(0).memory().settings()); });
  m.def("start_memory_history", &start_history, py::arg("max_entries"), py::arg("stacks_of_frees"));
  m.def("stop_memory_history", [] { on_all_devices([](Device& device) { device.memory_events().history().stop(); }); });
  m.def("memory_snapshot", &memory_snapshot, py::arg("index"));
}

}  // namespace ral
