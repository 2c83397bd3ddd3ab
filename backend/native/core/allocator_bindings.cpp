// What the allocator shows to Python.
#include "allocator_bindings.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator.h"
#include "manual_clock.h"

namespace py = pybind11;

namespace ral {

namespace {

const char* to_text(BlockState state) {
  switch (state) {
    case BlockState::kFree:
      return "free";
    case BlockState::kUsed:
      return "used";
    case BlockState::kPending:
      return "pending";
  }
  return "";
}

std::uint8_t checked(unsigned stream) {
  if (stream >= kMaxStreams) {
    throw py::value_error("there is no stream " + std::to_string(stream) + "; streams are 0 to " +
                          std::to_string(kMaxStreams - 1));
  }
  return static_cast<std::uint8_t>(stream);
}

// Blocks go by their address in Python.
class PyAllocator {
 public:
  PyAllocator(const AllocatorConfig& config, bool backed, std::shared_ptr<ManualClock> clock)
      : clock_(std::move(clock)), allocator_(config, source(backed), nullptr, clock_.get()) {}

  std::uint64_t allocate(std::size_t bytes, unsigned stream) {
    Block* block = allocator_.allocate(bytes, checked(stream));
    live_[block->address] = block;
    return block->address;
  }

  void free(std::uint64_t address) {
    Block* block = find(address);
    live_.erase(address);
    allocator_.free(block);
  }

  void record_stream(std::uint64_t address, unsigned stream) {
    allocator_.record_stream(find(address), checked(stream));
  }

  std::uint64_t touch(std::uint64_t address) {
    Block* block = find(address);
    block->touch(0);
    return block->uses.load();
  }

  std::uint64_t generation(std::uint64_t address) const { return find(address)->generation; }

  std::vector<py::tuple> pieces(std::uint64_t address) const {
    std::vector<py::tuple> rows;
    for (const Piece& piece : find(address)->pieces()) {
      rows.push_back(py::make_tuple(piece.handle, piece.domain, piece.offset, piece.length));
    }
    return rows;
  }

  std::vector<py::tuple> regions() const {
    std::vector<py::tuple> rows;
    allocator_.visit([&](const Region& r) { rows.push_back(py::make_tuple(r.handle, r.address, r.length, r.domain)); },
                     nullptr);
    return rows;
  }

  std::vector<py::dict> blocks() const {
    std::vector<py::dict> rows;
    allocator_.visit(nullptr, [&](Block& b) {
      py::dict row;
      row["handle"] = b.extent->range.regions.front().handle;
      row["offset"] = b.address - b.extent->range.address;
      row["size"] = b.size;
      row["state"] = to_text(b.state);
      if (b.state == BlockState::kFree) {
        row["stream"] = b.pool == 0 ? py::object(py::none()) : py::object(py::int_(b.pool - 1));
        row["requested"] = py::none();
      } else {
        row["stream"] = b.stream;
        row["requested"] = b.requested;
      }
      rows.push_back(row);
    });
    return rows;
  }

  RegionAllocator& allocator() { return allocator_; }

 private:
  static std::unique_ptr<RegionSource> source(bool backed) {
    if (backed) {
      return std::make_unique<MappedRegions>();
    }
    return std::make_unique<ImaginaryRegions>();
  }

  Block* find(std::uint64_t address) const {
    const auto found = live_.find(address);
    if (found == live_.end()) {
      throw py::value_error("no block in use begins at address " + std::to_string(address));
    }
    return found->second;
  }

