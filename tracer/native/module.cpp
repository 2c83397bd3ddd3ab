// All that crosses to Python; typed in ../_native.pyi.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "integers.h"
#include "longest_path.h"
#include "nesting.h"
#include "own_time.h"
#include "plain_pickle.h"
#include "python_bindings.h"
#include "python_streams.h"
#include "reader.h"
#include "rendezvous.h"
#include "sessions.h"
#include "spool.h"
#include "writer_state.h"

namespace py = pybind11;
using namespace ral::trace;

namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

Column<std::int64_t> nest_columns(const Column<std::int32_t>& thread, const Column<std::int64_t>& start_ns,
                                  const Column<std::int64_t>& end_ns, const Column<std::int64_t>& id,
                                  std::int64_t tolerance_ns) {
  const auto rows = thread.size();
  if (start_ns.size() != rows || end_ns.size() != rows || id.size() != rows) {
    throw py::value_error("nest: all columns must have the same length");
  }
  Column<std::int64_t> parent(rows);
  nest(thread.data(), start_ns.data(), end_ns.data(), id.data(), static_cast<std::size_t>(rows), tolerance_ns,
       parent.mutable_data());
  return parent;
}

Column<std::int64_t> own_time_columns(const Column<std::int32_t>& thread, const Column<std::int64_t>& start_ns,
                                      const Column<std::int64_t>& end_ns, std::int64_t tolerance_ns) {
  const auto rows = thread.size();
  if (start_ns.size() != rows || end_ns.size() != rows) {
    throw py::value_error("own_times: all columns must have the same length");
  }
  Column<std::int64_t> own(rows);
  own_times(thread.data(), start_ns.data(), end_ns.data(), static_cast<std::size_t>(rows), tolerance_ns,
            own.mutable_data());
  return own;
}

Column<std::int64_t> union_columns(const Column<std::int32_t>& group, const Column<std::int64_t>& start_ns,
                                   const Column<std::int64_t>& end_ns, std::int32_t groups) {
  const auto rows = group.size();
  if (start_ns.size() != rows || end_ns.size() != rows) {
    throw py::value_error("unions: all columns must have the same length");
  }
  const auto* first = group.data();
  if (groups < 0 || std::any_of(first, first + rows, [groups](auto g) { return g < 0 || g >= groups; })) {
    throw py::value_error("unions: there is a group beyond the number of groups");
  }
  Column<std::int64_t> last(groups);
  Column<std::int64_t> covered(groups);
  unions(first, start_ns.data(), end_ns.data(), static_cast<std::size_t>(rows), static_cast<std::size_t>(groups),
         last.mutable_data(), covered.mutable_data());
  return covered;
}

py::tuple longest_path_columns(const Column<std::int32_t>& from, const Column<std::int32_t>& to,
                               const Column<std::int64_t>& weight, const Column<std::int64_t>& value) {
  if (to.size() != from.size() || weight.size() != from.size()) {
    throw py::value_error("longest_paths: the columns of the edges must have the same length");
  }
  Column<std::int64_t> found(value.size());
  std::copy_n(value.data(), value.size(), found.mutable_data());
  Column<std::int64_t> via(value.size());
  const Edges edges{from.data(), to.data(), weight.data(), static_cast<std::size_t>(from.size())};
  std::int64_t* const found_data = found.mutable_data();
  std::int64_t* const via_data = via.mutable_data();
  bool upwards = false;
  {
    const py::gil_scoped_release others;
    upwards = longest_paths(static_cast<std::size_t>(value.size()), edges, found_data, via_data);
  }
  if (!upwards) {
    throw py::value_error("longest_paths: an edge must lead from a node to one with a higher number");
  }
  return py::make_tuple(found, via);
}

