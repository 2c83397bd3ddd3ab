#include "trace_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <system_error>
#include <utility>

namespace ral::trace {

namespace {

constexpr Row kRowsAChunk = 1 << 16;
constexpr std::size_t kTextAChunk = 16 << 20;
constexpr std::uint32_t kNoText = 1U << 31;

std::uint32_t hash_of(std::uint64_t seed, std::string_view text) {
  constexpr std::uint64_t kMany = 0x9E3779B97F4A7C15;
  std::uint64_t hash = (seed + 1) * kMany ^ text.size();
  const char* at = text.data();
  std::size_t left = text.size();
  for (std::uint64_t word = 0; left > 0;) {
    const std::size_t some = std::min<std::size_t>(left, 8);
    word = 0;
    std::memcpy(&word, at, some);
    hash = (hash ^ word) * kMany;
    hash ^= hash >> 29;
    at += some;
    left -= some;
  }
  return static_cast<std::uint32_t>(hash ^ hash >> 32);
}

}  // namespace

std::uint32_t Texts::number(std::string_view text) {
  const auto [found, fresh] = numbers_.emplace(text, static_cast<std::uint32_t>(numbers_.size() + 1));
  if (fresh) {
    all_.push_back(&found->first);
  }
  return found->second;
}

void RowIntegers::set(Row row, std::int64_t value) {
  if (row >= values_.size()) {
    values_.resize(row + std::size_t{1});
    given_.resize(row / 64 + std::size_t{1});
  }
  values_[row] = value;
  given_[row / 64] |= std::uint64_t{1} << row % 64;
}

void RowTexts::add(Row row, std::string_view text) {
  rows_.push_back(row);
  bytes_.append(text);
  ends_.push_back(bytes_.size());
}

std::optional<std::string_view> RowTexts::get(Row row) const {
  const auto found = std::lower_bound(rows_.begin(), rows_.end(), row);
  if (found == rows_.end() || *found != row) {
    return std::nullopt;
  }
  const auto i = static_cast<std::size_t>(found - rows_.begin());
  const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(bytes_).substr(begin, ends_[i] - begin);
}

void SpillingTexts::add(Row row, std::string_view text) {
  if (chunks_.empty() || row - chunks_.back().first >= kRowsAChunk ||
      chunks_.back().bytes.size() + text.size() > kTextAChunk) {
    if (!chunks_.empty()) {
      Chunk& full = chunks_.back();
      full.bytes.shrink_to_fit();
      held_ += full.bytes.size();
      if (held_ > most_) {
        spill(full);
      }
    }
    chunks_.emplace_back();
    chunks_.back().first = row;
  }
  Chunk& chunk = chunks_.back();
  const auto before = static_cast<std::uint32_t>(chunk.bytes.size());
  chunk.ends.resize(row - chunk.first, before | kNoText);
  chunk.bytes.append(text);
  chunk.ends.push_back(static_cast<std::uint32_t>(chunk.bytes.size()));
}

void SpillingTexts::spill(Chunk& chunk) {
  if (!file_) {
    std::string path = folder_ + "/textXXXXXX";
    file_ = File(::mkostemp(path.data(), O_CLOEXEC));
    if (!file_) {
      throw std::system_error(errno, std::generic_category(), path);
    }
    ::unlink(path.c_str());
  }
  for (std::size_t done = 0; done < chunk.bytes.size();) {
    const ssize_t wrote = ::pwrite(file_.get(), chunk.bytes.data() + done, chunk.bytes.size() - done,
                                   file_end_ + static_cast<std::int64_t>(done));
    if (wrote < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), folder_);
    }
    done += wrote > 0 ? static_cast<std::size_t>(wrote) : 0;
  }
  chunk.at = file_end_;
  chunk.size = chunk.bytes.size();
  file_end_ += static_cast<std::int64_t>(chunk.size);
  held_ -= chunk.size;
  chunk.bytes = std::string();
}

const char* SpillingTexts::bytes_of(const Chunk& chunk) {
  if (chunk.at < 0) {
    return chunk.bytes.data();
  }
  if (loaded_ != &chunk) {
    loaded_ = nullptr;
    loaded_bytes_.resize(chunk.size);
    for (std::size_t done = 0; done < chunk.size;) {
      const ssize_t some = ::pread(file_.get(), loaded_bytes_.data() + done, chunk.size - done,
                                   chunk.at + static_cast<std::int64_t>(done));
      if (some == 0 || (some < 0 && errno != EINTR)) {
        throw std::system_error(some == 0 ? EIO : errno, std::generic_category(), folder_);
      }
      done += some > 0 ? static_cast<std::size_t>(some) : 0;
    }
    loaded_ = &chunk;
  }
  return loaded_bytes_.data();
}