  std::shared_ptr<ManualClock> clock_;
  RegionAllocator allocator_;
  std::unordered_map<std::uint64_t, Block*> live_;
};

std::unique_ptr<PyAllocator> make_allocator(std::size_t capacity, std::size_t region_bytes, std::uint32_t max_regions,
                                            std::size_t alignment, bool backed, std::uint32_t domains,
                                            std::size_t stripe_bytes, const std::string& settings,
                                            std::shared_ptr<ManualClock> clock) {
  const AllocatorConfig config{
      capacity, region_bytes, max_regions, alignment, {domains, stripe_bytes}, parse_settings(settings)};
  return std::make_unique<PyAllocator>(config, backed, std::move(clock));
}

py::dict amount(const Amount& a) {
  py::dict result;
  result["current"] = a.current;
  result["peak"] = a.peak;
  result["allocated"] = a.added;
  result["freed"] = a.removed;
  return result;
}

py::dict stats(PyAllocator& self) {
  const AllocatorStats s = self.allocator().stats();
  py::dict result;
  result["allocated_bytes"] = amount(s.allocated_bytes);
  result["requested_bytes"] = amount(s.requested_bytes);
  result["reserved_bytes"] = amount(s.reserved_bytes);
  result["active_bytes"] = amount(s.active_bytes);
  result["inactive_split_bytes"] = amount(s.inactive_split_bytes);
  result["allocations"] = amount(s.allocations);
  result["regions"] = amount(s.regions);
  result["active"] = amount(s.active);
  result["inactive_split"] = amount(s.inactive_split);
  result["retries"] = s.retries;
  result["waits"] = s.waits;
  result["ooms"] = s.ooms;
  return result;
}

void bind_clock(py::module_& m) {
  py::class_<ManualClock, std::shared_ptr<ManualClock>>(m, "ManualClock")
      .def(py::init<>())
      .def(
          "submit", [](ManualClock& self, unsigned stream) { return self.submit(checked(stream)); }, py::arg("stream"))
      .def(
          "finish",
          [](ManualClock& self, unsigned stream, std::uint64_t ticket) { self.finish(checked(stream), ticket); },
          py::arg("stream"), py::arg("ticket"))
      .def(
          "done",
          [](ManualClock& self, unsigned stream, std::uint64_t ticket) { return self.done(checked(stream), ticket); },
          py::arg("stream"), py::arg("ticket"));
}

}  // namespace

void bind_allocator(py::module_& m) {
  py::register_exception<OutOfMemory>(m, "OutOfMemory", PyExc_MemoryError);
  py::register_exception<BadSettings>(m, "BadSettings", PyExc_ValueError);
  bind_clock(m);
  py::class_<PyAllocator>(m, "RegionAllocator")
      .def(py::init(&make_allocator), py::arg("capacity"), py::arg("region_bytes") = std::size_t{64} << 20,
           py::arg("max_regions") = 16, py::arg("alignment") = 128, py::arg("backed") = false, py::arg("domains") = 1,
           py::arg("stripe_bytes") = std::size_t{1} << 20, py::arg("settings") = "", py::arg("clock") = py::none())
      .def("allocate", &PyAllocator::allocate, py::arg("bytes"), py::arg("stream") = 0)
      .def("free", &PyAllocator::free, py::arg("address"))
      .def("record_stream", &PyAllocator::record_stream, py::arg("address"), py::arg("stream"))
      .def("touch", &PyAllocator::touch, py::arg("address"))
      .def("generation", &PyAllocator::generation, py::arg("address"))
      .def("pieces", &PyAllocator::pieces, py::arg("address"))
      .def("empty_cache", [](PyAllocator& self) { return self.allocator().empty_cache(); })
      .def("collect_garbage", [](PyAllocator& self) { return self.allocator().collect_garbage(); })
      .def(
          "set_limit", [](PyAllocator& self, std::size_t bytes) { self.allocator().set_limit(bytes); },
          py::arg("bytes"))
      .def(
          "set_settings",
          [](PyAllocator& self, const std::string& text) { self.allocator().set_settings(parse_settings(text)); },
          py::arg("settings"))
      .def("settings", [](PyAllocator& self) { return to_text(self.allocator().settings()); })
      .def("stats", &stats)
      .def("reset_peaks", [](PyAllocator& self) { self.allocator().reset_peaks(); })
      .def("reset_totals", [](PyAllocator& self) { self.allocator().reset_totals(); })
      .def("largest_free_block", [](PyAllocator& self) { return self.allocator().largest_free_block(); })
      .def("regions", &PyAllocator::regions)
      .def("blocks", &PyAllocator::blocks)
      .def("check", [](PyAllocator& self) { return self.allocator().check(); });
  m.attr("MAX_STREAMS") = kMaxStreams;
}

}  // namespace ral
