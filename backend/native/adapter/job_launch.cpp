// Launching a job plan: tensors are bound to symbols, then each operation is an item of the current stream.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <cstring>

#include "alias.h"
#include "job_plan.h"

namespace ral {

namespace {

// One launch: what all its items share.
struct Binding {
  std::shared_ptr<const JobPlan> plan;
  std::shared_ptr<const JobShapes> shapes;
  Device* device = nullptr;
  std::vector<ral_tensor> tensors;       // by symbol; sizes and strides are those of `shapes`
  std::vector<at::Tensor> host_tensors;  // kept until the last item has run

  Binding() = default;
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;
  // Their last reference may be Python's, and this may be a worker.
  ~Binding() {
    for (at::Tensor& tensor : host_tensors) {
      give_back_on_host(std::move(tensor));
    }
  }
};

class JobWork final : public Work {
 public:
  JobWork(std::shared_ptr<const Binding> binding, std::size_t operation, Pipeline pipeline,
          const events::Launch& launch)
      : Work(binding->plan->operations()[operation].kind, pipeline, launch.name()),
        binding_(std::move(binding)),
        operation_(operation),
        started_(launch) {}

  void run() override {
    if (of().kind == WorkKind::kTransfer) {
      std::memmove(binding_->tensors[of().to].data, binding_->tensors[of().from].data,
                   binding_->shapes->bytes[of().to]);
    } else {
      call_function();
    }
  }

  void ended(const Times& times) noexcept override {
    if (!started_.active()) {
      return;
    }
    const std::int64_t bytes = binding_->plan->bytes(operation_, *binding_->shapes);
    if (kind == WorkKind::kTransfer) {
      started_.work(trace::Kind::kTransfer, times.start_ticks, times.end_ticks, bytes, static_cast<std::uint64_t>(-1),
                    direction());
    } else {
      static const events::Name host("host");
      const events::Name& who = kind == WorkKind::kHost ? host : binding_->device->vendor_name();
      started_.work(trace::Kind::kKernel, times.start_ticks, times.end_ticks, bytes,
                    binding_->plan->function_name(operation_).id(), who.id());
    }
  }

  std::uint64_t model_ns(const DeviceModel& model) const noexcept override {
    const auto bytes = static_cast<std::uint64_t>(binding_->plan->bytes(operation_, *binding_->shapes));
    if (kind == WorkKind::kTransfer) {
      return direction() == trace::kWithinDevice ? model.kernel_ns(2 * bytes) : model.copy_ns(bytes);
    }
    return kind == WorkKind::kHost ? 0 : model.kernel_ns(bytes);
  }

  std::string what() const override {
    return binding_->plan->name().text() + ", operation " + std::to_string(operation_) +
           (of().function.empty() ? "" : " (" + of().function + ")");
  }

 private:
  const JobOperation& of() const { return binding_->plan->operations()[operation_]; }

  trace::Direction direction() const {
    const auto& symbols = binding_->plan->symbols();
    return symbols[of().from].on_host ? trace::kHostToDevice
           : symbols[of().to].on_host ? trace::kDeviceToHost
                                      : trace::kWithinDevice;
  }

  ral_value value(const JobValue& given) const {
    ral_value value{};
    value.count = 1;
    if (const auto* symbol = std::get_if<SymbolIndex>(&given)) {
      value.tag = RAL_TENSOR;
      value.as.tensors = &binding_->tensors[symbol->index];
    } else if (const auto* whole = std::get_if<std::int64_t>(&given)) {
      value.tag = RAL_INT;
      value.as.i = *whole;
    } else if (const auto* number = std::get_if<double>(&given)) {
      value.tag = RAL_DOUBLE;
      value.as.d = *number;
    } else {
      value.tag = RAL_TEXT;
      value.as.text = std::get<std::string>(given).c_str();
    }
    return value;
  }

  void call_function() const {
    c10::SmallVector<ral_value, 8> values;
    for (const JobValue& given : of().values) {
      values.push_back(value(given));
    }
    c10::SmallVector<ral_tensor, 4> outputs;
    for (const std::size_t output : of().outputs) {
      outputs.push_back(binding_->tensors[output]);
    }
    std::array<char, 256> reason;
    reason.front() = '\0';
    const ral_call call = {sizeof(ral_call),
                           static_cast<std::int32_t>(values.size()),
                           static_cast<std::int32_t>(outputs.size()),
                           of().function.c_str(),
                           values.data(),
                           outputs.data(),
                           reason.data(),
                           reason.size()};
    if (const int status = binding_->plan->function(operation_)(&call); status != RAL_OK) {
      reason.back() = '\0';
      throw std::runtime_error(reason.front() != '\0' ? reason.data()
                                                      : "the function answers " + std::to_string(status));
    }
  }

