#include "shape_rules.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>

#include <unordered_map>

#include "alias.h"

namespace ral {

namespace {

using Outputs = std::vector<at::Tensor>;

class Arguments {
 public:
  Arguments(Device& device, const Stack& stack, std::size_t count)
      : device_(device), values_(stack.data() + (stack.size() - count)) {}

  const at::Tensor& tensor(std::size_t i) const { return values_[i].toTensor(); }
  bool has_tensor(std::size_t i) const { return values_[i].isTensor() && values_[i].toTensor().defined(); }
  std::int64_t integer(std::size_t i) const { return values_[i].toInt(); }
  std::vector<std::int64_t> integers(std::size_t i) const { return values_[i].toIntVector(); }
  bool flag(std::size_t i, std::size_t j) const { return values_[i].toBoolList()[j]; }

  at::Tensor make(c10::IntArrayRef sizes, caffe2::TypeMeta dtype) const {
    const std::size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, dtype.itemsize());
    static c10::Allocator* const allocator = c10::GetAllocator(kRal);
    c10::Storage storage =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                              allocate_on(device_, bytes, device_.torch_device()), allocator, true);
    at::Tensor result = make_tensor(std::move(storage), dtype, {0}, {1}, 0);
    result.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return result;
  }
  at::Tensor like(std::size_t i) const { return make(tensor(i).sizes(), tensor(i).dtype()); }

 private:
  Device& device_;
  const c10::IValue* values_;
};

using Rule = std::optional<Outputs> (*)(const Arguments&);

std::optional<Outputs> same_as_first(const Arguments& a) { return Outputs{a.like(0)}; }

// (input, normalized_shape, weight, bias, eps) → output, mean, rstd
std::optional<Outputs> native_layer_norm(const Arguments& a) {
  const auto normalized = a.integers(1);
  at::DimVector sizes(a.tensor(0).sizes());
  if (normalized.size() > sizes.size()) {
    return std::nullopt;
  }
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(normalized.size()), sizes.end(), 1);
  return Outputs{a.like(0), a.make(sizes, a.tensor(0).dtype()), a.make(sizes, a.tensor(0).dtype())};
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask) → three gradients
std::optional<Outputs> native_layer_norm_backward(const Arguments& a) {
  const auto normalized = a.integers(2);
  const auto& dtype = a.tensor(1).dtype();
  return Outputs{a.flag(7, 0) ? a.like(1) : at::Tensor(),
                 a.flag(7, 1) && a.has_tensor(5) ? a.make(normalized, dtype) : at::Tensor(),
                 a.flag(7, 2) && a.has_tensor(6) ? a.make(normalized, dtype) : at::Tensor()};
}

// (grad, indices, num_weights, padding_idx, scale_grad_by_freq)
std::optional<Outputs> embedding_dense_backward(const Arguments& a) {
  const at::Tensor& grad = a.tensor(0);
  if (grad.dim() == 0) {
    return std::nullopt;
  }
  return Outputs{a.make({a.integer(2), grad.size(-1)}, grad.dtype())};
}

// (condition, self, other)
std::optional<Outputs> where(const Arguments& a) {
  if (a.tensor(1).dtype() != a.tensor(2).dtype()) {
    return std::nullopt;
  }
  const auto both = at::infer_size_dimvector(a.tensor(1).sizes(), a.tensor(2).sizes());
  return Outputs{a.make(at::infer_size_dimvector(a.tensor(0).sizes(), both), a.tensor(1).dtype())};
}

// (self, dim, index)
std::optional<Outputs> index_select(const Arguments& a) {
  at::DimVector sizes(a.tensor(0).sizes());
  const std::int64_t rank = a.tensor(0).dim();
  const std::int64_t dim = a.integer(1) < 0 ? a.integer(1) + rank : a.integer(1);
  if (dim < 0 || dim >= rank || a.tensor(2).dim() > 1) {
    return std::nullopt;
  }
  sizes[static_cast<std::size_t>(dim)] = a.tensor(2).numel();
  return Outputs{a.make(sizes, a.tensor(0).dtype())};
}

// (self, vector)
std::optional<Outputs> dot(const Arguments& a) { return Outputs{a.make({}, a.tensor(0).dtype())}; }

const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> table = {
      {"aten::native_layer_norm", native_layer_norm},
      {"aten::native_layer_norm_backward", native_layer_norm_backward},
      {"aten::embedding_dense_backward", embedding_dense_backward},
      {"aten::where.self", where},
      {"aten::index_select", index_select},
      {"aten::relu", same_as_first},
      {"aten::dot", dot},
  };
  return table;
}

}  // namespace

bool has_empty_output(const std::string& op) { return op == "aten::abs.out"; }

std::optional<Outputs> make_outputs(const std::string& op, Device& device, const Stack& stack,
                                    std::size_t argument_count) {
  const auto rule = rules().find(op);
  return rule == rules().end() ? std::nullopt : rule->second(Arguments(device, stack, argument_count));
}

}  // namespace ral
