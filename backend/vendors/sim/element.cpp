#include "element.h"

namespace ral::sim {

namespace {

RAL_WIDE void widen(const BFloat16* from, Index count, float* to) {
  for (Index i = 0; i < count; ++i) {
    to[i] = to_float(from[i]);
  }
}

RAL_WIDE void narrow(const float* from, Index count, BFloat16* to) {
  for (Index i = 0; i < count; ++i) {
    to[i] = from_float<BFloat16>(from[i]);
  }
}

void fill_run(float* to, Index count) { std::fill(to + 1, to + count, to[0]); }

// Calls body(offset, stride, count, position) for each innermost run, positions counted in the order of a contiguous
// tensor.
template <class Body>
void for_each_run(const ral_tensor& t, Body&& body) {
  Loops<1> loops(t.ndim, t.sizes);
  loops.add(0, t);
  Index position = 0;
  loops.run([&](Index count, const auto& offsets, const auto& strides) {
    body(offsets[0], strides[0], count, position);
    position += count;
  });
}

const void* at(const ral_tensor& t, Index offset) { return bytes(t) + offset * item_size(t.dtype); }
void* at(ral_tensor& t, Index offset) { return static_cast<std::uint8_t*>(t.data) + offset * item_size(t.dtype); }

bool is_contiguous_floats(const ral_tensor& t) { return t.dtype == RAL_FLOAT32 && contiguous(t); }

}  // namespace

void load_floats(int dtype, const void* data, Index stride, Index count, float* to) {
  if (count <= 0) {
    return;
  }
  if (stride == 0 && count > 1) {
    load_floats(dtype, data, 1, 1, to);
    fill_run(to, count);
    return;
  }
  if (dtype == RAL_BFLOAT16 && stride == 1) {
    widen(static_cast<const BFloat16*>(data), count, to);
    return;
  }
  with_element(dtype, [&](auto element) {
    const auto* from = static_cast<const decltype(element)*>(data);
    for (Index i = 0; i < count; ++i) {
      to[i] = to_float(from[i * stride]);
    }
  });
}

void store_floats(int dtype, const float* from, void* data, Index stride, Index count) {
  if (dtype == RAL_BFLOAT16 && stride == 1) {
    narrow(from, count, static_cast<BFloat16*>(data));
    return;
  }
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    auto* to = static_cast<T*>(data);
    for (Index i = 0; i < count; ++i) {
      to[i * stride] = from_float<T>(from[i]);
    }
  });
}

FloatsIn::FloatsIn(const ral_tensor& t) : data_(floats(t)) {
  if (is_contiguous_floats(t)) {
    return;
  }
  copy_.resize(static_cast<std::size_t>(numel(t)));
  for_each_run(t, [&](Index offset, Index stride, Index count, Index position) {
    load_floats(t.dtype, at(t, offset), stride, count, copy_.data() + position);
  });
  data_ = copy_.data();
}

FloatsOut::FloatsOut(const ral_tensor& t) : tensor_(t), data_(floats(t)) {
  if (wanted(t) && !is_contiguous_floats(t)) {
    copy_.resize(static_cast<std::size_t>(numel(t)));
    data_ = copy_.data();
  }
}

void FloatsOut::commit() const {
  if (copy_.empty()) {
    return;
  }
  ral_tensor to = tensor_;
  for_each_run(tensor_, [&](Index offset, Index stride, Index count, Index position) {
    store_floats(to.dtype, copy_.data() + position, at(to, offset), stride, count);
  });
}

}  // namespace ral::sim
