#include "results.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>

#include <algorithm>

#include "hooks.h"

namespace ral {

namespace {

class Learner {
 public:
  Learner(const Call& call, const Outcome& outcome) : call_(call), outcome_(outcome) {}

  Learnt learn() {
    resized_arguments();
    for (std::size_t i = 0; i < outcome_.results.size(); ++i) {
      add_return(call_.op().return_argument(i), outcome_.results[i]);
    }
    return std::move(learnt_);
  }

 private:
  void add_return(int argument, const c10::IValue& value) {
    ReturnLayout& result = learnt_.layout.returns.emplace_back();
    result.argument = argument;
    result.first = static_cast<std::uint32_t>(learnt_.layout.tensors.size());
    if (argument >= 0) {
      return;
    }
    if (value.isTensor() || value.isNone()) {
      result.count = 1;
      add_tensor(value.isNone() ? at::Tensor() : value.toTensor());
    } else if (value.isTensorList()) {
      result.list = true;
      for (const at::Tensor& tensor : value.toTensorList()) {
        ++result.count;
        add_tensor(tensor);
      }
    } else {
      learnt_.complete = false;
    }
  }

  void add_tensor(const at::Tensor& result) {
    TensorLayout layout;
    if (result.defined()) {
      check_holdable(call_.op(), result);
      const bool lazy = result.is_conj() || result.is_neg();
      const at::Tensor tensor = lazy ? result.resolve_conj().resolve_neg() : result;
      learnt_.complete = learnt_.complete && !lazy;
      layout = describe(tensor);
      locate(tensor, layout);
    }
    learnt_.layout.tensors.push_back(std::move(layout));
  }

  static TensorLayout describe(const at::Tensor& tensor) {
    TensorLayout layout;
    layout.from = TensorLayout::From::kFresh;
    layout.offset = tensor.storage_offset();
    layout.dtype = tensor.scalar_type();
    layout.sizes = c10::DimVector(tensor.sizes());
    layout.strides = c10::DimVector(tensor.strides());
    return layout;
  }

  void locate(const at::Tensor& tensor, TensorLayout& layout) {
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    for (std::size_t i = 0; i < outcome_.arguments.size(); ++i) {
      const at::Tensor& argument = outcome_.arguments[i];
      if (argument.defined() && call_.tensors()[i].where == TensorDesc::Where::kDevice &&
          argument.storage().unsafeGetStorageImpl() == storage) {
        layout.from = TensorLayout::From::kArgument;
        layout.source = static_cast<std::uint32_t>(i);
        layout.offset -= argument.storage_offset();
        layout.same = argument.is_same(tensor);
        return;
      }
    }
    for (std::size_t i = 0; i < learnt_.fresh.size(); ++i) {
      if (learnt_.fresh[i].unsafeGetStorageImpl() == storage) {
        layout.source = static_cast<std::uint32_t>(i);
        return;
      }
    }
    layout.source = static_cast<std::uint32_t>(learnt_.fresh.size());
    learnt_.fresh.push_back(tensor.storage());
    learnt_.layout.storages.push_back(tensor.storage().nbytes());
  }

  void resized_arguments() {
    call_.for_each_argument([&](const ArgSpec& spec, std::size_t first, std::size_t count) {
      for (std::size_t i = first; spec.written && i < first + count; ++i) {
        const TensorDesc& desc = call_.tensors()[i];
        const at::Tensor& tensor = outcome_.arguments[i];
        if (desc.where != TensorDesc::Where::kDevice ||
            (tensor.storage().nbytes() == desc.storage_bytes && tensor.sizes() == call_.sizes(desc) &&
             tensor.strides() == call_.strides(desc) && tensor.storage_offset() == desc.offset)) {
          continue;
        }
        check_not_in_place(i);
        learnt_.layout.resized.push_back({static_cast<std::uint32_t>(i), tensor.storage().nbytes(), describe(tensor)});
        learnt_.resized.push_back(tensor.storage());
        learnt_.complete = learnt_.complete && spec.out;
      }
    });
  }

  // An output that is an input too keeps its size. Boxed, some kernels do not see that it is.
  void check_not_in_place(std::size_t index) const {
    for (std::size_t i = 0; i < outcome_.arguments.size(); ++i) {
      TORCH_CHECK(i == index || !outcome_.arguments[i].is_same(outcome_.arguments[index]), "output with shape ",
                  call_.sizes(call_.tensors()[index]), " doesn't match the broadcast shape ",
                  outcome_.arguments[index].sizes(), " (", call_.op().name().text(), ")");
    }
  }

  const Call& call_;
  const Outcome& outcome_;
  Learnt learnt_;
};

// torch's argument behind a tensor of the call.
at::Tensor argument_tensor(const Call& call, const Stack& stack, std::size_t index) {
  const std::size_t bottom = stack.size() - call.op().argument_count();
  at::Tensor found;
  call.for_each_argument([&](const ArgSpec& spec, std::size_t first, std::size_t count) {
    if (index < first || index >= first + count) {
      return;
    }
    const c10::IValue& value = stack[bottom + spec.position];
    found = spec.kind == ArgKind::kTensor ? value.toTensor() : value.toListRef()[index - first].toTensor();
  });
  return found;
}

// As torch resizes an out= argument: where it begins stays, and its storage grows where it is too small.
HandOut::Place resize(const at::Tensor& tensor, const TensorLayout& layout) {
  const std::int64_t offset = tensor.storage_offset();
  const std::size_t bytes = at::detail::computeStorageNbytes(layout.sizes, layout.strides, tensor.itemsize(),
                                                             static_cast<std::size_t>(offset));
  if (bytes > tensor.storage().nbytes()) {
    resize_storage(tensor.storage(), bytes);
  }
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides, offset);
  return {const_cast<void*>(tensor.storage().data()), tensor.storage().nbytes(), false};
}

bool lies_in_a_place(const at::Tensor& tensor, c10::ArrayRef<HandOut::Place> places) {
  return std::any_of(places.begin(), places.end(), [&](const HandOut::Place& place) {
    return place.bytes != 0 && place.data == tensor.storage().data();
  });
}

}  // namespace