std::optional<std::string_view> SpillingTexts::get(Row row) {
  if (chunks_.empty() || row < chunks_[0].first) {
    return std::nullopt;
  }
  const bool behind = current_ + 1 < chunks_.size() && row >= chunks_[current_ + 1].first;
  if (behind || row < chunks_[current_].first) {
    const auto after = std::upper_bound(chunks_.begin(), chunks_.end(), row,
                                        [](Row wanted, const Chunk& chunk) { return wanted < chunk.first; });
    current_ = static_cast<std::size_t>(after - chunks_.begin()) - 1;
  }
  const Chunk& chunk = chunks_[current_];
  const std::size_t i = row - chunk.first;
  if (i >= chunk.ends.size() || (chunk.ends[i] & kNoText) != 0) {
    return std::nullopt;
  }
  const std::size_t begin = i == 0 ? 0 : chunk.ends[i - 1] & ~kNoText;
  return std::string_view(bytes_of(chunk) + begin, chunk.ends[i] - begin);
}

TraceTable::TraceTable(const std::vector<ArgField>& fields, std::string spill_folder, std::size_t most_text)
    : args(std::move(spill_folder), most_text) {
  std::size_t integer_columns = 0, text_columns = 0;
  for (const ArgField& field : fields) {
    if (std::find(columns_.begin(), columns_.end(), field.column) != columns_.end()) {
      continue;
    }
    columns_.push_back(field.column);
    types_.push_back(field.type);
    std::size_t& kind = field.type == ArgField::Type::kLabel  ? spot_size_
                        : field.type == ArgField::Type::kText ? text_columns
                                                              : integer_columns;
    places_.push_back(kind++);
  }
  integers.resize(integer_columns);
  texts.resize(text_columns);
  text_numbers.resize(text_columns);
  spots_.emplace_back(spot_size_);
  spot(spots_[0]);
  slots_.resize(1024);
}

std::size_t TraceTable::column_of(std::string_view name) const {
  return static_cast<std::size_t>(std::find(columns_.begin(), columns_.end(), name) - columns_.begin());
}

