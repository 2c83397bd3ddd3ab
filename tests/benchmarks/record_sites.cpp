// Event sites as the backend has them: in a library of their own, reaching the one writer through its function table.
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "writer.h"

using namespace ral::trace;

namespace {

double nanoseconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

template <typename Body>
double each_ns(std::uint64_t count, const Body& body) {
  const double begin = nanoseconds_now();
  for (std::uint64_t i = 0; i < count; ++i) {
    body(i);
  }
  return (nanoseconds_now() - begin) / static_cast<double>(count);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) double clock_read_ns(const WriterApi* api, std::uint64_t count) {
  std::uint64_t sum = 0;
  const double each = each_ns(count, [&](std::uint64_t) { sum += ticks(api->clock); });
  asm volatile("" : : "r"(sum));
  return each;
}

__attribute__((visibility("default"))) double instant_ns(const WriterApi* api, std::uint64_t count) {
  return each_ns(count, [&](std::uint64_t i) {
    if (recording(*api)) {
      Record record = make_record(Kind::kInstant, 1);
      record.arg0 = i;
      emit_instant(*api, record);
    }
  });
}

__attribute__((visibility("default"))) double span_ns(const WriterApi* api, std::uint64_t count) {
  return each_ns(count, [&](std::uint64_t i) {
    if (recording(*api)) {
      Record record = make_record(Kind::kOp, 1);
      record.arg0 = i;
      record.start_ticks = ticks(api->clock);
      asm volatile("" ::: "memory");  // the work of the span
      record.end_ticks = ticks(api->clock);
      api->emit(record);
    }
  });
}
}
