#include "inputs.h"

#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <array>
#include <string>

namespace ral::trace {

namespace {

// What a value is to somebody who wants shapes.
enum class Sort : std::uint8_t { kOther, kNumber, kTensor, kTensors };

Sort sort_of(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? Sort::kTensor : Sort::kOther;
  }
  if (value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble() || value.isSymInt() ||
      value.isSymFloat() || value.isSymBool()) {
    return Sort::kNumber;
  }
  // Asked last: not inline.
  return value.isList() && (value.isTensorList() || value.isOptionalTensorList()) ? Sort::kTensors : Sort::kOther;
}

// Empty where asking would run Python, or where a kind of tensor has none.
c10::IntArrayRef sizes_of(const c10::TensorImpl& tensor) {
  if (tensor.has_symbolic_sizes_strides() || tensor.is_python_dispatch() || tensor.is_nested()) {
    return {};
  }
  try {
    return tensor.sizes();
  } catch (const c10::Error&) {
    return {};
  }
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  const unsigned __int128 product = static_cast<unsigned __int128>(hash ^ value) * 0x9fb21c651e98df25u;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// Each size times a number of its own, so that nothing waits for the product before it.
std::uint64_t hash_of(const c10::TensorImpl& tensor) {
  constexpr std::array<std::uint64_t, 4> kFactors = {0xd6e8feb86659fd93u, 0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu,
                                                     0x8ebc6af09c88c6e3u};
  const c10::IntArrayRef sizes = sizes_of(tensor);
  const auto dtype = static_cast<std::uint64_t>(c10::typeMetaToScalarType(tensor.dtype()));
  std::uint64_t hash = static_cast<std::uint64_t>(Sort::kTensor) | dtype << 8 | sizes.size() << 16;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    hash += static_cast<std::uint64_t>(sizes[i]) * kFactors[i % kFactors.size()];
    if (i % kFactors.size() == kFactors.size() - 1) {
      hash = mixed(hash, i);
    }
  }
  return hash;
}

std::uint64_t hash_of(const c10::IValue& value);

template <typename Values>
std::uint64_t hash_of_all(const Values& values) {
  std::uint64_t hash = values.size();
  for (std::size_t i = 0; i < values.size(); ++i) {
    hash += mixed(hash_of(values[i]), (i + 1) * 0x9e3779b97f4a7c15u);
  }
  return hash;
}

std::uint64_t hash_of(const c10::IValue& value) {
  switch (const Sort sort = sort_of(value); sort) {
    case Sort::kTensor:
      return hash_of(*value.toTensor().unsafeGetTensorImpl());
    case Sort::kTensors:
      return mixed(static_cast<std::uint64_t>(sort), hash_of_all(value.toListRef()));
    default:
      return static_cast<std::uint64_t>(sort);
  }
}

// One input's part of each list.
struct Description {
  std::string shape = "[]";
  std::string dtype = "\"\"";
};

Description described(const c10::IValue& value) {
  Description text;
  switch (sort_of(value)) {
    case Sort::kOther:
      break;
    case Sort::kNumber:
      text.dtype = "\"Scalar\"";
      break;
    case Sort::kTensor: {
      const c10::TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
      text.shape = "[";
      for (const std::int64_t size : sizes_of(tensor)) {
        text.shape.append(text.shape.size() > 1 ? "," : "").append(std::to_string(size));
      }
      text.shape += ']';
      text.dtype = '"' + std::string(c10::getDtypeNames(c10::typeMetaToScalarType(tensor.dtype())).first) + '"';
      break;
    }
    case Sort::kTensors: {
      text.shape = text.dtype = "[";
      for (const c10::IValue& item : value.toListRef()) {
        if (text.shape.size() > kMaxNameBytes) {
          break;  // will not fit: left out as a whole
        }
        const Description part = described(item);
        text.shape.append(text.shape.size() > 1 ? "," : "").append(part.shape);
        text.dtype.append(text.dtype.size() > 1 ? "," : "").append(part.dtype);
      }
      text.shape += ']';
      text.dtype += ']';
      break;
    }
  }
  return text;
}

std::string text_of(c10::ArrayRef<const c10::IValue> inputs) {
  // {"shapes":[],"dtypes":[],"more":18446744073709551615}
  constexpr std::size_t kAround = 64;
  std::string shapes;
  std::string dtypes;
  std::size_t taken = 0;
  for (; taken < inputs.size(); ++taken) {
    const Description part = described(inputs[taken]);
    if (shapes.size() + dtypes.size() + part.shape.size() + part.dtype.size() + 2 + kAround > kMaxNameBytes) {
      break;
    }
    shapes.append(taken > 0 ? "," : "").append(part.shape);
    dtypes.append(taken > 0 ? "," : "").append(part.dtype);
  }
  std::string text = "{\"shapes\":[" + shapes + "],\"dtypes\":[" + dtypes + "]";
  if (taken < inputs.size()) {
    text += ",\"more\":" + std::to_string(inputs.size() - taken);
  }
  return text + "}";
}

struct Block {
  std::uint64_t address = 0;  // 0: none, or of a device that is not ours to know
  std::int8_t device = kNoDevice;
};

Block block_of(const c10::TensorImpl& tensor) {
  if (!tensor.has_storage()) {
    return {};
  }
  // Not the accessors, which throw for a tensor without data, or make a private copy of a shared one.
  c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) {
    return {};
  }
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  const auto address = reinterpret_cast<std::uint64_t>(data.get());
  switch (data.device().type()) {
    case c10::DeviceType::CPU:
      return {address, kHostMemory};
    case c10::DeviceType::PrivateUse1:
      return {address, data.device().index()};
    default:
      return {};
  }
}

