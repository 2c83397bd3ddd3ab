// The rows of `event`, a batch of columns at a time.
#include <algorithm>

#include "trace_events.h"

namespace ral::trace {

namespace {

struct EventColumns {
  NumberColumn<std::int64_t> id, ts_ns, dur_ns, correlation, parent, bytes, step;
  NumberColumn<std::int32_t> process, thread, device, stream, stack;
  NumberColumn<std::uint8_t> flags;
  TextColumn kind, category, name, args;

  void reserve(std::size_t rows) {
    const auto each = [rows](auto&... column) { (column.reserve(rows), ...); };
    each(id, ts_ns, dur_ns, correlation, parent, bytes, step, process, thread, device, stream, stack, flags, kind,
         category, name, args);
  }
};

}  // namespace

class EventRows : public ArrowSource {
 public:
  EventRows(std::shared_ptr<TraceEvents> events, std::int64_t first, std::int64_t stack_first,
            std::vector<std::string> categories, std::int32_t backward, std::int64_t rows_a_batch)
      : events_(std::move(events)),
        first_(first),
        stack_first_(stack_first),
        categories_(std::move(categories)),
        backward_(backward),
        rows_a_batch_(rows_a_batch),
        row_(events_->table_->first()) {
    find_empty();
    columns_ = columns_of(EventColumns());
  }

  [[nodiscard]] const std::vector<ArrowColumn>& columns() const override { return columns_; }

  std::shared_ptr<const ArrowBatch> next() override {
    auto columns = std::make_shared<EventColumns>();
    columns->reserve(std::min<std::size_t>(static_cast<std::size_t>(rows_a_batch_), events_->table_->rows() - row_));
    std::int64_t count = 0;
    for (; row_ < events_->table_->rows() && count < rows_a_batch_ && columns->args.bytes() < kTextABatch; ++row_) {
      if (events_->is_event(row_)) {
        add(*columns);
        ++count;
      }
    }
    if (count == 0) {
      return nullptr;
    }
    auto batch = std::make_shared<ArrowBatch>();
    batch->rows = count;
    batch->columns = columns_of(*columns);
    batch->owner = std::move(columns);
    return batch;
  }

 private:
  // Columns in which no row has a value: each would cost as much as any.
  void find_empty() {
    const auto any = [this](auto has) {
      return std::any_of(events_->meanings_.begin(), events_->meanings_.end(), has);
    };
    const auto leave_out = [this](const char* name, bool given) {
      if (!given) {
        empty_.emplace_back(name);
      }
    };
    leave_out("device", any([](const Meaning& one) { return one.device >= 0; }));
    leave_out("stream", any([](const Meaning& one) { return one.stream >= 0; }));
    leave_out("step", !events_->step_.empty() || any([](const Meaning& one) { return one.step >= 0; }));
    leave_out("correlation", events_->correlations_->any());
    leave_out("bytes", events_->bytes_->any());
    leave_out("stack", events_->stacks_ != nullptr && !events_->stacks_->empty());
    leave_out("args", events_->table_->args.any() || !events_->amended_args_.empty());
  }

  [[nodiscard]] std::vector<ArrowColumn> columns_of(const EventColumns& all) const {
    std::vector<ArrowColumn> columns = all_columns(all);
    const auto is_empty = [this](const ArrowColumn& column) {
      return std::find(empty_.begin(), empty_.end(), column.name) != empty_.end();
    };
    columns.erase(std::remove_if(columns.begin(), columns.end(), is_empty), columns.end());
    return columns;
  }

  static std::vector<ArrowColumn> all_columns(const EventColumns& all) {
    return {all.id.as("id", "l"),
            all.kind.as("kind"),
            all.category.as("category"),
            all.name.as("name"),
            all.ts_ns.as("ts_ns", "l"),
            all.dur_ns.as("dur_ns", "l"),
            all.process.as("process", "i"),
            all.thread.as("thread", "i"),
            all.device.as("device", "i"),
            all.stream.as("stream", "i"),
            all.correlation.as("correlation", "l"),
            all.parent.as("parent", "l"),
            all.bytes.as("bytes", "l"),
            all.step.as("step", "l"),
            all.stack.as("stack", "i"),
            all.args.as("args", kJsonColumn),
            all.flags.as("flags", "C")};
  }

