// Records of a drain, as columns that DuckDB takes through the Arrow C stream interface without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "calibration.h"
#include "record.h"

namespace ral::trace {

// One row a record. Sentinels (correlation 0, bytes -1, device -1) become NULL in SQL, so that no column needs a validity bitmap.
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
  std::vector<std::int8_t> device;
  std::vector<std::uint8_t> stream;
  std::vector<std::uint8_t> flags;

  [[nodiscard]] std::size_t rows() const noexcept { return process.size(); }

  void append(std::int32_t process_id, const Record& record, const Calibration& clock) {
    const std::int64_t start = clock.epoch_ns(record.start_ticks);
    process.push_back(process_id);
    tid.push_back(record.tid);
    kind.push_back(static_cast<std::uint8_t>(record.kind));
    ts_ns.push_back(start);
    dur_ns.push_back(clock.epoch_ns(record.end_ticks) - start);
    correlation.push_back(static_cast<std::int64_t>(record.correlation));
    bytes.push_back(record.bytes);
    arg0.push_back(record.arg0);
    arg1.push_back(record.arg1);
    name.push_back(record.name);
    device.push_back(record.device);
    stream.push_back(record.stream);
    flags.push_back(record.flags);
  }
};

}  // namespace ral::trace
