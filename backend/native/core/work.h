// What goes through a stream: typed items. An item owns all that it needs, and runs later on its pipeline's thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model.h"

namespace ral {

class Stream;

enum class WorkKind : std::uint8_t { kHost, kTransfer, kCompute, kSync };

// What a device does at the same time: each has a thread of its own, all streams of the device share the three.
enum class Pipeline : std::uint8_t { kCompute, kCopyIn, kCopyOut };
inline constexpr std::size_t kPipelines = 3;
inline constexpr std::array<std::string_view, kPipelines> kPipelineNames = {"compute", "copy_in", "copy_out"};

// A place in a stream that others can wait for: behind the item with this ticket.
struct Mark {
  const Stream* stream = nullptr;
  std::uint64_t ticket = 0;
  std::atomic<std::uint64_t> time_ns{0};  // when the stream came there, on its device's clock; 0: not yet

  bool done() const noexcept;
};

// When an item ran, in ticks of the event clock; and its end on the device's own clock.
struct Times {
  std::uint64_t start_ticks = 0;
  std::uint64_t end_ticks = 0;
  std::uint64_t end_ns = 0;
};

class Work {
 public:
  Work(WorkKind kind, Pipeline pipeline, std::uint32_t name) : kind(kind), pipeline(pipeline), name(name) {}
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // On the pipeline's thread. What it throws is kept, and surfaces where the host next waits for the device.
  virtual void run() = 0;
  // After run() and what the device's model adds to it; not where run() threw.
  virtual void ended(const Times& times) noexcept { (void)times; }
  // Where run() threw, with the text.
  virtual void failed(const char* text) noexcept { (void)text; }
  virtual std::uint64_t model_ns(const DeviceModel& model) const noexcept {
    (void)model;
    return 0;
  }
  // "aten::add.Tensor", for the error.
  virtual std::string what() const = 0;

  const WorkKind kind;
  const Pipeline pipeline;
  const std::uint32_t name;                  // name id of the op that it is for; 0: nobody records
  std::shared_ptr<void> site;                // the submitter's own: where it was launched, for the error
  std::vector<std::shared_ptr<Mark>> after;  // marks of other streams that must be reached first
};

}  // namespace ral
