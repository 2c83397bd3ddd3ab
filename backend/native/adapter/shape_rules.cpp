#include "shape_rules.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>

#include <unordered_map>
#include <unordered_set>

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
  bool has(std::size_t i) const { return !values_[i].isNone(); }
  bool boolean(std::size_t i) const { return values_[i].toBool(); }
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
  std::vector<at::Tensor> list(std::size_t i) const { return values_[i].toTensorVector(); }
  at::Tensor like(const at::Tensor& tensor) const { return make(tensor.sizes(), tensor.dtype()); }
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

// One output for each tensor of the list.
std::optional<Outputs> same_as_list(const Arguments& a) {
  Outputs outputs;
  for (const at::Tensor& tensor : a.list(0)) {
    outputs.push_back(a.like(tensor));
  }
  return outputs;
}

std::optional<Outputs> scalar_of_each(const Arguments& a) {
  Outputs outputs;
  for (const at::Tensor& tensor : a.list(0)) {
    outputs.push_back(a.make({}, tensor.dtype()));
  }
  return outputs;
}

std::optional<Outputs> twice_the_first(const Arguments& a) { return Outputs{a.like(0), a.like(0)}; }
std::optional<Outputs> same_as_second(const Arguments& a) { return Outputs{a.like(1)}; }
std::optional<Outputs> scalar(const Arguments& a) { return Outputs{a.make({}, a.tensor(0).dtype())}; }

// (self, target, …, reduction at `position`)
Outputs loss(const Arguments& a, std::size_t position) {
  return {a.integer(position) == 0 ? a.like(0) : a.make({}, a.tensor(0).dtype())};
}
std::optional<Outputs> huber_loss(const Arguments& a) { return loss(a, 2); }
std::optional<Outputs> binary_cross_entropy(const Arguments& a) { return loss(a, 3); }

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
std::optional<Outputs> convolution(const Arguments& a) {
  const auto kernel = a.tensor(1).sizes();
  const auto stride = a.integers(3);
  const auto padding = a.integers(4);
  const auto dilation = a.integers(5);
  at::DimVector sizes(a.tensor(0).sizes());
  if (a.boolean(6) || sizes.size() != 4 || kernel.size() != 4 || stride.size() != 2 || padding.size() != 2 ||
      dilation.size() != 2) {
    return std::nullopt;
  }
  sizes[1] = kernel[0];
  for (std::size_t d = 0; d < 2; ++d) {
    sizes[d + 2] = (sizes[d + 2] + 2 * padding[d] - dilation[d] * (kernel[d + 2] - 1) - 1) / stride[d] + 1;
  }
  return Outputs{a.make(sizes, a.tensor(0).dtype())};
}

// (grad_output, input, weight, …, output_mask)
std::optional<Outputs> convolution_backward(const Arguments& a) {
  return Outputs{a.flag(9, 0) ? a.like(1) : at::Tensor(), a.flag(9, 1) ? a.like(2) : at::Tensor(),
                 a.flag(9, 2) ? a.make({a.tensor(2).size(0)}, a.tensor(0).dtype()) : at::Tensor()};
}

// (input, weight, bias, running_mean, running_var, training, …) → output, mean, 1/deviation
std::optional<Outputs> native_batch_norm(const Arguments& a) {
  if (a.tensor(0).dim() < 2) {
    return std::nullopt;
  }
  const std::int64_t channels = a.boolean(5) ? a.tensor(0).size(1) : 0;
  const auto& dtype = a.tensor(0).dtype();
  return Outputs{a.like(0), a.make({channels}, dtype), a.make({channels}, dtype)};
}

// (grad_out, input, weight, …, output_mask at `mask`) → three gradients, of `channels` parameters
Outputs norm_gradients(const Arguments& a, std::int64_t channels, std::size_t mask) {
  const auto& dtype = a.tensor(1).dtype();
  return {a.flag(mask, 0) ? a.like(1) : at::Tensor(), a.flag(mask, 1) ? a.make({channels}, dtype) : at::Tensor(),
          a.flag(mask, 2) ? a.make({channels}, dtype) : at::Tensor()};
}
std::optional<Outputs> native_batch_norm_backward(const Arguments& a) {
  return norm_gradients(a, a.tensor(1).size(1), 9);
}
std::optional<Outputs> native_group_norm_backward(const Arguments& a) { return norm_gradients(a, a.integer(6), 9); }

