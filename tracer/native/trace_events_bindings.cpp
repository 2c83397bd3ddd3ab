// What of the scanned trace and its events crosses to Python; typed in ../_native.pyi.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <system_error>

#include "trace_events.h"

namespace py = pybind11;
using namespace ral::trace;

void bind_trace_events(py::module_& module);

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// DuckDB asks for the stream more than once (for the schema, for the rows).
class TraceStream {
 public:
  using Make = std::function<std::unique_ptr<ArrowSource>()>;
  explicit TraceStream(Make make) : make_(std::move(make)) {}
  [[nodiscard]] std::vector<std::string> columns() const {
    std::vector<std::string> names;
    const std::unique_ptr<ArrowSource> source = make_();
    for (const ArrowColumn& column : source->columns()) {
      names.push_back(column.name);
    }
    return names;
  }
  [[nodiscard]] py::capsule stream() const {
    auto stream = std::make_unique<ArrowArrayStream>();
    export_stream(make_(), stream.get());
    return py::capsule(stream.release(), "arrow_array_stream", [](PyObject* capsule) {
      const std::unique_ptr<ArrowArrayStream> owned(
          static_cast<ArrowArrayStream*>(PyCapsule_GetPointer(capsule, "arrow_array_stream")));
      if (owned->release != nullptr) {
        owned->release(owned.get());
      }
    });
  }

 private:
  Make make_;
};

py::object as_text(std::optional<std::string_view> text) {
  return text ? py::object(py::str(text->data(), text->size())) : py::none();
}

