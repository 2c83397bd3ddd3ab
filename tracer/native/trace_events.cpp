#include "trace_events.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace ral::trace {

namespace {

constexpr std::int64_t kDepths = std::int64_t{1} << 40;  // more than a file has events
constexpr std::int64_t kMostBytes = std::int64_t{1} << 61;
constexpr std::uint8_t kUnnested = kInvalid | kSuspended;

void count(OddRows& odd, Row row, std::int64_t value) {
  if (odd.count++ == 0) {
    odd.example = row;
    odd.value = value;
  }
}

// Sorts what consists of a few ascending runs, as files do: one a category.
template <typename T, typename Less>
void sort_runs(std::vector<T>& all, Less less) {
  std::vector<std::ptrdiff_t> bounds{0};
  const auto size = static_cast<std::ptrdiff_t>(all.size());
  for (std::ptrdiff_t i = 1; i < size; ++i) {
    if (less(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(i - 1)])) {
      bounds.push_back(i);
    }
  }
  if (bounds.size() > all.size() / 8 + 1) {
    std::sort(all.begin(), all.end(), less);
    return;
  }
  bounds.push_back(size);
  while (bounds.size() > 2) {
    std::vector<std::ptrdiff_t> merged{0};
    for (std::size_t i = 0; i + 1 < bounds.size(); i += 2) {
      const std::ptrdiff_t end = bounds[std::min(i + 2, bounds.size() - 1)];
      if (i + 2 < bounds.size()) {
        std::inplace_merge(all.begin() + bounds[i], all.begin() + bounds[i + 1], all.begin() + end, less);
      }
      merged.push_back(end);
    }
    bounds = std::move(merged);
  }
}

}  // namespace

TraceEvents::TraceEvents(std::shared_ptr<TraceTable> table, std::vector<Meaning> meanings, bool inner_first)
    : table_(std::move(table)), meanings_(std::move(meanings)), inner_first_(inner_first) {
  const auto integers = [this](std::string_view name) {
    const std::size_t column = table_->column_of(name);
    return column == table_->columns().size() ? &nothing_ : &table_->integers[table_->place_of(column)];
  };
  correlations_ = integers("correlation");
  externals_ = integers("external");
  bytes_ = integers("bytes");
  forward_threads_ = integers("forward_thread");
  python_ids_ = integers("python_id");
  python_parents_ = integers("python_parent");
  if (const std::size_t column = table_->column_of("call_stack"); column != table_->columns().size()) {
    stacks_ = &table_->text_numbers[table_->place_of(column)];
  }
}

void TraceEvents::amend(Row row, std::int64_t dur_ns, std::uint8_t flags, std::string args) {
  flags_.resize(table_->rows());
  flags_[row] = flags;
  amended_[row] = dur_ns;
  if (!args.empty()) {
    amended_args_[row] = std::move(args);
  }
}

void TraceEvents::end_overruns(const std::vector<bool>& labels, std::int64_t stop_ns) {
  std::vector<Row> calls;
  std::int64_t last = TraceTable::kNone;
  std::size_t ends_last = 0;
  const auto end = [this](Row row) { return table_->ts_ns[row] + table_->dur_ns[row]; };
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    if (labels[table_->label_of[row]] && of(row).is(Meaning::kComplete) && table_->ts_ns[row] != TraceTable::kNone &&
        table_->dur_ns[row] >= 0) {
      calls.push_back(row);
      ends_last = end(row) > last ? 1 : ends_last + (end(row) == last ? 1 : 0);
      last = std::max(last, end(row));
    }
  }
  if (stop_ns == TraceTable::kNone && ends_last < 2) {
    return;
  }
  const std::int64_t stop = stop_ns == TraceTable::kNone ? last : stop_ns;
  using Caller = std::tuple<std::int32_t, std::int32_t, bool, std::int64_t>;
  const auto caller = [this](Row row) {
    const auto parent = python_parents_->get(row);
    return Caller(of(row).process, of(row).thread, parent.has_value(), parent.value_or(0));
  };
  std::map<Caller, std::vector<Row>> callers;
  for (const Row row : calls) {
    if (end(row) >= stop) {
      callers[caller(row)];
    }
  }
  for (const Row row : calls) {
    if (const auto found = callers.find(caller(row)); found != callers.end()) {
      found->second.push_back(row);
    }
  }
  const auto before = [this](Row a, Row b) { return std::pair(table_->ts_ns[a], a) < std::pair(table_->ts_ns[b], b); };
  for (auto& [_, rows] : callers) {
    std::sort(rows.begin(), rows.end(), before);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (end(rows[i]) >= stop) {
        const bool known = python_ids_->has(rows[i]) && i + 1 < rows.size();
        const std::int64_t until = known ? std::min(end(rows[i]), table_->ts_ns[rows[i + 1]]) : end(rows[i]);
        amend(rows[i], until - table_->ts_ns[rows[i]], kUnfinished, {});
      }
    }
  }
}

