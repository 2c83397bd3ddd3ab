#include "python_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "alias.h"
#include "manifest.h"
#include "results.h"

namespace py = pybind11;

namespace ral {

namespace {

// By the vendor's number; the reference is held for as long as the process lives. Read without the GIL.
std::array<std::atomic<PyObject*>, kMaxVendors> backends{};

PyObject* backend_of(const Device& device) noexcept {
  return backends[device.kernels().number()].load(std::memory_order_acquire);
}

// One call: what the class is given, and what it gave, put where the operator wants it.
class PythonCall {
 public:
  PythonCall(const Operator& op, Device& device, Stack& stack)
      : op_(op), device_(device), stack_(stack), first_(stack.size() - op.argument_count()), aliases_(device) {}

  // False: an argument has no form in Python; `reason` says which.
  bool collect(std::string* reason) {
    const auto& arguments = op_.handle().schema().arguments();
    std::size_t next = 0;
    for (std::size_t i = 0; i < op_.argument_count(); ++i) {
      const bool special = next < op_.arguments().size() && op_.arguments()[next].position == i;
      const c10::IValue& value = stack_[first_ + i];
      if (!special) {
        params_[py::str(arguments[i].name())] = parameter(arguments[i], value);
        continue;
      }
      const ArgSpec& spec = op_.arguments()[next++];
      if (spec.kind == ArgKind::kGenerator && !value.isNone()) {
        *reason = "a generator";
        return false;
      }
      if (spec.out || spec.kind == ArgKind::kGenerator || spec.kind == ArgKind::kDevice) {
        continue;
      }
      tensors_.append(torch::jit::toPyObject(with_tensors(spec, value, [&](const at::Tensor& t) { return alias(t); })));
    }
    if (elsewhere_) {
      *reason = "tensors on several devices";
    }
    return !elsewhere_;
  }

  py::object run(PyObject* backend) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::NoGradGuard no_grad;
    try {
      return py::reinterpret_borrow<py::object>(backend)(base_name(op_.name().text()), tensors_, params_);
    } catch (const py::error_already_set& error) {
      fail(std::string("raised ") + error.what());
    }
  }

  // Of the tensors that the class was given.
  std::int64_t bytes() const {
    std::int64_t bytes = 0;
    for (const at::Tensor& tensor : given_) {
      bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
    return bytes;
  }

  void put(const py::object& answer) {
    const std::vector<c10::IValue> values = returned(answer);
    Stack results;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const int position = op_.return_argument(i);
      if (position < 0) {
        results.push_back(fresh(values[i]));
        continue;
      }
      const c10::IValue& target = stack_[first_ + static_cast<std::size_t>(position)];
      write(target.toTensor(), values[i].toTensor());
      results.push_back(target);
    }
    put_results(op_, stack_, std::move(results));
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    TORCH_CHECK(false, op_.name().text(), " on ", device_.torch_device(), ": backend '", device_.info().vendor.name,
                "' ", what);
    std::abort();
  }

  at::Tensor alias(const at::Tensor& tensor) {
    if (tensor.device() != device_.torch_device()) {
      elsewhere_ = elsewhere_ || !is_cpu_scalar(tensor);
      return tensor;
    }
    at::Tensor made = aliases_.to_cpu(tensor);
    made._set_conj(tensor.is_conj());
    made._set_neg(tensor.is_neg());
    given_.push_back(made);
    return made;
  }

  // Types are numbers in an operator's arguments, and torch.dtype in Python.
  static py::object parameter(const c10::Argument& argument, const c10::IValue& value) {
    c10::TypePtr type = argument.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    }
    if (type->kind() == c10::TypeKind::ScalarTypeType && value.isInt()) {
      auto* dtype = torch::getTHPDtype(static_cast<c10::ScalarType>(value.toInt()));
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(dtype));
    }
    return torch::jit::toPyObject(value);
  }

  std::vector<c10::IValue> returned(const py::object& answer) const {
    const auto& returns = op_.handle().schema().returns();
    const bool several = returns.size() != 1;
    if (several && (!py::isinstance<py::sequence>(answer) || py::len(answer) != returns.size())) {
      fail("must return " + std::to_string(returns.size()) + " results in a tuple");
    }
    std::vector<c10::IValue> values;
    for (std::size_t i = 0; i < returns.size(); ++i) {
      const py::object item = several ? py::object(answer[py::int_(i)]) : answer;
      try {
        values.push_back(torch::jit::toIValue(item, returns[i].type()));
      } catch (const py::cast_error&) {
        fail("must return a " + returns[i].type()->str() + ", not " +
             py::str(py::type::of(item).attr("__name__")).cast<std::string>());
      }
    }
    return values;
  }

  void check(const at::Tensor& tensor) const {
    if (!tensor.device().is_cpu() || tensor.layout() != c10::kStrided) {
      fail("must return dense CPU tensors");
    }
  }

  // A new result must not share memory with an argument: the next in-place operator would change both.
  at::Tensor to_device(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    check(tensor);
    for (const at::Tensor& each : given_) {
      if (each.storage().is_alias_of(tensor.storage())) {
        return aliases_.to_device(tensor.clone());
      }
    }
    return aliases_.to_device(tensor.resolve_conj().resolve_neg());
  }

  c10::IValue fresh(const c10::IValue& value) {
    const at::NoGradGuard no_grad;
    if (value.isTensor()) {
      return to_device(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorList()) {
        list.push_back(to_device(tensor));
      }
      return list;
    }
    return value;
  }

  // In place, or out=.
  void write(const at::Tensor& target, const at::Tensor& value) {
    check(value);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor there = aliases_.to_cpu(target);
    if (there.sizes() != value.sizes()) {
      const bool out =
          std::any_of(op_.arguments().begin(), op_.arguments().end(), [](const ArgSpec& s) { return s.out; });
      if (!out) {
        fail("changed a tensor's shape in place");
      }
      target.resize_(value.sizes());
      there = Aliases(device_).to_cpu(target);
    }
    if (there.data_ptr() != value.data_ptr() || there.strides() != value.strides()) {
      there.copy_(value);
    }
  }

  const Operator& op_;
  Device& device_;
  Stack& stack_;
  std::size_t first_;
  Aliases aliases_;
  std::vector<at::Tensor> given_;
  bool elsewhere_ = false;  // a tensor of another device
  py::list tensors_;
  py::dict params_;
};

void set_python_backend(const std::string& vendor, const py::object& dispatch) {
  std::atomic<PyObject*>& slot = backends[VendorKernels::of(vendor).number()];
  slot.store(dispatch.inc_ref().ptr(), std::memory_order_release);
}

}  // namespace

bool has_python_backend(const Device& device) noexcept { return backend_of(device) != nullptr; }

bool dispatch_python(const Operator& op, Device& device, Stack& stack, const events::Launch& launch,
                     std::string* reason) {
  device.pipelines().synchronize();
  device.raise_failure();
  const std::uint64_t start = launch.active() ? events::now() : 0;
  const py::gil_scoped_acquire gil;
  PythonCall call(op, device, stack);
  if (!call.collect(reason)) {
    return false;
  }
  const py::object answer = call.run(backend_of(device));
  if (answer.is_none()) {
    *reason = "backend said not mine";
    return false;
  }
  call.put(answer);
  if (launch.active()) {
    events::Started(launch).work(trace::Kind::kKernel, start, events::now(), call.bytes(), op.name().id(),
                                 device.vendor_name().id());
  }
  return true;
}

void bind_python_backends(py::module_& m) {
  m.def("set_python_backend", &set_python_backend, py::arg("vendor"), py::arg("dispatch"));
}

}  // namespace ral