py::array_t<std::int64_t> as_array(const std::vector<std::int64_t>& values) {
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::list labels_of(const TraceTable& table, std::uint32_t begin, std::uint32_t end) {
  py::list all;
  for (std::uint32_t i = begin; i < std::min<std::size_t>(end, table.labels()); ++i) {
    const Label label = table.label(i);
    all.append(py::make_tuple(label.group, as_text(label.name), py::tuple(py::cast(table.spot(label.spot))), label.rows,
                              label.timed));
  }
  return all;
}

TraceStream raw(const std::shared_ptr<TraceTable>& table, const std::vector<bool>& groups,
                const std::vector<std::string>& columns) {
  return TraceStream([=] { return raw_rows(table, groups, columns); });
}

py::list texts_of(const TraceTable& table, const std::string& column) {
  py::list all;
  const Texts& texts = table.texts.at(table.place_of(table.column_of(column)));
  for (std::size_t i = 1; i <= texts.size(); ++i) {
    all.append(as_text(texts[static_cast<std::uint32_t>(i)]));
  }
  return all;
}

void shift(TraceTable& table, std::int64_t nanoseconds) {
  for (std::int64_t& ts : table.ts_ns) {
    ts = ts == TraceTable::kNone ? ts : ts + nanoseconds;
  }
}

// Numbers, labels, starts and durations (-1: none) of the rows with some labels that have a time.
py::tuple rows_of(const TraceTable& table, const std::vector<bool>& labels) {
  std::vector<std::int64_t> rows, label, starts, durations;
  for (Row row = table.first(); row < table.rows(); ++row) {
    if (labels[table.label_of[row]] && table.ts_ns[row] != TraceTable::kNone) {
      rows.push_back(row);
      label.push_back(table.label_of[row]);
      starts.push_back(table.ts_ns[row]);
      durations.push_back(table.dur_ns[row] < 0 ? -1 : table.dur_ns[row]);
    }
  }
  return py::make_tuple(as_array(rows), as_array(label), as_array(starts), as_array(durations));
}

std::vector<Row> numbers_of(const TraceTable& table, const std::vector<bool>& labels) {
  std::vector<Row> rows;
  for (Row row = table.first(); row < table.rows(); ++row) {
    if (labels[table.label_of[row]]) {
      rows.push_back(row);
    }
  }
  return rows;
}

// Group, name, duration, args.
py::tuple row_of(TraceTable& table, Row row) {
  const Label label = table.label(table.label_of.at(row));
  const std::int64_t dur = table.dur_ns[row];
  return py::make_tuple(label.group, as_text(label.name),
                        dur == TraceTable::kNone ? py::object(py::none()) : py::int_(dur),
                        as_text(table.args.get(row)));
}

std::shared_ptr<TraceEvents> make_events(const std::shared_ptr<TraceTable>& table, const Array<std::uint8_t>& kind,
                                         const Array<std::uint8_t>& depth, const Array<std::uint8_t>& traits,
                                         const Array<std::int32_t>& category, const Array<std::int32_t>& process,
                                         const Array<std::int32_t>& thread, const Array<std::int32_t>& device,
                                         const Array<std::int32_t>& stream, const Array<std::int64_t>& step,
                                         bool inner_first) {
  std::vector<Meaning> meanings(table->labels());
  const auto size = static_cast<py::ssize_t>(meanings.size());
  for (const py::ssize_t one : {kind.size(), depth.size(), traits.size(), category.size(), process.size(),
                                thread.size(), device.size(), stream.size(), step.size()}) {
    if (one != size) {
      throw py::value_error("TraceEvents: every column has one value a label");
    }
  }
  for (py::ssize_t i = 0; i < size; ++i) {
    meanings[static_cast<std::size_t>(i)] = {kind.at(i),   depth.at(i),  traits.at(i), category.at(i), process.at(i),
                                             thread.at(i), device.at(i), stream.at(i), step.at(i)};
  }
  return std::make_shared<TraceEvents>(table, std::move(meanings), inner_first);
}

void place(TraceEvents& events, const Array<std::int32_t>& process, const Array<std::int64_t>& step,
           const Array<std::int64_t>& start_ns, const Array<std::int64_t>& end_ns, std::int64_t tolerance_ns) {
  std::vector<StepInterval> steps;
  for (py::ssize_t i = 0; i < process.size(); ++i) {
    steps.push_back({process.at(i), step.at(i), start_ns.at(i), end_ns.at(i)});
  }
  const py::gil_scoped_release no_gil;
  events.place(steps, tolerance_ns);
}

py::tuple as_tuple(const OddRows& odd) {
  const py::object value = odd.value == TraceTable::kNone ? py::object(py::none()) : py::int_(odd.value);
  return py::make_tuple(odd.count, odd.example, value);
}

TraceStream rows(const std::shared_ptr<TraceEvents>& events, std::int64_t first, std::int64_t stack_first,
                 const std::vector<std::string>& categories, std::int32_t backward, std::int64_t rows_a_batch) {
  return TraceStream([=] { return TraceEvents::rows(events, first, stack_first, categories, backward, rows_a_batch); });
}

py::tuple launched(const TraceEvents& events, std::int64_t first) {
  const auto pairs = events.launched();
  py::array_t<std::int64_t> from(static_cast<py::ssize_t>(pairs.size())), to(static_cast<py::ssize_t>(pairs.size()));
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    from.mutable_data()[i] = first + pairs[i].first;
    to.mutable_data()[i] = first + pairs[i].second;
  }
  return py::make_tuple(from, to);
}

py::tuple arrow_ends(const TraceEvents& events) {
  std::vector<std::int64_t> row, parent, next;
  const auto number = [](Row one) { return one == TraceEvents::kNoRow ? -1 : static_cast<std::int64_t>(one); };
  for (const TraceEvents::ArrowEnd& end : events.arrow_ends()) {
    row.push_back(end.row);
    parent.push_back(number(end.parent));
    next.push_back(number(end.next));
  }
  return py::make_tuple(as_array(row), as_array(parent), as_array(next));
}

}  // namespace

