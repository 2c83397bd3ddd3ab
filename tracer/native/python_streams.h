// What crosses between Python and here in bulk: Arrow streams in their capsules
// (https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html), and chunks of bytes.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "arrow_stream.h"
#include "perfetto_columns.h"

namespace ral::trace {

inline constexpr const char* kStreamCapsule = "arrow_array_stream";

inline ArrowArrayStream* stream_in(PyObject* capsule) {
  return static_cast<ArrowArrayStream*>(PyCapsule_GetPointer(capsule, kStreamCapsule));
}

// A stream of `columns`, which releases itself unless somebody takes it over.
template <typename Columns>
pybind11::capsule give_stream(std::shared_ptr<const Columns> columns) {
  auto stream = std::make_unique<ArrowArrayStream>();
  export_stream(std::move(columns), stream.get());
  return pybind11::capsule(stream.release(), kStreamCapsule, [](PyObject* capsule) {
    const std::unique_ptr<ArrowArrayStream> owned(stream_in(capsule));
    if (owned->release != nullptr) {
      owned->release(owned.get());
    }
  });
}

// The capsule stays the owner of the structure; only its content moves. Anything with __arrow_c_stream__ will do.
inline std::unique_ptr<perfetto::ColumnStream> take_stream(const pybind11::object& source) {
  const auto capsule = source.attr("__arrow_c_stream__")().cast<pybind11::capsule>();
  ArrowArrayStream* stream = stream_in(capsule.ptr());
  if (stream == nullptr) {
    throw pybind11::error_already_set();
  }
  return std::make_unique<perfetto::ColumnStream>(*stream);
}

// Calls `sink` with bytes; for whoever works without the GIL.
inline std::function<void(std::string_view)> bytes_into(pybind11::function sink) {
  return [sink = std::move(sink)](std::string_view chunk) {
    const pybind11::gil_scoped_acquire gil;
    sink(pybind11::bytes(chunk.data(), chunk.size()));
  };
}

}  // namespace ral::trace