// (input, weight, bias, N, C, HxW, group, eps) → output, mean, 1/deviation
std::optional<Outputs> native_group_norm(const Arguments& a) {
  const auto& dtype = a.tensor(0).dtype();
  return Outputs{a.like(0), a.make({a.integer(3), a.integer(6)}, dtype), a.make({a.integer(3), a.integer(6)}, dtype)};
}

// (self, output_size)
std::optional<Outputs> adaptive_avg_pool2d(const Arguments& a) {
  at::DimVector sizes(a.tensor(0).sizes());
  const auto last = a.integers(1);
  if (sizes.size() < 3 || last.size() != 2) {
    return std::nullopt;
  }
  std::copy(last.begin(), last.end(), sizes.end() - 2);
  return Outputs{a.make(sizes, a.tensor(0).dtype())};
}

// (self, target, weight, reduction, ignore_index) → output, total_weight
std::optional<Outputs> nll_loss2d_forward(const Arguments& a) {
  const auto& dtype = a.tensor(0).dtype();
  return Outputs{a.integer(3) == 0 ? a.make(a.tensor(1).sizes(), dtype) : a.make({}, dtype), a.make({}, dtype)};
}

// (self, dim, …, keepdim at 3)
std::optional<Outputs> reduced(const Arguments& a) {
  std::vector<bool> gone(static_cast<std::size_t>(a.tensor(0).dim()), !a.has(1) || a.integers(1).empty());
  for (const std::int64_t dim : a.has(1) ? a.integers(1) : std::vector<std::int64_t>()) {
    gone.at(static_cast<std::size_t>(dim < 0 ? dim + a.tensor(0).dim() : dim)) = true;
  }
  at::DimVector sizes;
  for (std::size_t d = 0; d < gone.size(); ++d) {
    if (!gone[d] || a.boolean(3)) {
      sizes.push_back(gone[d] ? 1 : a.tensor(0).sizes()[d]);
    }
  }
  return Outputs{a.make(sizes, a.tensor(0).dtype())};
}

const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> table = {
      {"aten::_adaptive_avg_pool2d", adaptive_avg_pool2d},
      {"aten::_adaptive_avg_pool2d_backward", same_as_second},
      {"aten::_foreach_add.List", same_as_list},
      {"aten::_foreach_add.Scalar", same_as_list},
      {"aten::_foreach_div.List", same_as_list},
      {"aten::_foreach_div.Scalar", same_as_list},
      {"aten::_foreach_mul.List", same_as_list},
      {"aten::_foreach_mul.Scalar", same_as_list},
      {"aten::_foreach_mul.Tensor", same_as_list},
      {"aten::_foreach_neg", same_as_list},
      {"aten::_foreach_norm.Scalar", scalar_of_each},
      {"aten::_foreach_sqrt", same_as_list},
      {"aten::_foreach_sub.List", same_as_list},
      {"aten::binary_cross_entropy", binary_cross_entropy},
      {"aten::binary_cross_entropy_backward", same_as_second},
      {"aten::convolution_backward_overrideable", convolution_backward},
      {"aten::convolution_overrideable", convolution},
      {"aten::hardswish", same_as_first},
      {"aten::hardtanh", same_as_first},
      {"aten::hardtanh_backward", same_as_first},
      {"aten::huber_loss", huber_loss},
      {"aten::log_sigmoid_backward", same_as_first},
      {"aten::log_sigmoid_forward", twice_the_first},
      {"aten::max", scalar},
      {"aten::min", scalar},
      {"aten::mse_loss_backward", same_as_second},
      {"aten::native_batch_norm", native_batch_norm},
      {"aten::native_batch_norm_backward", native_batch_norm_backward},
      {"aten::native_dropout_backward", same_as_first},
      {"aten::native_group_norm", native_group_norm},
      {"aten::native_group_norm_backward", native_group_norm_backward},
      {"aten::nll_loss2d_backward", same_as_second},
      {"aten::nll_loss2d_forward", nll_loss2d_forward},
      {"aten::std.correction", reduced},
      {"aten::var.correction", reduced},
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

bool has_empty_output(const std::string& op) {
  static const std::unordered_set<std::string> names = {"aten::abs.out", "aten::logical_not.out",
                                                        "aten::logical_and.out", "aten::logical_or.out"};
  return names.count(op) != 0;
}

std::optional<Outputs> make_outputs(const std::string& op, Device& device, const Stack& stack,
                                    std::size_t argument_count) {
  const auto rule = rules().find(op);
  return rule == rules().end() ? std::nullopt : rule->second(Arguments(device, stack, argument_count));
}

}  // namespace ral
