// What a replay shows to Python: columns in, a few numbers out.
#include "replay_bindings.h"

#include <pybind11/numpy.h>

#include <string>

#include "replay.h"

namespace py = pybind11;

namespace ral {

namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style>;

py::object step_or_none(const std::optional<std::size_t>& step) {
  return step ? py::object(py::int_(*step)) : py::object(py::none());
}

py::dict as_dict(const Replayed& replayed) {
  const AllocatorStats& stats = replayed.stats;
  py::dict result;
  result["peak_reserved_bytes"] = stats.reserved_bytes.peak;
  result["peak_reserved_step"] = step_or_none(replayed.peak_reserved_step);
  result["peak_allocated_bytes"] = stats.allocated_bytes.peak;
  result["regions_opened"] = stats.region_opens;
  result["retries"] = stats.retries;
  result["waits"] = stats.waits;
  result["out_of_memory_step"] = step_or_none(replayed.out_of_memory_step);
  result["end_reserved_bytes"] = stats.reserved_bytes.current;
  result["end_allocated_bytes"] = stats.allocated_bytes.current;
  result["largest_free_bytes"] = replayed.largest_free_block;
  return result;
}

py::dict replay_columns(const Column<std::uint8_t>& action, const Column<std::uint32_t>& block,
                        const Column<std::uint64_t>& amount, const Column<std::uint8_t>& stream, std::size_t capacity,
                        std::size_t region_bytes, std::uint32_t max_regions, std::size_t alignment,
                        std::uint32_t domains, std::size_t stripe_bytes, const std::string& settings) {
  const auto count = static_cast<std::size_t>(action.size());
  if (action.ndim() != 1 || block.size() != action.size() || amount.size() != action.size() ||
      stream.size() != action.size()) {
    throw py::value_error("the columns of a replay must be of one length");
  }
  const AllocatorConfig config{
      capacity, region_bytes, max_regions, alignment, {domains, stripe_bytes}, parse_settings(settings)};
  const ReplaySteps steps{count, action.data(), block.data(), amount.data(), stream.data()};
  Replayed replayed;
  {
    const py::gil_scoped_release release;
    replayed = replay(config, steps);
  }
  return as_dict(replayed);
}

}  // namespace

void bind_replay(py::module_& m) {
  m.def("replay", &replay_columns, py::arg("action"), py::arg("block"), py::arg("amount"), py::arg("stream"),
        py::arg("capacity"), py::arg("region_bytes") = std::size_t{64} << 20, py::arg("max_regions") = 16,
        py::arg("alignment") = 128, py::arg("domains") = 1, py::arg("stripe_bytes") = std::size_t{1} << 20,
        py::arg("settings") = "");
  py::tuple actions(kReplayActionNames.size());
  for (std::size_t i = 0; i < kReplayActionNames.size(); ++i) {
    actions[i] = py::str(kReplayActionNames[i].data(), kReplayActionNames[i].size());
  }
  m.attr("REPLAY_ACTIONS") = actions;
}

}  // namespace ral