  std::shared_ptr<const Binding> binding_;
  std::size_t operation_;
  events::Started started_;
};

// --- binding ---

class Binder {
 public:
  Binder(const std::shared_ptr<const JobPlan>& plan, const std::vector<std::optional<at::Tensor>>& given)
      : plan_(plan), tensors_(plan->symbols().size()), dims_(plan->dim_names().size(), -1) {
    std::size_t next = 0;
    for (std::size_t i = 0; i < plan->symbols().size(); ++i) {
      if (plan->symbols()[i].role != Role::kTemporary) {
        TORCH_CHECK(next < given.size(), plan->name().text(), ": ", given.size(), " tensors are too few, '",
                    plan->symbols()[i].name, "' has none");
        tensors_[i] = given[next++].value_or(at::Tensor());
      }
    }
    TORCH_CHECK(next == given.size(), plan->name().text(), ": ", given.size(), " tensors are too many, it takes ",
                next);
  }

  std::shared_ptr<Binding> bind() {
    find_device();
    // What comes in says what the symbolic dimensions are.
    for (const bool output : {false, true}) {
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        const Symbol& symbol = plan_->symbols()[i];
        if (output != (symbol.role == Role::kOutput) || symbol.role == Role::kTemporary) {
          continue;
        }
        TORCH_CHECK(output || tensors_[i].defined(), where(symbol), "is not given");
        if (tensors_[i].defined()) {
          check(symbol, tensors_[i]);
        }
      }
    }
    refuse_overlap();
    auto binding = std::make_shared<Binding>();
    binding->plan = plan_;
    binding->shapes = plan_->shapes(dims_);
    binding->device = device_;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      at::Tensor& tensor = tensors_[i];
      if (!tensor.defined()) {
        tensor = make(i, *binding->shapes);
      }
      binding->tensors.push_back(in_c(i, tensor, *binding->shapes));
      if (plan_->symbols()[i].on_host) {
        binding->host_tensors.push_back(tensor);
      }
    }
    return binding;
  }