void check_holdable(const Operator& op, const at::Tensor& tensor) {
  const char* what = tensor.is_nested()                 ? "nested"
                     : tensor.is_quantized()            ? "quantised"
                     : tensor.layout() == c10::kSparse  ? "sparse"
                     : tensor.layout() != c10::kStrided ? "compressed"
                                                        : nullptr;
  TORCH_CHECK_NOT_IMPLEMENTED(what == nullptr, op.name().text(), " makes a ", what,
                              " tensor, and ral devices hold strided tensors only: make it on the CPU");
}

Learnt learn(const Call& call, const Outcome& outcome) { return Learner(call, outcome).learn(); }

Results make_results(const Layout& layout, Call& call, const Stack& stack) {
  Results results;
  Device& device = call.device();
  for (const Resized& resized : layout.resized) {
    const at::Tensor tensor = argument_tensor(call, stack, resized.tensor);
    results.resized.push_back(resize(tensor, resized.layout));
    call.set_layout(resized.tensor, results.resized.back().data, results.resized.back().bytes, resized.layout,
                    tensor.storage_offset());
  }
  c10::SmallVector<c10::Storage, 2> storages;
  for (const std::size_t bytes : layout.storages) {
    storages.push_back(device_storage(device, bytes));
    results.places.push_back({const_cast<void*>(storages.back().data()), bytes, false});
  }
  const auto tensor = [&](const TensorLayout& result) -> at::Tensor {
    if (result.from == TensorLayout::From::kUndefined) {
      return at::Tensor();
    }
    if (result.from == TensorLayout::From::kFresh) {
      return make_tensor(storages[result.source], c10::scalarTypeToTypeMeta(result.dtype), result.sizes, result.strides,
                         result.offset);
    }
    const at::Tensor argument = argument_tensor(call, stack, result.source);
    return result.same ? argument
                       : make_tensor(argument.storage(), c10::scalarTypeToTypeMeta(result.dtype), result.sizes,
                                     result.strides, argument.storage_offset() + result.offset);
  };
  const std::size_t bottom = stack.size() - call.op().argument_count();
  for (const ReturnLayout& result : layout.returns) {
    if (result.argument >= 0) {
      results.values.push_back(stack[bottom + static_cast<std::size_t>(result.argument)]);
    } else if (!result.list && result.count == 0) {
      results.values.emplace_back();
    } else if (!result.list) {
      results.values.emplace_back(tensor(layout.tensors[result.first]));
    } else {
      c10::List<at::Tensor> list;
      for (std::uint32_t i = 0; i < result.count; ++i) {
        list.push_back(tensor(layout.tensors[result.first + i]));
      }
      results.values.emplace_back(std::move(list));
    }
  }
  return results;
}

void settle(const Layout& layout, const Stack& results, c10::ArrayRef<HandOut::Place> places) {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (layout.returns[i].argument >= 0) {
      continue;
    }
    if (results[i].isTensorList()) {
      for (const at::Tensor& tensor : results[i].toTensorList()) {
        tensors.push_back(tensor);
      }
    } else {
      tensors.push_back(results[i].isTensor() ? results[i].toTensor() : at::Tensor());
    }
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> elsewhere;
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const TensorLayout& expected = layout.tensors[i];
    if (expected.from != TensorLayout::From::kFresh) {
      continue;
    }
    const HandOut::Place& place = places[expected.source];
    if (i >= tensors.size() || !tensors[i].defined() || tensors[i].sizes() != expected.sizes) {
      throw std::runtime_error("the result has another shape than the same call had before");
    }
    // Another dtype: the program changed the default one between the launch and the kernel.
    if (tensors[i].storage().data() != place.data || tensors[i].strides() != expected.strides ||
        tensors[i].storage_offset() != expected.offset || tensors[i].scalar_type() != expected.dtype) {
      at::Tensor target = cpu_tensor(storage_over(place.data, place.bytes), expected.dtype, expected.sizes,
                                     expected.strides, expected.offset);
      // Two results may have been born in each other's place.
      elsewhere.emplace_back(std::move(target), lies_in_a_place(tensors[i], places)
                                                    ? at::_ops::clone::call(tensors[i], std::nullopt)
                                                    : tensors[i]);
    }
  }
  for (auto& [target, result] : elsewhere) {
    at::_ops::copy_::call(target, result, false);
  }
}

std::int64_t fresh_bytes(const Layout& layout) {
  std::int64_t bytes = 0;
  for (const TensorLayout& tensor : layout.tensors) {
    if (tensor.from == TensorLayout::From::kFresh) {
      bytes += static_cast<std::int64_t>(c10::multiply_integers(tensor.sizes) *
                                         static_cast<std::int64_t>(c10::elementSize(tensor.dtype)));
    }
  }
  return bytes;
}

void put_results(const Operator& op, Stack& stack, Stack&& results) {
  stack.erase(stack.end() - static_cast<std::ptrdiff_t>(op.argument_count()), stack.end());
  stack.insert(stack.end(), std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
}

}  // namespace ral
