// CPU tensors over a device's memory: how ATen's CPU kernels work on it in place, without a copy.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "runtime.h"

namespace ral {

// Memory for the results of a kernel that this thread is about to run: what the kernel allocates with exactly this size
// is taken from here, so that the results are born where the program expects them. Everything else is the host's.
class HandOut {
 public:
  struct Place {
    void* data;
    std::size_t bytes;
    bool taken;
  };
  explicit HandOut(c10::SmallVectorImpl<Place>& places) noexcept;
  ~HandOut();
  HandOut(const HandOut&) = delete;
  HandOut& operator=(const HandOut&) = delete;

 private:
  c10::SmallVectorImpl<Place>* previous_;
};

// Puts the allocator that knows HandOut before torch's CPU allocator. Once, before the first use.
void install_handing_allocator();

// A CPU storage over memory that somebody else owns, and tensors over a storage, on the CPU and on the device.
c10::Storage storage_over(void* data, std::size_t bytes);
at::Tensor cpu_tensor(c10::Storage storage, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      std::int64_t offset);
at::Tensor make_tensor(c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       std::int64_t offset);
// A storage of the device's own, of that many bytes.
c10::Storage device_storage(Device& device, std::size_t bytes);

// The aliases of one call that runs on the calling thread: tensors that share a storage on the device share one on the
// CPU, so that ATen sees the overlap. The device must have nothing queued that writes to them.
class Aliases {
 public:
  explicit Aliases(Device& device) : device_(device) {}

  at::Tensor to_cpu(const at::Tensor& tensor);
  // A result of the CPU kernel as a tensor of the device: an alias again where it is one, else a copy.
  at::Tensor to_device(const at::Tensor& result);

 private:
  struct Pair {
    c10::Storage device;
    c10::Storage cpu;
  };

  Device& device_;
  c10::SmallVector<Pair, 6> pairs_;
};

}  // namespace ral