std::int64_t TraceEvents::correlation(Row row) const {
  return correlations_->has(row) && (*correlations_)[row] > 0 ? (*correlations_)[row] : 0;
}

void TraceEvents::check_bytes(Row row, const Meaning& meaning) {
  const std::int64_t bytes = (*bytes_)[row];
  const bool negative = bytes < 0 && !meaning.is(Meaning::kMayBeNegative) && table_->ts_ns[row] != TraceTable::kNone;
  if (bytes <= -kMostBytes || bytes >= kMostBytes || negative) {
    bytes_->unset(row);
    count(odd_bytes_, row, bytes);
  }
}

void TraceEvents::settle() {
  flags_.resize(table_->rows());
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    const Meaning& meaning = of(row);
    std::int64_t& dur = table_->dur_ns[row];
    if (bytes_->has(row)) {
      check_bytes(row, meaning);
    }
    if (table_->ts_ns[row] == TraceTable::kNone) {
      if (meaning.is(Meaning::kCounted)) {
        count(timeless_, row, dur);
      }
      continue;
    }
    unsigned flags = flags_[row];
    if (dur < 0 && dur != TraceTable::kNone) {
      if (meaning.is(Meaning::kCounted)) {
        count(negative_, row, dur);
      }
      flags |= kInvalid;
    }
    const auto amended = amended_.empty() ? amended_.end() : amended_.find(row);
    if (dur == TraceTable::kNone && amended == amended_.end() && meaning.is(Meaning::kComplete)) {
      flags |= kUnfinished;
    }
    if (meaning.is(Meaning::kOperator) && forward_threads_->get(row).value_or(0) > 0) {
      flags |= kBackward;
    }
    flags_[row] = static_cast<std::uint8_t>(flags);
    dur = meaning.is(Meaning::kPoint) ? 0
          : amended != amended_.end() ? amended->second
          : dur < 0                   ? TraceTable::kNone
                                      : dur;
  }
}

std::int64_t TraceEvents::first_start(bool on_threads) const {
  std::int64_t first = TraceTable::kNone;
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    if (is_event(row) && (!on_threads || of(row).thread >= 0) &&
        (first == TraceTable::kNone || table_->ts_ns[row] < first)) {
      first = table_->ts_ns[row];
    }
  }
  return first;
}

OddRows TraceEvents::flag_leftovers(std::int64_t start_ns) {
  std::vector<Row> early;
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    if (is_event(row) && of(row).thread < 0 && of(row).device >= 0 && correlation(row) > 0 &&
        table_->ts_ns[row] + duration(row) <= start_ns) {
      early.push_back(row);
    }
  }
  OddRows left;
  if (early.empty()) {
    return left;
  }
  std::vector<std::pair<std::int32_t, std::int64_t>> called;
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    if (is_event(row) && of(row).thread >= 0 && correlation(row) > 0) {
      called.emplace_back(of(row).process, correlation(row));
    }
  }
  std::sort(called.begin(), called.end());
  for (const Row row : early) {
    if (!std::binary_search(called.begin(), called.end(), std::pair(of(row).process, correlation(row)))) {
      flags_[row] = static_cast<std::uint8_t>(flags_[row] | kInvalid);
      count(left, row, table_->ts_ns[row]);
    }
  }
  return left;
}

std::uint32_t TraceEvents::launch_number(std::int32_t process, std::int64_t correlation, bool make) {
  if (launch_slots_.size() < launches_.size() * 2 + 2) {
    grow_launches();
  }
  const std::size_t mask = launch_slots_.size() - 1;
  const std::uint64_t hash =
      (static_cast<std::uint64_t>(correlation) + static_cast<std::uint32_t>(process) * 31U) * 0x9E3779B97F4A7C15;
  std::size_t slot = hash >> 20 & mask;
  for (; launch_slots_[slot] != 0; slot = (slot + 1) & mask) {
    const Launch& one = launches_[launch_slots_[slot] - 1];
    if (one.correlation == correlation && one.process == process) {
      return launch_slots_[slot];
    }
  }
  if (!make) {
    return 0;
  }
  launches_.push_back({process, correlation});
  return launch_slots_[slot] = static_cast<std::uint32_t>(launches_.size());
}

