// Matrix products. bfloat16 and float16 add up in float32 and round once; int8 wraps around, as torch's does.
#include "gemm.h"

namespace ral::sim {

namespace {

Matrix matrix(const ral_tensor& t, Index batch) {
  const Index offset = t.ndim == 3 ? batch * t.strides[0] : 0;
  return {bytes(t) + offset * item_size(t.dtype), t.dtype, t.strides[t.ndim - 2], t.strides[t.ndim - 1]};
}

RAL_WIDE void scale_run(const float* from, float by, Index count, float* to) {
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    to[i] = by * from[i];
  }
}

// Sums of the output's shape, of a type that they fit in. They are the output's own memory where that is float32.
template <class Sum>
class Sums {
 public:
  explicit Sums(const ral_tensor& out)
      : out_(out), own_(std::is_same_v<Sum, float> && out.dtype == RAL_FLOAT32), rank_(out.ndim) {
    if (!own_) {
      memory_.resize(static_cast<std::size_t>(numel(out)));
    }
    Index stride = 1;
    for (int d = rank_; d-- > 0;) {
      strides_[d] = own_ ? out.strides[d] : stride;
      stride *= out.sizes[d];
    }
  }

  Destination<Sum> matrix(Index batch) {
    const Index offset = rank_ == 3 ? batch * strides_[0] : 0;
    return {data() + offset, strides_[rank_ - 2], strides_[rank_ - 1], fresh_};
  }

  // Sets all to beta times `start` (broadcast), or to zero. False: it does not broadcast.
  bool begin(const ral_tensor* start, Sum beta, Index depth) {
    const bool from_zero = start == nullptr || beta == Sum{0};
    fresh_ = from_zero && depth > 0;
    if (fresh_) {
      return true;
    }
    Loops<2> loops(rank_, out_.sizes);
    loops.set_strides(0, {strides_, strides_ + rank_});
    loops.add_number(1);
    if (!from_zero && !loops.add(1, *start)) {
      return false;
    }
    loops.run([&](Index count, const auto& offsets, const auto& strides) {
      Sum* to = data() + offsets[0];
      if (from_zero) {
        for (Index i = 0; i < count; ++i) {
          to[i * strides[0]] = Sum{0};
        }
        return;
      }
      if constexpr (std::is_same_v<Sum, float>) {
        if (start->dtype == RAL_FLOAT32 && strides[0] == 1 && strides[1] == 1) {
          scale_run(floats(*start) + offsets[1], beta, count, to);
          return;
        }
      }
      with_element(start->dtype, [&](auto element) {
        const auto* from = static_cast<const decltype(element)*>(start->data) + offsets[1];
        for (Index i = 0; i < count; ++i) {
          to[i * strides[0]] = static_cast<Sum>(to_float(from[i * strides[1]])) * beta;
        }
      });
    });
    return true;
  }

  // Rounds (float) or wraps (int32) them into the output.
  void finish() {
    if (own_) {
      return;
    }
    Loops<2> loops(rank_, out_.sizes);
    loops.add(0, out_);
    loops.set_strides(1, {strides_, strides_ + rank_});
    loops.run([&](Index count, const auto& offsets, const auto& strides) {
      auto* to = static_cast<std::uint8_t*>(out_.data) + offsets[0] * item_size(out_.dtype);
      const Sum* from = memory_.data() + offsets[1];
      if constexpr (std::is_same_v<Sum, float>) {
        const Index run = strides[1] == 1 ? count : 1;
        for (Index i = 0; i < count; i += run) {
          store_floats(out_.dtype, from + i * strides[1], to + i * strides[0] * item_size(out_.dtype), strides[0], run);
        }
      } else {
        for (Index i = 0; i < count; ++i) {
          to[i * strides[0]] = static_cast<std::uint8_t>(from[i * strides[1]]);
        }
      }
    });
  }