  [[nodiscard]] const TraceEvents::Launch* launch() const {
    const std::uint32_t number = events_->launch_of_[row_];
    return number == 0 ? nullptr : &events_->launches_[number - 1];
  }

  [[nodiscard]] std::string_view kind(const Meaning& meaning) const {
    Kind kind = static_cast<Kind>(meaning.kind);
    if (TraceEvents::is_call(meaning)) {
      kind = launch() != nullptr ? Kind::kLaunch : meaning.kind == Meaning::kSyncCall ? Kind::kSync : Kind::kRuntime;
    } else if (meaning.is(Meaning::kMemory) && events_->bytes_->has(row_)) {
      kind = (*events_->bytes_)[row_] < 0 ? Kind::kFree : Kind::kAlloc;
    }
    return kKindNames[static_cast<std::size_t>(kind)];
  }

  // A row on a device belongs to the step in which it was launched.
  [[nodiscard]] std::int64_t step(const Meaning& meaning) const {
    if (meaning.step != -1 || events_->step_.empty()) {
      return meaning.step;
    }
    if (meaning.thread >= 0) {
      return events_->step_[row_];
    }
    return launch() == nullptr || launch()->call == TraceEvents::kNoRow ? -1 : events_->step_[launch()->call];
  }

  void add(EventColumns& to) {
    const TraceTable& table = *events_->table_;
    const Meaning& meaning = events_->of(row_);
    const std::uint8_t flags = events_->flags_[row_];
    const bool calls = TraceEvents::is_call(meaning) && launch() != nullptr;
    const std::int32_t device = meaning.device < 0 && calls ? launch()->device : meaning.device;
    const std::int32_t category =
        meaning.is(Meaning::kOperator) && (flags & kBackward) != 0 ? backward_ : meaning.category;
    to.id.add(first_ + row_);
    to.kind.add(kind(meaning));
    to.category.add(category < 0 ? std::nullopt
                                 : std::optional<std::string_view>(categories_[static_cast<std::size_t>(category)]));
    to.name.add(table.label(table.label_of[row_]).name);
    to.ts_ns.add(table.ts_ns[row_]);
    to.dur_ns.add(table.dur_ns[row_] != TraceTable::kNone, table.dur_ns[row_]);
    to.process.add(meaning.process);
    to.thread.add(meaning.thread >= 0, meaning.thread);
    to.device.add(device >= 0, device);
    to.stream.add(meaning.stream >= 0, meaning.stream);
    const std::int64_t correlation = events_->correlation(row_);
    to.correlation.add(correlation > 0, correlation);
    const Row parent = events_->parent_[row_];
    to.parent.add(parent != TraceEvents::kNoRow, first_ + parent);
    const auto bytes = events_->bytes_->get(row_);
    to.bytes.add(bytes.has_value(), bytes && *bytes < 0 ? -*bytes : bytes.value_or(0));
    const std::int64_t in_step = step(meaning);
    to.step.add(in_step >= 0, in_step);
    const std::uint32_t stack =
        events_->stacks_ != nullptr && row_ < events_->stacks_->size() ? (*events_->stacks_)[row_] : 0;
    to.stack.add(stack != Texts::kNone, static_cast<std::int32_t>(stack_first_ + stack - 1));
    add_args(to.args);
    to.flags.add(flags);
  }

  void add_args(TextColumn& to) {
    auto args = events_->table_->args.get(row_);
    if (!args && !events_->amended_args_.empty()) {
      const auto found = events_->amended_args_.find(row_);
      args = found == events_->amended_args_.end() ? std::nullopt : std::optional<std::string_view>(found->second);
    }
    to.add(args);
  }

  std::shared_ptr<TraceEvents> events_;
  std::int64_t first_, stack_first_;
  std::vector<std::string> categories_;
  std::int32_t backward_;
  std::int64_t rows_a_batch_;
  Row row_;
  std::vector<std::string> empty_;
  std::vector<ArrowColumn> columns_;
};

std::unique_ptr<ArrowSource> TraceEvents::rows(std::shared_ptr<TraceEvents> events, std::int64_t first,
                                               std::int64_t stack_first, std::vector<std::string> categories,
                                               std::int32_t backward, std::int64_t rows_a_batch) {
  return std::make_unique<EventRows>(std::move(events), first, stack_first, std::move(categories), backward,
                                     rows_a_batch);
}

}  // namespace ral::trace
