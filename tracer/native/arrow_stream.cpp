#include "arrow_stream.h"

#include <array>
#include <utility>

namespace ral::trace {

namespace {

struct Field {
  const char* name;
  const char* format;  // as the Arrow C interface writes types
  const void* (*data)(const Columns&);
};

template <auto Member>
const void* data_of(const Columns& columns) {
  return (columns.*Member).data();
}

constexpr std::array<Field, 14> kFields = {{
    {"process", "i", &data_of<&Columns::process>},
    {"tid", "I", &data_of<&Columns::tid>},
    {"kind", "C", &data_of<&Columns::kind>},
    {"ts_ns", "l", &data_of<&Columns::ts_ns>},
    {"dur_ns", "l", &data_of<&Columns::dur_ns>},
    {"correlation", "l", &data_of<&Columns::correlation>},
    {"bytes", "l", &data_of<&Columns::bytes>},
    {"arg0", "L", &data_of<&Columns::arg0>},
    {"arg1", "L", &data_of<&Columns::arg1>},
    {"name", "I", &data_of<&Columns::name>},
    {"stack", "I", &data_of<&Columns::stack>},
    {"device", "c", &data_of<&Columns::device>},
    {"stream", "C", &data_of<&Columns::stream>},
    {"flags", "C", &data_of<&Columns::flags>},
}};

// Everything a structure points to lies in its owner. A consumer may move a child out and release its parent first, so
// each child has an owner of its own.
struct SchemaOwner {
  std::array<ArrowSchema, kFields.size()> children{};
  std::array<ArrowSchema*, kFields.size()> pointers{};
};

struct ColumnOwner {
  std::shared_ptr<const Columns> columns;
  std::array<const void*, 2> buffers{};
};

struct ArrayOwner {
  std::array<ArrowArray, kFields.size()> children{};
  std::array<ArrowArray*, kFields.size()> pointers{};
  std::array<const void*, 1> no_validity{nullptr};
};

struct StreamOwner {
  std::shared_ptr<const Columns> columns;
};

// Names and formats are literals: a child schema owns nothing.
void release_leaf(ArrowSchema* schema) { schema->release = nullptr; }

template <typename T, typename Owner>
void release(T* structure) {
  const std::unique_ptr<Owner> owner(static_cast<Owner*>(structure->private_data));
  structure->release = nullptr;
}

template <typename T, typename Owner>
void release_parent(T* parent) {
  for (T& child : static_cast<Owner*>(parent->private_data)->children) {
    if (child.release != nullptr) {
      child.release(&child);
    }
  }
  release<T, Owner>(parent);
}

int get_schema(ArrowArrayStream* /*stream*/, ArrowSchema* out) {
  auto owner = std::make_unique<SchemaOwner>();
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    owner->children[i] = {kFields[i].format, kFields[i].name, nullptr, 0, 0, nullptr, nullptr, &release_leaf, nullptr};
    owner->pointers[i] = &owner->children[i];
  }
  constexpr auto columns = static_cast<std::int64_t>(kFields.size());
  *out = {"+s",   "", nullptr, 0, columns, owner->pointers.data(), nullptr, &release_parent<ArrowSchema, SchemaOwner>,
          nullptr};
  out->private_data = owner.release();
  return 0;
}

int get_next(ArrowArrayStream* stream, ArrowArray* out) {
  auto* source = static_cast<StreamOwner*>(stream->private_data);
  if (source->columns == nullptr) {
    *out = {};  // the end: an array without a release function
    return 0;
  }
  const std::shared_ptr<const Columns> columns = std::exchange(source->columns, nullptr);
  const auto rows = static_cast<std::int64_t>(columns->rows());
  auto owner = std::make_unique<ArrayOwner>();
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    auto column = std::make_unique<ColumnOwner>(ColumnOwner{columns, {nullptr, kFields[i].data(*columns)}});
    owner->children[i] = {
        rows, 0, 0, 2, 0, column->buffers.data(), nullptr, nullptr, &release<ArrowArray, ColumnOwner>, nullptr};
    owner->children[i].private_data = column.release();
    owner->pointers[i] = &owner->children[i];
  }
  constexpr auto fields = static_cast<std::int64_t>(kFields.size());
  *out = {rows,
          0,
          0,
          1,
          fields,
          owner->no_validity.data(),
          owner->pointers.data(),
          nullptr,
          &release_parent<ArrowArray, ArrayOwner>,
          nullptr};
  out->private_data = owner.release();
  return 0;
}

}  // namespace

void export_stream(std::shared_ptr<const Columns> columns, ArrowArrayStream* out) {
  auto owner = std::make_unique<StreamOwner>(StreamOwner{std::move(columns)});
  *out = {&get_schema, &get_next, [](ArrowArrayStream*) -> const char* { return nullptr; },
          &release<ArrowArrayStream, StreamOwner>, owner.release()};
}

}  // namespace ral::trace