void TraceEvents::grow_launches() {
  std::vector<Launch> all;
  all.swap(launches_);
  const std::size_t size = std::max<std::size_t>(launch_slots_.size() * 4, 1024);
  launch_slots_.assign(size, 0);
  launches_.reserve(size / 2);
  for (const Launch& one : all) {
    launches_[launch_number(one.process, one.correlation, true) - 1] = one;
  }
}

void TraceEvents::find_launches() {
  launch_of_.resize(table_->rows());
  std::vector<Row> others;
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    if (!is_event(row) || correlation(row) == 0) {
      continue;
    }
    const Meaning& meaning = of(row);
    if (is_work(meaning) && meaning.thread < 0) {
      const std::uint32_t number = launch_number(meaning.process, correlation(row), true);
      launch_of_[row] = number;
      std::int32_t& device = launches_[number - 1].device;
      if (meaning.device >= 0) {
        device = device == -1 || device == meaning.device ? meaning.device : -2;
      }
    } else if (is_call(meaning) || meaning.thread < 0) {
      others.push_back(row);
    }
  }
  for (const Row row : others) {
    const std::uint32_t number = launch_number(of(row).process, correlation(row), false);
    if (number == 0) {
      continue;
    }
    Row& call = launches_[number - 1].call;
    if (!is_call(of(row))) {
      launch_of_[row] = number;
    } else if (call == kNoRow || table_->ts_ns[row] < table_->ts_ns[call]) {
      call = row;
    }
  }
  for (std::size_t i = 0; i < launches_.size(); ++i) {
    if (launches_[i].call != kNoRow) {
      launch_of_[launches_[i].call] = static_cast<std::uint32_t>(i + 1);
    }
  }
}

std::vector<std::vector<TraceEvents::Span>> TraceEvents::spans() const {
  std::int32_t threads = 0;
  for (const Meaning& meaning : meanings_) {
    threads = std::max(threads, meaning.thread + 1);
  }
  std::vector<std::vector<Span>> all(static_cast<std::size_t>(threads));
  std::vector<std::size_t> sizes(all.size());
  for (std::uint32_t i = 0; i < meanings_.size(); ++i) {
    if (meanings_[i].thread >= 0) {
      sizes[static_cast<std::size_t>(meanings_[i].thread)] += table_->label(i).timed;
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].reserve(sizes[i]);
  }
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    const Meaning& meaning = of(row);
    const bool end = meaning.is(Meaning::kArrowEnd);
    if (meaning.thread < 0 || table_->ts_ns[row] == TraceTable::kNone || (meaning.kind == Meaning::kLeftOut && !end)) {
      continue;
    }
    const auto number = static_cast<std::int64_t>(row);
    const std::int64_t order = end ? number : meaning.depth * kDepths + (inner_first_ ? -number : number);
    const std::int64_t dur = end ? 0 : table_->dur_ns[row] == TraceTable::kNone ? -1 : table_->dur_ns[row];
    all[static_cast<std::size_t>(meaning.thread)].push_back({table_->ts_ns[row], dur, order, row});
  }
  return all;
}

void TraceEvents::place(const std::vector<StepInterval>& steps, std::int64_t tolerance_ns) {
  parent_.assign(table_->rows(), kNoRow);
  auto all = spans();
  for (std::size_t thread = 0; thread < all.size(); ++thread) {
    sort_runs(all[thread], [](const Span& a, const Span& b) {
      return std::tuple(a.start_ns, -a.dur_ns, a.order) < std::tuple(b.start_ns, -b.dur_ns, b.order);
    });
    place_thread(static_cast<std::int32_t>(thread), all[thread], tolerance_ns);
    all[thread] = {};
  }
  if (!steps.empty()) {
    find_steps(steps);
  }
}

void TraceEvents::place_thread(std::int32_t thread, const std::vector<Span>& spans, std::int64_t tolerance_ns) {
  std::vector<std::int64_t> start, end, row;
  bool arrows = false;
  start.reserve(spans.size());
  end.reserve(spans.size());
  row.reserve(spans.size());
  for (const Span& one : spans) {
    if ((flags_[one.row] & kUnnested) == 0) {
      start.push_back(one.start_ns);
      end.push_back(one.start_ns + std::max<std::int64_t>(one.dur_ns, 0));
      row.push_back(one.row);
      arrows = arrows || of(one.row).is(Meaning::kArrowEnd);
    }
  }
  const std::vector<std::int32_t> threads(row.size(), thread);
  std::vector<std::int64_t> parent(row.size());
  nest(threads.data(), start.data(), end.data(), row.data(), row.size(), tolerance_ns, parent.data());
  for (std::size_t i = 0; i < row.size(); ++i) {
    parent_[static_cast<Row>(row[i])] = parent[i] == kNoParent ? kNoRow : static_cast<Row>(parent[i]);
  }
  if (arrows) {
    find_next(spans);
  }
}

