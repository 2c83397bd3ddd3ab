// Columns of integers out of Python rows, as other tools' files hold them: some values are missing, or of another type.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <tuple>

namespace ral::trace {

// Stands for NULL on the way to the database; no time, id or size of a sound source is that.
inline constexpr std::int64_t kNullInteger = std::numeric_limits<std::int64_t>::min();

// Column `column` of `rows`, a list of tuples, with kNullInteger for None, for an empty string, and for a value that is
// no integer of 64 bits; of the latter also how many, and the first of them (None: there is none). Text of digits, and
// floats that hold an integer exactly, are taken by their value. Throws IndexError where a row is too short.
std::tuple<pybind11::array_t<std::int64_t>, std::size_t, pybind11::object> integer_column(const pybind11::list& rows,
                                                                                          std::size_t column);

}  // namespace ral::trace
