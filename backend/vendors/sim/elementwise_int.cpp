// Integer arithmetic element by element, in the operands' own dtype: it wraps around, as torch's does.
#include "elementwise.h"

namespace ral::sim {

namespace {

// Unsigned, so that overflow is defined, and not narrower than int, into which C++ would promote.
template <class T>
using Wrapping = std::conditional_t<(sizeof(T) < 4), std::uint32_t, std::make_unsigned_t<T>>;

constexpr bool is_scaled(IntegerOp op) { return op == IntegerOp::kAddScaled || op == IntegerOp::kSubScaled; }

template <class T, IntegerOp op>
T compute(T a, T b, const T* numbers) {
  const auto x = static_cast<Wrapping<T>>(a);
  const auto y = static_cast<Wrapping<T>>(b);
  switch (op) {
    case IntegerOp::kAdd:
      return static_cast<T>(x + y);
    case IntegerOp::kSub:
      return static_cast<T>(x - y);
    case IntegerOp::kAddScaled:
      return static_cast<T>(x + static_cast<Wrapping<T>>(numbers[0]) * y);
    case IntegerOp::kSubScaled:
      return static_cast<T>(x - static_cast<Wrapping<T>>(numbers[0]) * y);
    case IntegerOp::kMul:
      return static_cast<T>(x * y);
    case IntegerOp::kNeg:
      return static_cast<T>(Wrapping<T>{0} - x);
    case IntegerOp::kAbs:
      return a < T{0} ? static_cast<T>(Wrapping<T>{0} - x) : a;
    case IntegerOp::kMaximum:
      return a > b ? a : b;
    case IntegerOp::kMinimum:
      return a < b ? a : b;
    case IntegerOp::kClamp: {
      const T above = a < numbers[0] ? numbers[0] : a;
      return above > numbers[1] ? numbers[1] : above;
    }
    case IntegerOp::kRelu:
      return a < T{0} ? T{0} : a;
  }
  return T{0};
}

template <class T, IntegerOp op>
RAL_WIDE void unary(const T* const* in, T* out, Index count, const T* numbers) {
  const T* a = in[0];
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    out[i] = compute<T, op>(a[i], T{0}, numbers);
  }
}

template <class T, IntegerOp op>
RAL_WIDE void binary(const T* const* in, T* out, Index count, const T* numbers) {
  const T* a = in[0];
  const T* b = in[1];
#pragma GCC ivdep
  for (Index i = 0; i < count; ++i) {
    out[i] = compute<T, op>(a[i], b[i], numbers);
  }
}

// (self, min, max): no limit where one is not given
template <class T>
bool read_limits(const ral_call* call, T* numbers) {
  numbers[0] = std::numeric_limits<T>::min();
  numbers[1] = std::numeric_limits<T>::max();
  for (int i = 0; i < 2; ++i) {
    if (argument(call, i + 1).tag != RAL_NONE && !as_number(argument(call, i + 1), numbers + i)) {
      return false;
    }
  }
  return true;
}

template <class T>
int apply_to(const ral_call* call, IntegerOp op) {
  T numbers[2] = {1, 0};
  if ((is_scaled(op) && !as_number(argument(call, 2), numbers)) ||
      (op == IntegerOp::kClamp && !read_limits(call, numbers))) {
    return decline(call, "a number that the integer dtype cannot hold");
  }
  switch (op) {
    case IntegerOp::kAdd:
      return apply_as<2, T, T>(call, binary<T, IntegerOp::kAdd>, numbers);
    case IntegerOp::kSub:
      return apply_as<2, T, T>(call, binary<T, IntegerOp::kSub>, numbers);
    case IntegerOp::kAddScaled:
      return apply_as<2, T, T>(call, binary<T, IntegerOp::kAddScaled>, numbers);
    case IntegerOp::kSubScaled:
      return apply_as<2, T, T>(call, binary<T, IntegerOp::kSubScaled>, numbers);
    case IntegerOp::kMul:
      return apply_as<2, T, T>(call, binary<T, IntegerOp::kMul>, numbers);
    case IntegerOp::kMaximum:
      return apply_as<2, T, T>(call, binary<T, IntegerOp::kMaximum>, numbers);
    case IntegerOp::kMinimum:
      return apply_as<2, T, T>(call, binary<T, IntegerOp::kMinimum>, numbers);
    case IntegerOp::kNeg:
      return apply_as<1, T, T>(call, unary<T, IntegerOp::kNeg>, numbers);
    case IntegerOp::kAbs:
      return apply_as<1, T, T>(call, unary<T, IntegerOp::kAbs>, numbers);
    case IntegerOp::kClamp:
      return apply_as<1, T, T>(call, unary<T, IntegerOp::kClamp>, numbers);
    case IntegerOp::kRelu:
      return apply_as<1, T, T>(call, unary<T, IntegerOp::kRelu>, numbers);
  }
  return decline(call, "an operator that integers do not have");
}

}  // namespace

int apply_integers(const ral_call* call, IntegerOp op) {
  int status = RAL_DECLINED;
  with_integer(call->outputs[0].dtype, [&](auto element) { status = apply_to<decltype(element)>(call, op); });
  return status;
}

}  // namespace ral::sim
