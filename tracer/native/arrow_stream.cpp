#include "arrow_stream.h"

#include <cerrno>
#include <exception>
#include <utility>

namespace ral::trace {

namespace {

// Everything a structure points to lies in its owner. A consumer may move a child out and release its parent first, so
// each child has an owner of its own; the batch is shared by all.
using Batch = std::shared_ptr<const ArrowBatch>;

struct SchemaOwner {
  std::vector<ArrowSchema> children;
  std::vector<ArrowSchema*> pointers;
};

struct ArrayOwner {
  std::vector<ArrowArray> children;
  std::vector<ArrowArray*> pointers;
  const void* no_validity = nullptr;
};

struct ColumnOwner {
  Batch batch;
  std::vector<const void*> buffers;
};

struct StreamOwner {
  std::unique_ptr<ArrowSource> source;
  std::string error;
};

class OneBatch : public ArrowSource {
 public:
  explicit OneBatch(Batch batch) : batch_(std::move(batch)) {}
  [[nodiscard]] const std::vector<ArrowColumn>& columns() const override { return batch_->columns; }
  Batch next() override { return std::exchange(taken_, true) ? nullptr : batch_; }

 private:
  Batch batch_;
  bool taken_ = false;
};

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

int get_schema(ArrowArrayStream* stream, ArrowSchema* out) {
  auto owner = std::make_unique<SchemaOwner>();
  for (const ArrowColumn& column : static_cast<StreamOwner*>(stream->private_data)->source->columns()) {
    auto name = std::make_unique<std::string>(column.name);
    ArrowSchema child{column.format, name->c_str(), column.metadata, 0, 0, nullptr, nullptr, nullptr, nullptr};
    child.flags = 2;  // ARROW_FLAG_NULLABLE
    child.private_data = name.release();
    child.release = &release<ArrowSchema, std::string>;
    owner->children.push_back(child);
  }
  for (ArrowSchema& child : owner->children) {
    owner->pointers.push_back(&child);
  }
  const auto columns = static_cast<std::int64_t>(owner->children.size());
  *out = {"+s",   "", nullptr, 0, columns, owner->pointers.data(), nullptr, &release_parent<ArrowSchema, SchemaOwner>,
          nullptr};
  out->private_data = owner.release();
  return 0;
}

int get_next(ArrowArrayStream* stream, ArrowArray* out) {
  auto* from = static_cast<StreamOwner*>(stream->private_data);
  *out = {};  // the end: an array without a release function
  Batch batch;
  try {
    batch = from->source->next();
  } catch (const std::exception& error) {
    from->error = error.what();
    return EIO;
  }
  if (batch == nullptr) {
    return 0;
  }
  auto owner = std::make_unique<ArrayOwner>();
  for (const ArrowColumn& column : batch->columns) {
    auto one = std::make_unique<ColumnOwner>(ColumnOwner{batch, column.buffers});
    ArrowArray child{batch->rows, column.nulls, 0,       static_cast<std::int64_t>(one->buffers.size()),
                     0,           nullptr,      nullptr, nullptr,
                     nullptr,     nullptr};
    child.buffers = one->buffers.data();
    child.release = &release<ArrowArray, ColumnOwner>;
    child.private_data = one.release();
    owner->children.push_back(child);
  }
  for (ArrowArray& child : owner->children) {
    owner->pointers.push_back(&child);
  }
  const auto columns = static_cast<std::int64_t>(owner->children.size());
  *out = {batch->rows,
          0,
          0,
          1,
          columns,
          &owner->no_validity,
          owner->pointers.data(),
          nullptr,
          &release_parent<ArrowArray, ArrayOwner>,
          nullptr};
  out->private_data = owner.release();
  return 0;
}

template <typename T>
ArrowColumn plain(const char* name, const char* format, const std::vector<T>& values) {
  return {name, format, {nullptr, values.data()}, 0, nullptr};
}

}  // namespace

void export_stream(std::unique_ptr<ArrowSource> source, ArrowArrayStream* out) {
  auto owner = std::make_unique<StreamOwner>(StreamOwner{std::move(source), {}});
  const auto get_error = [](ArrowArrayStream* stream) -> const char* {
    return static_cast<StreamOwner*>(stream->private_data)->error.c_str();
  };
  *out = {&get_schema, &get_next, get_error, &release<ArrowArrayStream, StreamOwner>, owner.release()};
}

void export_stream(std::shared_ptr<const ArrowBatch> batch, ArrowArrayStream* out) {
  export_stream(std::make_unique<OneBatch>(std::move(batch)), out);
}

void export_stream(std::shared_ptr<const Columns> columns, ArrowArrayStream* out) {
  const Columns& all = *columns;
  auto batch = std::make_shared<ArrowBatch>();
  batch->rows = static_cast<std::int64_t>(all.rows());
  batch->columns = {
      plain("process", "i", all.process), plain("tid", "I", all.tid),       plain("kind", "C", all.kind),
      plain("ts_ns", "l", all.ts_ns),     plain("dur_ns", "l", all.dur_ns), plain("correlation", "l", all.correlation),
      plain("bytes", "l", all.bytes),     plain("arg0", "L", all.arg0),     plain("arg1", "L", all.arg1),
      plain("name", "I", all.name),       plain("stack", "I", all.stack),   plain("device", "c", all.device),
      plain("stream", "C", all.stream),   plain("flags", "C", all.flags),
  };
  batch->owner = std::move(columns);
  export_stream(std::shared_ptr<const ArrowBatch>(std::move(batch)), out);
}

}  // namespace ral::trace