void bind_trace_events(py::module_& module) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      errno = error.code().value();
      PyErr_SetFromErrno(PyExc_OSError);
    }
  });
  py::class_<TraceStream>(module, "TraceStream")
      .def_property_readonly("columns", &TraceStream::columns)
      .def(
          "__arrow_c_stream__", [](const TraceStream& self, const py::object& /*schema*/) { return self.stream(); },
          py::arg("requested_schema") = py::none());
  py::class_<TraceTable, std::shared_ptr<TraceTable>>(module, "TraceTable")
      .def_property_readonly("rows", &TraceTable::rows)
      .def_property_readonly("first_row", &TraceTable::first)
      .def("__len__", &TraceTable::labels)
      .def("labels", &labels_of, py::arg("begin"), py::arg("end"))
      .def("raw", &raw, py::arg("groups"), py::arg("columns"))
      .def("texts", &texts_of, py::arg("column"))
      .def("shift", &shift, py::arg("nanoseconds"))
      .def("rows_of", &rows_of, py::arg("labels"))
      .def("numbers_of", &numbers_of, py::arg("labels"))
      .def("row", &row_of, py::arg("row"));
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<TraceEvents, std::shared_ptr<TraceEvents>> events(module, "TraceEvents");
  events.attr("CALL") = Meaning::kCall;
  events.attr("SYNC_CALL") = Meaning::kSyncCall;
  events.attr("LEFT_OUT") = Meaning::kLeftOut;
  events.attr("NO_STEP") = Meaning::kNoStep;
  for (const auto& [name, bit] :
       {std::pair("POINT", Meaning::kPoint), std::pair("COMPLETE", Meaning::kComplete),
        std::pair("OPERATOR", Meaning::kOperator), std::pair("MEMORY", Meaning::kMemory),
        std::pair("MAY_BE_NEGATIVE", Meaning::kMayBeNegative), std::pair("ARROW_END", Meaning::kArrowEnd),
        std::pair("COUNTED", Meaning::kCounted)}) {
    events.attr(name) = static_cast<int>(bit);
  }
  events
      .def(py::init(&make_events), py::arg("table"), py::kw_only(), py::arg("kind"), py::arg("depth"),
           py::arg("traits"), py::arg("category"), py::arg("process"), py::arg("thread"), py::arg("device"),
           py::arg("stream"), py::arg("step"), py::arg("inner_first") = false)
      .def("amend", &TraceEvents::amend, py::arg("row"), py::arg("dur_ns"), py::arg("flags"), py::arg("args"))
      .def("end_overruns", &TraceEvents::end_overruns, py::arg("labels"), py::arg("stop_ns"))
      .def("settle", &TraceEvents::settle, NoGil())
      .def_property_readonly("timeless", [](const TraceEvents& self) { return as_tuple(self.timeless()); })
      .def_property_readonly("negative", [](const TraceEvents& self) { return as_tuple(self.negative()); })
      .def_property_readonly("odd_bytes", [](const TraceEvents& self) { return as_tuple(self.odd_bytes()); })
      .def(
          "flag_leftovers",
          [](TraceEvents& self, std::int64_t start_ns) { return as_tuple(self.flag_leftovers(start_ns)); },
          py::arg("start_ns"))
      .def(
          "first_start",
          [](const TraceEvents& self, bool on_threads) {
            const std::int64_t first = self.first_start(on_threads);
            return first == TraceTable::kNone ? py::object(py::none()) : py::int_(first);
          },
          py::arg("on_threads"))
      .def("find_launches", &TraceEvents::find_launches, NoGil())
      .def("place", &place, py::arg("process"), py::arg("step"), py::arg("start_ns"), py::arg("end_ns"),
           py::arg("tolerance_ns"))
      .def("state_parents", &TraceEvents::state_parents, NoGil())
      .def("rows", &rows, py::arg("first"), py::arg("stack_first"), py::arg("categories"), py::arg("backward"),
           py::arg("rows_a_batch"))
      .def("launched", &launched, py::arg("first"))
      .def("arrow_ends", &arrow_ends);
}