void TraceEvents::find_next(const std::vector<Span>& spans) {
  constexpr std::uint8_t kInstant = static_cast<std::uint8_t>(Kind::kInstant);
  Row next = kNoRow;
  for (std::size_t end = spans.size(); end > 0;) {
    std::size_t begin = end;
    while (begin > 0 && spans[begin - 1].start_ns == spans[end - 1].start_ns) {
      --begin;
    }
    const auto is_slice = [this](const Span& one) {
      return of(one.row).kind != Meaning::kLeftOut && of(one.row).kind != kInstant;
    };
    const auto slice = std::find_if(spans.begin() + static_cast<std::ptrdiff_t>(begin),
                                    spans.begin() + static_cast<std::ptrdiff_t>(end), is_slice);
    next = slice == spans.begin() + static_cast<std::ptrdiff_t>(end) ? next : slice->row;
    for (std::size_t i = begin; i < end; ++i) {
      if (of(spans[i].row).is(Meaning::kArrowEnd)) {
        arrow_ends_.push_back({spans[i].row, parent_[spans[i].row], next});
      }
    }
    end = begin;
  }
}

void TraceEvents::find_steps(const std::vector<StepInterval>& steps) {
  step_.assign(table_->rows(), -1);
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    const Meaning& meaning = of(row);
    if (!is_event(row) || meaning.thread < 0 || (flags_[row] & kUnnested) != 0) {
      continue;
    }
    const std::int64_t ts = table_->ts_ns[row];
    const auto after = std::upper_bound(
        steps.begin(), steps.end(), std::pair(meaning.process, ts),
        [](const auto& at, const StepInterval& step) { return at < std::pair(step.process, step.start_ns); });
    if (after != steps.begin() && (after - 1)->process == meaning.process && ts < (after - 1)->end_ns) {
      step_[row] = (after - 1)->step;
    }
  }
}

void TraceEvents::state_parents() {
  struct Seeker {
    std::int32_t process;
    std::int64_t external, ts_ns;
    Row row;
  };
  std::vector<Seeker> seekers;
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    const Meaning& meaning = of(row);
    if (!externals_->has(row) || parent_[row] != kNoRow || !is_event(row)) {
      continue;
    }
    const std::int64_t external = (*externals_)[row];
    const bool seeks = meaning.kind == Meaning::kCall ||
                       (is_work(meaning) && (launch_of_[row] == 0 || launches_[launch_of_[row] - 1].call == kNoRow));
    if (seeks && (external != correlation(row) || external == 0)) {
      seekers.push_back({meaning.process, external, table_->ts_ns[row], row});
    }
  }
  if (seekers.empty()) {
    return;
  }
  // Those of one number, the latest first. The last operators in the file choose first, so that each takes all that are
  // left and later than it.
  std::sort(seekers.begin(), seekers.end(), [](const Seeker& a, const Seeker& b) {
    return std::tuple(a.process, a.external, -a.ts_ns) < std::tuple(b.process, b.external, -b.ts_ns);
  });
  std::vector<std::size_t> taken(seekers.size());  // at the first of each number: how many of it have a parent
  for (Row row = table_->rows(); row-- > table_->first();) {
    const Meaning& meaning = of(row);
    if (meaning.kind != static_cast<std::uint8_t>(Kind::kOp) || !externals_->has(row) || !is_event(row)) {
      continue;
    }
    const auto key = std::pair(meaning.process, (*externals_)[row]);
    const auto first = std::lower_bound(seekers.begin(), seekers.end(), key, [](const Seeker& one, const auto& wanted) {
      return std::pair(one.process, one.external) < wanted;
    });
    std::size_t i = static_cast<std::size_t>(first - seekers.begin());
    const std::size_t begin = i;
    for (i = i < seekers.size() ? i + taken[i] : i;
         i < seekers.size() && std::pair(seekers[i].process, seekers[i].external) == key &&
         seekers[i].ts_ns >= table_->ts_ns[row];
         ++i) {
      parent_[seekers[i].row] = row;
      taken[begin] = i - begin + 1;
    }
  }
}

std::vector<std::pair<Row, Row>> TraceEvents::launched() const {
  std::vector<std::pair<Row, Row>> found;
  for (Row row = table_->first(); row < table_->rows(); ++row) {
    if (launch_of_[row] != 0 && is_work(of(row)) && launches_[launch_of_[row] - 1].call != kNoRow) {
      found.emplace_back(launches_[launch_of_[row] - 1].call, row);
    }
  }
  return found;
}

}  // namespace ral::trace
