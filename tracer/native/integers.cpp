#include "integers.h"

#include <charconv>
#include <cmath>
#include <optional>

namespace ral::trace {

namespace py = pybind11;

namespace {

// Up to here a float64 tells neighbouring integers apart.
constexpr double kExactFloat = 9007199254740992.0;

std::optional<std::int64_t> from_text(PyObject* text) {
  Py_ssize_t length = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text, &length);
  if (data == nullptr) {  // a lone surrogate
    PyErr_Clear();
    return std::nullopt;
  }
  if (length == 0) {
    return kNullInteger;
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(data, data + length, value);
  return error == std::errc() && end == data + length ? std::optional(value) : std::nullopt;
}

// Nothing when the value is no integer of 64 bits. kNullInteger is not taken for one either.
std::optional<std::int64_t> from_object(PyObject* object) {
  if (PyLong_CheckExact(object) != 0) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0 && value != kNullInteger ? std::optional<std::int64_t>(value) : std::nullopt;
  }
  if (object == Py_None) {
    return kNullInteger;
  }
  if (PyUnicode_CheckExact(object) != 0) {
    return from_text(object);
  }
  if (PyFloat_CheckExact(object) != 0) {
    const double value = PyFloat_AS_DOUBLE(object);
    if (std::trunc(value) == value && std::abs(value) < kExactFloat) {
      return static_cast<std::int64_t>(value);
    }
  }
  return std::nullopt;
}

}  // namespace

std::tuple<py::array_t<std::int64_t>, std::size_t, py::object> integer_column(const py::list& rows,
                                                                              std::size_t column) {
  const auto count = static_cast<Py_ssize_t>(rows.size());
  py::array_t<std::int64_t> values(count);
  std::int64_t* out = values.mutable_data();
  std::size_t wrong = 0;
  py::object example = py::none();
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* row = PyList_GET_ITEM(rows.ptr(), i);
    if (PyTuple_Check(row) == 0 || static_cast<std::size_t>(PyTuple_GET_SIZE(row)) <= column) {
      throw py::index_error("integer_column: a row is no tuple, or too short");
    }
    PyObject* object = PyTuple_GET_ITEM(row, static_cast<Py_ssize_t>(column));
    const std::optional<std::int64_t> value = from_object(object);
    out[i] = value.value_or(kNullInteger);
    if (!value && wrong++ == 0) {
      example = py::reinterpret_borrow<py::object>(object);
    }
  }
  return {std::move(values), wrong, std::move(example)};
}

}  // namespace ral::trace
