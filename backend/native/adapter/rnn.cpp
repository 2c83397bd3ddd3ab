// The fused cells of LSTM and GRU, which torch asks of every device but the CPU: written with the operators that it
// also knows.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tanh.h>
#include <torch/library.h>

#include <tuple>

namespace ral {

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

Tensor with_bias(const Tensor& gates, const MaybeTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor bias_gradient(const Tensor& gates, bool wanted) { return wanted ? gates.sum(at::IntArrayRef{0}) : Tensor(); }

// s * (1 - s): the slope of a sigmoid whose value is s.
Tensor sigmoid_slope(const Tensor& s) { return s * (1 - s); }
Tensor tanh_slope(const Tensor& t) { return 1 - t * t; }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                             const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const Tensor in = gates[0].sigmoid();
  const Tensor forget = gates[1].sigmoid();
  const Tensor cell = gates[2].tanh();
  const Tensor out = gates[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy, const Tensor& workspace,
                                                      bool has_bias) {
  const auto gates = workspace.chunk(4, 1);
  const Tensor& in = gates[0];
  const Tensor& forget = gates[1];
  const Tensor& cell = gates[2];
  const Tensor& out = gates[3];
  const Tensor tanh_cy = cy.tanh();
  const bool has_hy = grad_hy.has_value() && grad_hy->defined();
  const bool has_cy = grad_cy.has_value() && grad_cy->defined();
  if (!has_hy && !has_cy) {
    return {};
  }
  Tensor grad_cell = has_hy ? *grad_hy * out * tanh_slope(tanh_cy) : *grad_cy;
  if (has_hy && has_cy) {
    grad_cell = grad_cell + *grad_cy;
  }
  const Tensor grad_out = has_hy ? *grad_hy * tanh_cy * sigmoid_slope(out) : out * 0;
  const Tensor grad_gates = at::cat({grad_cell * cell * sigmoid_slope(in), grad_cell * cx * sigmoid_slope(forget),
                                     grad_cell * in * tanh_slope(cell), grad_out},
                                    1);
  return {grad_gates, grad_cell * forget, bias_gradient(grad_gates, has_bias)};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (from_input[0] + from_hidden[0]).sigmoid();
  const Tensor update = (from_input[1] + from_hidden[1]).sigmoid();
  const Tensor fresh = (from_input[2] + reset * from_hidden[2]).tanh();
  return {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy, const Tensor& workspace,
                                                                     bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor& reset = saved[0];
  const Tensor& update = saved[1];
  const Tensor& fresh = saved[2];
  const Tensor grad_update = grad_hy * (saved[3] - fresh) * sigmoid_slope(update);
  const Tensor grad_fresh = grad_hy * (1 - update) * tanh_slope(fresh);
  const Tensor grad_reset = grad_fresh * saved[4] * sigmoid_slope(reset);
  const Tensor grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  return {grad_input, grad_hidden, grad_hy * update, bias_gradient(grad_input, has_bias),
          bias_gradient(grad_hidden, has_bias)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace ral
