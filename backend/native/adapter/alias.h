// CPU tensors over a device's memory: how ATen's CPU kernels work on it in place, without a copy.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "runtime.h"

namespace ral {

// While one exists, CPU memory that this thread allocates is the device's: the outputs of a CPU kernel are born there.
class AllocateOn {
 public:
  explicit AllocateOn(Device& device) noexcept;
  ~AllocateOn();
  AllocateOn(const AllocateOn&) = delete;
  AllocateOn& operator=(const AllocateOn&) = delete;

 private:
  Device* previous_;
};

// After a call's results have been taken over: what a kernel still keeps, it keeps for itself.
void forget_lent() noexcept;

// Puts the allocator that knows AllocateOn before torch's CPU allocator. Once, before the first use.
void install_redirecting_allocator();

// The aliases of one call: tensors that share a storage on the device share one on the CPU, so that ATen sees the
// overlap.
class Aliases {
 public:
  explicit Aliases(Device& device) : device_(device) {}

  at::Tensor to_cpu(const at::Tensor& tensor);
  // A result of the CPU kernel as a tensor of the device: an alias again where it is one, else its memory is taken
  // over.
  at::Tensor to_device(const at::Tensor& result);
  // After the call: `tensor` follows its alias, which the kernel may have resized.
  void follow(const at::Tensor& tensor, const at::Tensor& alias);

 private:
  struct Pair {
    c10::Storage device;
    c10::Storage cpu;
  };
  Pair* find_device(const c10::StorageImpl* storage);
  Pair* find_cpu(const c10::StorageImpl* storage);

  Device& device_;
  c10::SmallVector<Pair, 6> pairs_;
};

// A tensor of the device over a storage of it.
at::Tensor make_tensor(c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       std::int64_t offset);

}  // namespace ral
