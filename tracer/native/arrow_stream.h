// The Arrow C data and stream interfaces (https://arrow.apache.org/docs/format/CStreamInterface.html), as far as
// columns on their way to DuckDB need them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arrow_abi.h"
#include "columns.h"

namespace ral::trace {

struct ArrowColumn {
  std::string name;
  const char* format = "";           // a literal, as the Arrow C interface writes types
  std::vector<const void*> buffers;  // validity (or nullptr: no NULLs), offsets where the type has them, data
  std::int64_t nulls = 0;
  const char* metadata = nullptr;  // as the Arrow C interface writes it; it outlives the column
};

// The columns of one batch. `owner` keeps alive what their buffers point to.
struct ArrowBatch {
  std::shared_ptr<const void> owner;
  std::vector<ArrowColumn> columns;
  std::int64_t rows = 0;
};

// Batches of the same columns, one after another.
class ArrowSource {
 public:
  virtual ~ArrowSource() = default;
  // Their names, formats and metadata.
  [[nodiscard]] virtual const std::vector<ArrowColumn>& columns() const = 0;
  // Nothing at the end.
  virtual std::shared_ptr<const ArrowBatch> next() = 0;
};

// A stream whose batches live as long as any array that points into them. What the source throws is the stream's error.
void export_stream(std::unique_ptr<ArrowSource> source, ArrowArrayStream* out);

// The same, of one batch.
void export_stream(std::shared_ptr<const ArrowBatch> batch, ArrowArrayStream* out);

// The same, of a drain's records.
void export_stream(std::shared_ptr<const Columns> columns, ArrowArrayStream* out);

}  // namespace ral::trace