 private:
  Sum* data() {
    if constexpr (std::is_same_v<Sum, float>) {
      return own_ ? floats(out_) : memory_.data();
    } else {
      return memory_.data();
    }
  }

  ral_tensor out_;
  bool own_;
  bool fresh_ = false;
  int rank_;
  Index strides_[3] = {};
  std::vector<Sum> memory_;
};

struct Product {
  const ral_tensor& a;
  const ral_tensor& b;
  const ral_tensor* start;
  double beta;
  double alpha;
};

// Why the product cannot be computed here, or nothing.
const char* refusal(const Product& p, const ral_tensor& out) {
  const int rank = out.ndim;
  const bool fits = p.a.ndim == rank && p.b.ndim == rank && (rank == 2 || rank == 3) &&
                    (rank == 2 || (p.a.sizes[0] == p.b.sizes[0] && out.sizes[0] == p.a.sizes[0])) &&
                    p.a.sizes[rank - 1] == p.b.sizes[rank - 2] && out.sizes[rank - 2] == p.a.sizes[rank - 2] &&
                    out.sizes[rank - 1] == p.b.sizes[rank - 1];
  if (!fits || (numel(out) != 0 && (out.data == p.a.data || out.data == p.b.data))) {
    return "shapes that do not fit, or an output that is also an operand";
  }
  if (p.a.dtype != out.dtype || p.b.dtype != out.dtype || (p.start != nullptr && p.start->dtype != out.dtype)) {
    return "operands of different dtypes";
  }
  if (out.dtype == RAL_INT8) {
    return p.alpha == 1.0 && (p.start == nullptr || p.beta == 1.0 || p.beta == 0.0) ? nullptr
                                                                                    : "factors of an integer product";
  }
  return is_floating(out.dtype) ? nullptr : "a dtype without a product";
}

template <class Sum>
int compute(const ral_call* call, const Product& p) {
  const ral_tensor& out = call->outputs[0];
  const int rank = out.ndim;
  Sums<Sum> sums(out);
  if (!sums.begin(p.start, static_cast<Sum>(p.beta), p.a.sizes[rank - 1])) {
    return decline(call, "a summand that does not broadcast");
  }
  const Index m = p.a.sizes[rank - 2];
  const Index n = p.b.sizes[rank - 1];
  const Index k = p.a.sizes[rank - 1];
  for (Index batch = 0; batch < (rank == 3 ? out.sizes[0] : 1); ++batch) {
    if constexpr (std::is_same_v<Sum, float>) {
      multiply(m, n, k, static_cast<float>(p.alpha), matrix(p.a, batch), matrix(p.b, batch), sums.matrix(batch));
    } else {
      multiply(m, n, k, matrix(p.a, batch), matrix(p.b, batch), sums.matrix(batch));
    }
  }
  sums.finish();
  return RAL_OK;
}

int product(const ral_call* call, const Product& p) {
  if (const char* reason = refusal(p, call->outputs[0])) {
    return decline(call, reason);
  }
  return call->outputs[0].dtype == RAL_INT8 ? compute<std::int32_t>(call, p) : compute<float>(call, p);
}

}  // namespace

}  // namespace ral::sim

using namespace ral::sim;

// (self, mat2)
RAL_KERNEL ral_sim_mm(const ral_call* call) { return product(call, {tensor(call, 0), tensor(call, 1), nullptr, 0, 1}); }

RAL_KERNEL ral_sim_bmm(const ral_call* call) { return ral_sim_mm(call); }

// (self, mat1, mat2, beta, alpha)
RAL_KERNEL ral_sim_addmm(const ral_call* call) {
  if (!is_tensor(call->args[0])) {
    return decline(call, "a summand that is a number");
  }
  return product(call, {tensor(call, 1), tensor(call, 2), &tensor(call, 0), number(argument(call, 3), 1),
                        number(argument(call, 4), 1)});
}

RAL_KERNEL ral_sim_baddbmm(const ral_call* call) { return ral_sim_addmm(call); }
