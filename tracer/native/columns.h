// Records of a drain, as columns that DuckDB takes through the Arrow C stream interface without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "calibration.h"
#include "record.h"

namespace ral::trace {

// One row a record. Sentinels (correlation 0, bytes -1, device -1) become NULL in SQL, so that no column needs a
// validity bitmap.
struct Columns {
  std::vector<std::int32_t> process;
  std::vector<std::uint32_t> tid;
  std::vector<std::uint8_t> kind;
  std::vector<std::int64_t> ts_ns;
  std::vector<std::int64_t> dur_ns;
  std::vector<std::int64_t> correlation;
  std::vector<std::int64_t> bytes;
  std::vector<std::uint64_t> arg0;
  std::vector<std::uint64_t> arg1;
  std::vector<std::uint32_t> name;
  std::vector<std::uint32_t> stack;
  std::vector<std::int8_t> device;
  std::vector<std::uint8_t> stream;
  std::vector<std::uint8_t> flags;

  [[nodiscard]] std::size_t rows() const noexcept { return process.size(); }

  void resize(std::size_t rows) {
    const auto each = [rows](auto&... column) { (column.resize(rows), ...); };
    each(process, tid, kind, ts_ns, dur_ns, correlation, bytes, arg0, arg1, name, stack, device, stream, flags);
  }

  // Room is made once for all, which is what makes this quick.
  void append(std::int32_t process_id, std::uint32_t thread, const Record* records, std::size_t count,
              const Calibration& clock) {
    std::size_t row = rows();
    resize(row + count);
    for (const Record* record = records; record != records + count; ++record, ++row) {
      process[row] = process_id;
      tid[row] = thread;
      kind[row] = static_cast<std::uint8_t>(record->kind);
      ts_ns[row] = clock.epoch_ns(record->start_ticks);
      // Both ends are converted, not the difference: so what ended together stays together.
      dur_ns[row] = clock.epoch_ns(record->end_ticks) - ts_ns[row];
      correlation[row] = static_cast<std::int64_t>(record->correlation);
      bytes[row] = record->bytes;
      arg0[row] = record->arg0;
      arg1[row] = record->arg1;
      name[row] = record->name;
      stack[row] = record->stack;
      device[row] = record->device;
      stream[row] = record->stream;
      flags[row] = record->flags;
    }
  }
};

}  // namespace ral::trace