std::uint32_t TraceTable::spot(const Spot& values) {
  if (values == spots_[recent_spot_] && !spot_numbers_.empty()) {
    return recent_spot_;
  }
  std::string key;
  for (const auto& value : values) {
    const std::int64_t number = value.value_or(0);
    key.append(1, value ? '1' : '0').append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  const auto [found, fresh] = spot_numbers_.emplace(std::move(key), static_cast<std::uint32_t>(spot_numbers_.size()));
  if (fresh && found->second > 0) {
    spots_.push_back(values);
  }
  return recent_spot_ = found->second;
}

std::uint32_t TraceTable::label(std::uint32_t group, std::uint32_t spot, bool named, std::string_view name) {
  const std::uint64_t place = std::uint64_t{group} << 32 | spot;
  const std::uint32_t size = named ? static_cast<std::uint32_t>(name.size()) : kUnnamed;
  const std::uint32_t hash = hash_of(place, name);
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash & mask;
  for (; slots_[slot] != 0; slot = (slot + 1) & mask) {
    const Stored& one = labels_[slots_[slot] - 1];
    if (one.hash == hash && one.group == group && one.spot == spot && one.name_size == size && name_of(one) == name) {
      return slots_[slot] - 1;
    }
  }
  labels_.push_back({group, spot, names_.size(), size, hash, 0, 0});
  names_.append(name);
  slots_[slot] = static_cast<std::uint32_t>(labels_.size());
  if (labels_.size() * 2 > slots_.size()) {
    grow();
  }
  return static_cast<std::uint32_t>(labels_.size() - 1);
}

void TraceTable::grow() {
  const std::size_t mask = slots_.size() * 2 - 1;
  slots_.assign(mask + 1, 0);
  for (std::size_t i = 0; i < labels_.size(); ++i) {
    std::size_t slot = labels_[i].hash & mask;
    while (slots_[slot] != 0) {
      slot = (slot + 1) & mask;
    }
    slots_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

Row TraceTable::add(std::uint32_t label, std::int64_t ts, std::int64_t dur) {
  label_of.push_back(label);
  ts_ns.push_back(ts);
  dur_ns.push_back(dur);
  return static_cast<Row>(label_of.size() - 1);
}

void TraceTable::finish(Row first) {
  first_ = first;
  for (Row row = first; row < rows(); ++row) {
    Stored& label = labels_[label_of[row]];
    ++label.rows;
    label.timed += ts_ns[row] != kNone;
  }
}

Label TraceTable::label(std::uint32_t number) const {
  const Stored& one = labels_[number];
  const auto name = one.name_size == kUnnamed ? std::nullopt : std::optional(name_of(one));
  return {one.group, one.spot, name, one.rows, one.timed};
}

namespace {

constexpr Row kRowsABatch = 30'720;

std::optional<std::int64_t> given(std::int64_t value) {
  return value == TraceTable::kNone ? std::nullopt : std::optional(value);
}

// Rows as they were scanned, a batch at a time.
class RawRows : public ArrowSource {
 public:
  RawRows(std::shared_ptr<TraceTable> table, std::vector<bool> groups, std::vector<std::string> wanted)
      : table_(std::move(table)), groups_(std::move(groups)), row_(table_->first()) {
    const auto has = [&](std::string_view name) {
      return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    };
    const TraceTable& all = *table_;
    add("n", "l", [](Row row) { return std::optional<std::int64_t>(row); });
    add("grp", "l",
        [this](Row row) { return std::optional<std::int64_t>(table_->label(table_->label_of[row]).group); });
    if (has("name")) {
      add_text("name", nullptr, [this](Row row) { return table_->label(table_->label_of[row]).name; });
    }
    add("ts_ns", "l", [this](Row row) { return given(table_->ts_ns[row]); });
    if (has("dur_ns")) {
      add("dur_ns", "l", [this](Row row) { return given(table_->dur_ns[row]); });
    }
    if (has("id") && all.id.any()) {
      add_text("id", nullptr, [this](Row row) { return table_->id.get(row); });
    }
    if (has("bp") && all.binding.any()) {
      add_text("bp", nullptr, [this](Row row) { return table_->binding.get(row); });
    }
    if (has("args") && all.args.any()) {
      add_text("args", kJsonColumn, [this](Row row) { return table_->args.get(row); });
    }
    for (std::size_t i = 0; i < all.columns().size(); ++i) {
      if (has(all.columns()[i])) {
        add_field(i);
      }
    }
  }

  [[nodiscard]] const std::vector<ArrowColumn>& columns() const override { return columns_; }

  std::shared_ptr<const ArrowBatch> next() override {
    auto values = std::make_shared<Values>();
    values->integers.resize(integers_.size());
    values->texts.resize(texts_.size());
    std::int64_t count = 0;
    std::size_t text_bytes = 0;
    for (; row_ < table_->rows() && count < kRowsABatch && text_bytes < kTextABatch; ++row_) {
      if (!groups_[table_->label(table_->label_of[row_]).group]) {
        continue;
      }
      ++count;
      for (std::size_t i = 0; i < integers_.size(); ++i) {
        values->integers[i].add(integers_[i](row_));
      }
      for (std::size_t i = 0; i < texts_.size(); ++i) {
        const auto text = texts_[i](row_);
        values->texts[i].add(text);
        text_bytes += text ? text->size() : 0;
      }
    }
    return count == 0 ? nullptr : batch_of(std::move(values), count);
  }

 private:
  struct Values {
    std::vector<IntegerColumn> integers;
    std::vector<TextColumn> texts;
  };

  template <typename Get>
  void add(std::string name, const char* format, Get get) {
    columns_.push_back({std::move(name), format, {}, 0, nullptr});
    integers_.push_back(get);
  }
  template <typename Get>
  void add_text(std::string name, const char* metadata, Get get) {
    columns_.push_back({std::move(name), "u", {}, 0, metadata});
    texts_.push_back(get);
  }
  void add_field(std::size_t column) {
    const std::string& name = table_->columns()[column];
    const std::size_t place = table_->place_of(column);
    const ArgField::Type type = table_->types()[column];
    if (type == ArgField::Type::kLabel) {
      add(name, "l", [this, place](Row row) { return table_->spot(table_->label(table_->label_of[row]).spot)[place]; });
    } else if (type != ArgField::Type::kText) {
      if (table_->integers[place].any()) {
        add(name, type == ArgField::Type::kUint ? "L" : "l",
            [this, place](Row row) { return table_->integers[place].get(row); });
      }
    } else if (table_->texts[place].size() > 0) {
      add_text(name, nullptr, [this, place](Row row) -> std::optional<std::string_view> {
        const auto& numbers = table_->text_numbers[place];
        if (row >= numbers.size() || numbers[row] == Texts::kNone) {
          return std::nullopt;
        }
        return table_->texts[place][numbers[row]];
      });
    }
  }
  [[nodiscard]] std::shared_ptr<const ArrowBatch> batch_of(std::shared_ptr<Values> values, std::int64_t count) const {
    auto batch = std::make_shared<ArrowBatch>();
    batch->rows = count;
    std::size_t integer = 0, text = 0;
    for (const ArrowColumn& column : columns_) {
      batch->columns.push_back(*column.format == 'u' ? values->texts[text++].as(column.name, column.metadata)
                                                     : values->integers[integer++].as(column.name, column.format));
    }
    batch->owner = std::move(values);
    return batch;
  }

  std::shared_ptr<TraceTable> table_;
  std::vector<bool> groups_;
  Row row_;
  std::vector<ArrowColumn> columns_;
  std::vector<std::function<std::optional<std::int64_t>(Row)>> integers_;
  std::vector<std::function<std::optional<std::string_view>(Row)>> texts_;
};

}  // namespace

std::unique_ptr<ArrowSource> raw_rows(std::shared_ptr<TraceTable> table, std::vector<bool> groups,
                                      std::vector<std::string> wanted) {
  return std::make_unique<RawRows>(std::move(table), std::move(groups), std::move(wanted));
}

}  // namespace ral::trace
