// What the compiled tier asks of Python: compiled.py knows the cache and starts the compiler.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "compiled.h"

namespace py = pybind11;

namespace ral {

namespace {

// compiled.py's library_for(op, arguments, results) -> (library, why not, nanoseconds). Held for as long as the process lives.
PyObject* compiler = nullptr;

std::string dtype_name(c10::ScalarType dtype) {
  return py::str(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype))).cast<std::string>();
}

py::dict one(const char* kind, const py::object& value) {
  py::dict described;
  described[kind] = value;
  return described;
}

// Memory does not matter to the compiler, only what it looks like.
py::object describe_tensor(const Call& call, const TensorDesc& desc) {
  if (desc.where == TensorDesc::Where::kUndefined) {
    return py::none();
  }
  py::dict described;
  described["dtype"] = dtype_name(desc.dtype);
  if (desc.where == TensorDesc::Where::kHost) {
    const at::Tensor& tensor = call.host_tensors()[desc.shape];
    described["sizes"] = tensor.sizes().vec();
    described["strides"] = tensor.strides().vec();
  } else {
    described["sizes"] = call.sizes(desc).vec();
    described["strides"] = call.strides(desc).vec();
  }
  return described;
}

py::dict describe_tensors(const Call& call, const ArgSpec& spec, std::size_t first, std::size_t count) {
  if (spec.kind == ArgKind::kTensor) {
    const TensorDesc& desc = call.tensors()[first];
    if (desc.where == TensorDesc::Where::kHost && is_wrapped_number(call.host_tensors()[desc.shape])) {
      return one("number", torch::jit::toPyObject(call.host_tensors()[desc.shape].item()));
    }
    return one("tensor", describe_tensor(call, desc));
  }
  py::list tensors;
  for (std::size_t i = first; i < first + count; ++i) {
    tensors.append(describe_tensor(call, call.tensors()[i]));
  }
  return one("tensors", tensors);
}

// Types, layouts and memory formats are numbers in an operator's arguments, and objects in Python.
py::dict describe_value(const c10::Argument& argument, const c10::IValue& value) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  if (value.isDevice()) {
    return one("device", py::str("cpu"));
  }
  if (value.isInt() && type->kind() == c10::TypeKind::ScalarTypeType) {
    return one("dtype", py::str(dtype_name(static_cast<c10::ScalarType>(value.toInt()))));
  }
  if (value.isInt() && type->kind() == c10::TypeKind::LayoutType) {
    return one("layout", py::int_(value.toInt()));
  }
  if (value.isInt() && type->kind() == c10::TypeKind::MemoryFormatType) {
    return one("memory_format", py::int_(value.toInt()));
  }
  return value.isGenerator() ? one("generator", py::none()) : one("value", torch::jit::toPyObject(value));
}

py::list describe_arguments(const Call& call) {
  const auto& schema = call.op().handle().schema().arguments();
  py::list arguments;
  for (std::size_t i = 0; i < call.values().size(); ++i) {
    arguments.append(describe_value(schema[i], call.values()[i]));
  }
  call.for_each_argument([&](const ArgSpec& spec, std::size_t first, std::size_t count) {
    if (call.values()[spec.position].isInt()) {
      arguments[spec.position] = describe_tensors(call, spec, first, count);
    }
  });
  return arguments;
}

py::list describe_results(const Layout& layout) {
  py::list results;
  for (const TensorLayout& tensor : layout.tensors) {
    py::dict described;
    described["dtype"] = dtype_name(tensor.dtype);
    described["sizes"] = std::vector<std::int64_t>(tensor.sizes.begin(), tensor.sizes.end());
    results.append(described);
  }
  return results;
}

}  // namespace

MadeKernel make_kernel(const Call& call, const Layout& layout) {
  const py::gil_scoped_acquire gil;
  if (compiler == nullptr) {
    return {"", "there is no compiler in this process", 0};
  }
  const py::tuple made = py::reinterpret_borrow<py::object>(compiler)(call.op().name().text(), describe_arguments(call),
                                                                      describe_results(layout));
  return {made[0].cast<std::string>(), made[1].cast<std::string>(), made[2].cast<std::uint64_t>()};
}

void bind_compiled(py::module_& m) {
  m.def("compiled_on", &compiled_on);
  m.def("set_compiled", &set_compiled, py::arg("on"));
  m.def(
      "set_compiler", [](const py::object& library_for) { compiler = library_for.inc_ref().ptr(); },
      py::arg("library_for"));
}

}  // namespace ral
