#include "events.h"

namespace ral::events {

using trace::Kind;
using trace::Record;

const trace::WriterApi* writer = nullptr;

void Launch::begin(const Name& routed, std::int8_t device, std::uint8_t stream) noexcept {
  active_ = true;
  record_ = trace::make_record(Kind::kLaunch, user_op(routed.id()), device, stream);
  record_.correlation = writer->next_correlation();
  record_.arg0 = routed.id();
  record_.start_ticks = now();
}

void Launch::finish() noexcept {
  record_.end_ticks = now();
  writer->emit(record_);
}

void Launch::work(Kind kind, std::uint64_t start, std::uint64_t end, std::int64_t bytes, std::uint64_t arg0,
                  std::uint64_t arg1) const noexcept {
  Started(*this).work(kind, start, end, bytes, arg0, arg1);
}

void Started::work(Kind kind, std::uint64_t start, std::uint64_t end, std::int64_t bytes, std::uint64_t arg0,
                   std::uint64_t arg1) const noexcept {
  Record record = *record_;
  record.kind = kind;
  record.start_ticks = start;
  record.end_ticks = end;
  record.bytes = bytes;
  record.arg0 = arg0;
  record.arg1 = arg1;
  writer->emit(record);
}

Sync::Sync(std::uint32_t name, std::int8_t device, std::uint8_t stream, std::uint32_t waited_for,
           bool forced) noexcept {
  if (__builtin_expect(on(), 0)) {
    active_ = true;
    record_ = trace::make_record(Kind::kSync, name, device, stream);
    record_.arg0 = waited_for;
    record_.flags = forced ? trace::kForced : 0;
    record_.stack = site_stack();
    record_.start_ticks = now();
  }
}

Wait::Wait(const Launch& launch, std::int8_t device) noexcept {
  if (__builtin_expect(launch.active_, 0)) {
    active_ = true;
    record_ = trace::make_record(Kind::kWait, launch.record_.name, device, launch.record_.stream);
    record_.start_ticks = now();
  }
}

Wait::~Wait() {
  if (active_) {
    record_.end_ticks = now();
    writer->emit(record_);
  }
}

Sync::~Sync() {
  if (active_) {
    record_.end_ticks = now();
    writer->emit(record_);
  }
}

}  // namespace ral::events