  std::vector<at::Tensor> outputs() const {
    std::vector<at::Tensor> outputs;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (plan_->symbols()[i].role == Role::kOutput) {
        outputs.push_back(tensors_[i]);
      }
    }
    return outputs;
  }

 private:
  std::string where(const Symbol& symbol) const { return plan_->name().text() + ": '" + symbol.name + "' "; }

  void find_device() {
    for (std::size_t i = 0; device_ == nullptr && i < tensors_.size(); ++i) {
      if (tensors_[i].defined() && tensors_[i].device().type() == kRal) {
        device_ = &Runtime::get().device(tensors_[i].device());
      }
    }
    TORCH_CHECK(device_ != nullptr, plan_->name().text(), ": none of the tensors is on a ral device; move its inputs");
    TORCH_CHECK(device_->info().vendor.name == plan_->vendor(), plan_->name().text(), ": is for devices of '",
                plan_->vendor(), "', its tensors are on ", device_->torch_device(), " of '",
                device_->info().vendor.name, "'; move them");
  }

  // What is only read stays as it is, and two outputs do not write over each other.
  void refuse_overlap() const {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Symbol& output = plan_->symbols()[i];
      for (std::size_t j = 0; output.role == Role::kOutput && tensors_[i].defined() && j < tensors_.size(); ++j) {
        TORCH_CHECK(j == i || !tensors_[j].defined() ||
                        at::get_overlap_status(tensors_[i], tensors_[j]) == at::MemOverlapStatus::No,
                    where(output), "shares memory with '", plan_->symbols()[j].name, "'; give it memory of its own");
      }
    }
  }

  void check(const Symbol& symbol, const at::Tensor& tensor) {
    const c10::Device expected = symbol.on_host ? c10::Device(c10::kCPU) : device_->torch_device();
    TORCH_CHECK(tensor.device() == expected, where(symbol), "is on ", tensor.device(), " and must be on ", expected);
    TORCH_CHECK(tensor.scalar_type() == symbol.dtype, where(symbol), "is ", tensor.scalar_type(), " and must be ",
                symbol.dtype);
    TORCH_CHECK(tensor.is_contiguous(), where(symbol), "is not contiguous; give its contiguous()");
    TORCH_CHECK(!tensor.requires_grad() || !at::GradMode::is_enabled(), where(symbol),
                "requires a gradient, which a prepared kernel does not have; give its detach()");
    TORCH_CHECK(tensor.dim() == static_cast<std::int64_t>(symbol.dims.size()), where(symbol), "has ", tensor.dim(),
                " dimensions and must have ", symbol.dims.size());
    for (std::size_t d = 0; d < symbol.dims.size(); ++d) {
      const std::int64_t expected = size_of(symbol.dims[d], tensor.sizes()[d]);
      TORCH_CHECK(tensor.sizes()[d] == expected, where(symbol), "has ", tensor.sizes()[d], " as its dimension ", d,
                  " and must have ", expected, name_of(symbol.dims[d]));
    }
    if (!symbol.on_host) {
      device_->check_access(tensor);
    }
  }

  // The first tensor says what a symbolic dimension is.
  std::int64_t size_of(std::int64_t dim, std::int64_t found) {
    if (dim >= 0) {
      return dim;
    }
    std::int64_t& known = dims_[static_cast<std::size_t>(-1 - dim)];
    known = known < 0 ? found : known;
    return known;
  }
  std::string name_of(std::int64_t dim) const {
    return dim >= 0 ? "" : " (" + plan_->dim_names()[static_cast<std::size_t>(-1 - dim)] + ")";
  }

  ral_tensor in_c(std::size_t index, const at::Tensor& tensor, const JobShapes& shapes) const {
    return {const_cast<void*>(tensor.const_data_ptr()), shapes.sizes[index].data(), shapes.strides[index].data(),
            static_cast<std::int32_t>(shapes.sizes[index].size()),
            static_cast<std::int32_t>(plan_->symbols()[index].dtype)};
  }

  at::Tensor make(std::size_t index, const JobShapes& shapes) const {
    const Symbol& symbol = plan_->symbols()[index];
    if (symbol.on_host) {
      return at::detail::empty_cpu(shapes.sizes[index], symbol.dtype);
    }
    return make_tensor(device_storage(*device_, shapes.bytes[index]), c10::scalarTypeToTypeMeta(symbol.dtype),
                       shapes.sizes[index], shapes.strides[index], 0);
  }

  const std::shared_ptr<const JobPlan>& plan_;
  std::vector<at::Tensor> tensors_;  // by symbol
  c10::DimVector dims_;              // -1: not known yet
  Device* device_ = nullptr;
};

Pipeline pipeline_of(const JobPlan& plan, const JobOperation& operation) {
  if (operation.kind != WorkKind::kTransfer) {
    return Pipeline::kCompute;
  }
  return plan.symbols()[operation.from].on_host ? Pipeline::kCopyIn
         : plan.symbols()[operation.to].on_host ? Pipeline::kCopyOut
                                                : Pipeline::kCompute;
}

void wait_here(Device& device, Stream& stream, const events::Launch& launch, const JobPlan& plan) {
  {
    const events::Sync sync(plan.name().id(), device.index(), device.current_stream_row(), launch.name(),
                            /*forced=*/false);
    stream.wait();
  }
  device.raise_failure();
}

const events::Name& prepared_route() {
  static const events::Name name("prepared");
  return name;
}

}  // namespace

std::vector<at::Tensor> launch_job_plan(const std::shared_ptr<const JobPlan>& plan,
                                        const std::vector<std::optional<at::Tensor>>& given) {
  Binder binder(plan, given);
  const std::shared_ptr<const Binding> binding = binder.bind();
  Device& device = *binding->device;
  Stream& stream = device.current_stream();
  events::Launch launch(plan->name(), device.index(), device.current_stream_row());
  launch.set_route(prepared_route());
  for (std::size_t i = 0; i < plan->operations().size(); ++i) {
    const JobOperation& operation = plan->operations()[i];
    if (operation.kind == WorkKind::kSync) {
      wait_here(device, stream, launch, *plan);
    } else {
      stream.submit<JobWork>(binding, i, pipeline_of(*plan, operation), launch);
    }
  }
  // Temporaries end here: their memory is reused in the order of the stream.
  return binder.outputs();
}

}  // namespace ral