// What a collector drains into; DuckDB takes it through __arrow_c_stream__, which it asks for more than once (for the
// schema, for the rows).
class Batch {
 public:
  Columns& columns() { return *columns_; }
  [[nodiscard]] std::size_t rows() const { return columns_->rows(); }
  // A stream that is still being read keeps the old columns.
  void clear() { columns_ = std::make_shared<Columns>(); }
  py::capsule stream() { return give_stream<Columns>(columns_); }

 private:
  std::shared_ptr<Columns> columns_ = std::make_shared<Columns>();
};

// Text from memory that others write: never trust it to be UTF-8.
py::str decoded_text(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

py::list decoded(const std::vector<std::pair<std::uint32_t, std::string>>& items) {
  py::list found;
  for (const auto& [id, text] : items) {
    found.append(py::make_tuple(id, decoded_text(text)));
  }
  return found;
}

void bind_writer(py::module_& module) {
  module.attr("_writer_api") = py::capsule(&Writer::instance().api(), kWriterCapsule);
  module.attr("SESSION_VARIABLE") = kSessionVariable;
  module.attr("RECORD_BYTES") = sizeof(Record);
  module.attr("STRIPE_BITS") = kStripeBits;
  module.attr("CLOCK") = the_clock_source() == ClockSource::kTsc      ? "tsc"
                         : the_clock_source() == ClockSource::kCntvct ? "cntvct"
                                                                      : "monotonic";
  module.def(
      "start", [](const std::string& hooks, const std::string& note) { return Writer::instance().start(hooks, note); },
      py::arg("hooks"), py::arg("note"), py::call_guard<py::gil_scoped_release>());
  module.def("sync", [] { Writer::instance().sync(); }, py::call_guard<py::gil_scoped_release>());
  module.def("recording", [] { return recording(Writer::instance().api()); });
}

void bind_reader(py::module_& module) {
  py::class_<ClockSample>(module, "ClockSample")
      .def(py::init([](std::uint64_t ticks, std::uint64_t monotonic_ns, std::uint64_t realtime_ns) {
             return ClockSample{ticks, monotonic_ns, realtime_ns};
           }),
           py::arg("ticks"), py::arg("monotonic_ns"), py::arg("realtime_ns"))
      .def_readonly("ticks", &ClockSample::ticks)
      .def_readonly("monotonic_ns", &ClockSample::monotonic_ns)
      .def_readonly("realtime_ns", &ClockSample::realtime_ns)
      .def_static("now", [] { return sample_clocks(the_clock_source()); });
  py::class_<Calibration>(module, "Calibration")
      .def(py::init(&Calibration::of), py::arg("samples"))
      .def("epoch_ns", &Calibration::epoch_ns, py::arg("ticks"));
  py::class_<Batch>(module, "Batch")
      .def(py::init<>())
      .def("__len__", &Batch::rows)
      .def("clear", &Batch::clear)
      .def(
          "__arrow_c_stream__", [](Batch& self, const py::object& /*requested_schema*/) { return self.stream(); },
          py::arg("requested_schema") = py::none());
  py::class_<Account>(module, "Account")
      .def_readonly("written", &Account::written)
      .def_readonly("received", &Account::received)
      .def_readonly("dropped", &Account::dropped)
      .def_readonly("lost", &Account::lost)
      .def_readonly("facts", &Account::facts)
      .def_readonly("shed", &Account::shed)
      .def_readonly("damaged_rings", &Account::damaged_rings);
  py::class_<RingAccount>(module, "RingAccount")
      .def_readonly("ring", &RingAccount::ring)
      .def_readonly("tid", &RingAccount::tid)
      .def_property_readonly("thread_name", [](const RingAccount& self) { return decoded_text(self.thread_name); })
      .def_readonly("closed", &RingAccount::closed)
      .def_readonly("finished", &RingAccount::finished)
      .def_readonly("spent_ticks", &RingAccount::spent_ticks)
      .def_readonly("account", &RingAccount::account);
  py::class_<Spool>(module, "Spool")
      .def(py::init<std::string>(), py::arg("path"))
      .def_property_readonly("bytes", &Spool::bytes);
  py::class_<SpoolReader>(module, "SpoolReader")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def(
          "next",
          [](SpoolReader& self, const Calibration& clock, std::size_t rows, std::uint64_t since_ticks, Batch& into) {
            return self.next(clock, rows, since_ticks, into.columns());
          },
          py::arg("clock"), py::arg("rows"), py::arg("since_ticks"), py::arg("into"),
          py::call_guard<py::gil_scoped_release>());
  py::class_<ProcessReader>(module, "ProcessReader")
      .def_static(
          "open", [](const std::string& folder) { return ProcessReader::open(folder); }, py::arg("folder"))
      .def_static(
          "resume",
          [](const std::string& folder, const Spool& spool, std::int32_t process) {
            return ProcessReader::open(folder, spool.taken(process));
          },
          py::arg("folder"), py::arg("spool"), py::arg("process"))
      .def(
          "drain",
          [](ProcessReader& self, std::int32_t process, Spool& spool) {
            SpoolSink sink(spool, process);
            self.drain(sink);
            return !sink.failed();
          },
          py::arg("process"), py::arg("spool"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("pid", [](const ProcessReader& self) { return self.header().pid; })
      .def_property_readonly("parent", [](const ProcessReader& self) { return self.header().parent; })
      .def_property_readonly("started", [](const ProcessReader& self) { return self.header().started; })
      .def_property_readonly("command",
                             [](const ProcessReader& self) {
                               const auto& words = self.header().command;
                               return py::bytes(words.data(), words.size());
                             })
      .def_property_readonly("note",
                             [](const ProcessReader& self) {
                               return std::string(self.header().note.data(), ::strnlen(self.header().note.data(), 256));
                             })
      .def_property_readonly("attached_ticks", [](const ProcessReader& self) { return self.header().attached_ticks; })
      .def("look", &ProcessReader::look)
      .def("detached", [](ProcessReader& self) { return self.state() != ProcessState::kRecording; })
      .def("exited", [](ProcessReader& self) { return self.state() == ProcessState::kExited; })
      .def("alarms", &ProcessReader::alarms)
      .def_property_readonly(
          "alarm", [](const ProcessReader& self) { return static_cast<std::uint32_t>(self.header().alarm.load()); })
      .def("shed", &ProcessReader::shed, py::arg("details"))
      .def("account", &ProcessReader::account)
      .def("rings", &ProcessReader::rings)
      .def("unrecorded", &ProcessReader::unrecorded)
      .def("spent_ticks", &ProcessReader::spent_ticks)
      .def("finished",
           [](const ProcessReader& self) {
             auto rings = self.rings();
             rings.erase(std::remove_if(rings.begin(), rings.end(), [](const auto& ring) { return !ring.finished; }),
                         rings.end());
             return rings;
           })
      .def("forget_finished", &ProcessReader::forget_finished)
      .def("finish", &ProcessReader::finish);
  py::class_<NameList>(module, "NameList")
      .def_static("read", &NameList::read, py::arg("path"))
      .def_property_readonly("names", [](const NameList& self) { return decoded(self.names); })
      .def_readonly("stacks", &NameList::stacks)
      .def_readonly("refused", &NameList::refused)
      .def_readonly("cut", &NameList::cut)
      .def_readonly("refused_stacks", &NameList::refused_stacks);
}

void bind_sessions(py::module_& module) {
  py::class_<SessionView>(module, "SessionView")
      .def_readonly("slot", &SessionView::slot)
      .def_readonly("session", &SessionView::session)
      .def_readonly("collector_pid", &SessionView::collector_pid)
      .def_readonly("collector_alive", &SessionView::collector_alive)
      .def_readonly("folder", &SessionView::folder);
  py::class_<Sessions>(module, "Sessions")
      .def(py::init<>())
      .def_property_readonly("folder", &Sessions::folder)
      .def(
          "begin",
          [](Sessions& self, std::uint64_t session, std::int32_t target_pid, std::uint64_t ring_records,
             const std::string& folder, std::uint32_t details, bool overwrite) {
            return self.begin(session, target_pid, ring_records, folder, details,
                              overwrite ? OnFull::kOverwrite : OnFull::kDrop);
          },
          py::arg("session"), py::arg("target_pid"), py::arg("ring_records"), py::arg("folder"), py::arg("details"),
          py::arg("overwrite"))
      .def("announce", &Sessions::announce)
      .def("end", &Sessions::end, py::arg("slot"))
      .def("release", &Sessions::release, py::arg("slot"))
      .def("release_dead", &Sessions::release_dead, py::arg("slot"))
      .def("attach_failures", &Sessions::attach_failures, py::arg("slot"))
      .def("taken", &Sessions::taken);
  py::class_<Rendezvous>(module, "Rendezvous")
      .def_static("open", &Rendezvous::open)
      .def_property_readonly("folder", &Rendezvous::folder)
      .def("request_reload", &Rendezvous::request_reload);
  module.def(
      "notify_reloads", [](int descriptor) { return Rendezvous::notify_reloads(Rendezvous::open(), descriptor); },
      py::arg("descriptor"));
  module.def("process_started", &process_started, py::arg("pid"));
}

}  // namespace

void bind_perfetto(py::module_& module);
void bind_trace_json(py::module_& module);

PYBIND11_MODULE(_native, module) {
  py::list kinds;
  for (const auto name : kKindNames) {
    kinds.append(py::str(name.data(), name.size()));
  }
  module.attr("KINDS") = py::tuple(kinds);
  module.attr("KIND_DEVICE") = static_cast<int>(Kind::kDevice);
  module.attr("KIND_STREAM") = static_cast<int>(Kind::kStream);
  module.attr("STREAM_BITS") = kStreamBits;
  py::dict flags;
  for (const auto& [name, bit] : kFlagNames) {
    flags[py::str(name.data(), name.size())] = bit;
  }
  module.attr("FLAGS") = flags;
  py::list directions;
  for (const auto name : kDirectionNames) {
    directions.append(py::str(name.data(), name.size()));
  }
  module.attr("DIRECTIONS") = py::tuple(directions);
  py::list sorts;
  for (const auto name : kAnnotationSortNames) {
    sorts.append(py::str(name.data(), name.size()));
  }
  module.attr("ANNOTATION_SORTS") = py::tuple(sorts);
  py::dict details;
  for (const auto& [name, bit] : kDetailNames) {
    details[py::str(name.data(), name.size())] = bit;
  }
  module.attr("DETAILS") = details;
  module.attr("KIND_ACCESS") = static_cast<int>(Kind::kAccess);
  module.attr("AUTOGRAD_BITS") = kAutogradBits;
  module.attr("HOST_MEMORY") = static_cast<int>(kHostMemory);
  module.def("integer_column", &integer_column, py::arg("rows"), py::arg("column"));
  module.def("nest", &nest_columns, py::arg("thread"), py::arg("start_ns"), py::arg("end_ns"), py::arg("id"),
             py::arg("tolerance_ns") = 0);
  module.def("own_times", &own_time_columns, py::arg("thread"), py::arg("start_ns"), py::arg("end_ns"),
             py::arg("tolerance_ns") = 0);
  module.def("unions", &union_columns, py::arg("group"), py::arg("start_ns"), py::arg("end_ns"), py::arg("groups"));
  module.def("longest_paths", &longest_path_columns, py::arg("source"), py::arg("target"), py::arg("weight"),
             py::arg("value"));
  bind_writer(module);
  bind_program(module);
  bind_reader(module);
  bind_sessions(module);
  bind_perfetto(module);
  bind_json_lines(module);
  bind_trace_json(module);
  bind_plain_pickle(module);
}