void emit_access(const WriterApi& api, const c10::IValue& value, std::uint64_t mode, std::uint64_t correlation) {
  switch (sort_of(value)) {
    case Sort::kTensor: {
      const Block block = block_of(*value.toTensor().unsafeGetTensorImpl());
      if (block.address == 0) {
        return;
      }
      Record record = make_record(Kind::kAccess, 0, block.device);
      record.correlation = correlation;
      record.arg0 = block.address;
      record.arg1 = mode;
      emit_instant(api, record);
      return;
    }
    case Sort::kTensors:
      for (const c10::IValue& item : value.toListRef()) {
        emit_access(api, item, mode, correlation);
      }
      return;
    default:
      return;
  }
}

}  // namespace

std::uint32_t ShapeTexts::of(c10::ArrayRef<const c10::IValue> inputs) {
  const std::uint64_t key = mixed(hash_of_all(inputs), 0x2545f4914f6cdd1du);
  Entry& entry = cache_[key % cache_.size()];
  if (entry.key != key || entry.id == 0) {
    const std::string text = text_of(inputs);
    entry = {key, api_.intern(text.data(), text.size())};
  }
  return entry.id;
}

void emit_inputs_used(const WriterApi& api, const c10::FunctionSchema& schema, c10::ArrayRef<const c10::IValue> inputs,
                      std::uint64_t correlation) {
  const auto& arguments = schema.arguments();
  for (std::size_t i = 0; i < inputs.size() && i < arguments.size(); ++i) {
    const c10::AliasInfo* alias = arguments[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    const std::uint64_t mode = !written ? kRead : arguments[i].is_out() ? kWrite : kRead | kWrite;
    emit_access(api, inputs[i], mode, correlation);
  }
}

void emit_outputs_made(const WriterApi& api, const c10::FunctionSchema& schema, const std::vector<c10::IValue>& outputs,
                       std::uint64_t correlation) {
  const auto& returns = schema.returns();
  for (std::size_t i = 0; i < outputs.size() && i < returns.size(); ++i) {
    // One that shares the memory of an input (a view; what an in-place op returns) was told of as that input.
    if (returns[i].alias_info() == nullptr) {
      emit_access(api, outputs[i], kWrite, correlation);
    }
  }
}

}  // namespace ral::trace
