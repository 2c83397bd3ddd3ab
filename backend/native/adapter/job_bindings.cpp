// How Python makes and launches job plans.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/utils/pybind.h>

#include "job_plan.h"

namespace py = pybind11;

namespace ral {

namespace {

Symbol to_symbol(const py::dict& row) {
  Symbol symbol;
  symbol.name = row["name"].cast<std::string>();
  symbol.role = static_cast<Role>(row["role"].cast<int>());
  symbol.on_host = row["on_host"].cast<bool>();
  symbol.dtype = static_cast<c10::ScalarType>(row["dtype"].cast<int>());
  symbol.dims = row["dims"].cast<std::vector<std::int64_t>>();
  return symbol;
}

JobValue to_value(const py::handle& given) {
  if (py::isinstance<py::tuple>(given)) {
    return SymbolIndex{given.cast<py::tuple>()[0].cast<std::size_t>()};
  }
  if (py::isinstance<py::int_>(given)) {
    return given.cast<std::int64_t>();
  }
  if (py::isinstance<py::float_>(given)) {
    return given.cast<double>();
  }
  return given.cast<std::string>();
}

JobOperation to_operation(const py::dict& row) {
  JobOperation operation;
  operation.kind = static_cast<WorkKind>(row["kind"].cast<int>());
  operation.function = row["function"].cast<std::string>();
  for (const py::handle& value : row["values"].cast<py::list>()) {
    operation.values.push_back(to_value(value));
  }
  operation.outputs = row["outputs"].cast<std::vector<std::size_t>>();
  operation.from = row["from"].cast<std::size_t>();
  operation.to = row["to"].cast<std::size_t>();
  return operation;
}

std::shared_ptr<JobPlan> make_job_plan(const std::string& name, const std::string& vendor, const std::string& library,
                                       const std::vector<py::dict>& symbols, std::vector<std::string> dim_names,
                                       const std::vector<py::dict>& operations) {
  std::vector<Symbol> all_symbols;
  for (const py::dict& row : symbols) {
    all_symbols.push_back(to_symbol(row));
  }
  std::vector<JobOperation> all_operations;
  for (const py::dict& row : operations) {
    all_operations.push_back(to_operation(row));
  }
  return std::make_shared<JobPlan>(name, vendor, library, std::move(all_symbols), std::move(dim_names),
                                   std::move(all_operations));
}

std::vector<std::string> arguments_of(const JobPlan& plan) {
  std::vector<std::string> names;
  for (const Symbol& symbol : plan.symbols()) {
    if (symbol.role != Role::kTemporary) {
      names.push_back(symbol.name);
    }
  }
  return names;
}

}  // namespace

void bind_job_plans(py::module_& m) {
  py::class_<JobPlan, std::shared_ptr<JobPlan>>(m, "JobPlan")
      .def_property_readonly("name", [](const JobPlan& plan) { return plan.name().text(); })
      .def_property_readonly("vendor", &JobPlan::vendor)
      .def_property_readonly("arguments", &arguments_of);
  m.attr("JOB_ROLES") = py::tuple(py::cast(kRoleNames));
  m.attr("WORK_KINDS") = py::tuple(py::cast(kWorkKindNames));
  m.def("make_job_plan", &make_job_plan, py::arg("name"), py::arg("vendor"), py::arg("library"), py::arg("symbols"),
        py::arg("dim_names"), py::arg("operations"));
  m.def(
      "launch_job_plan",
      [](const std::shared_ptr<JobPlan>& plan, const std::vector<std::optional<at::Tensor>>& given) {
        return launch_job_plan(plan, given);
      },
      py::arg("plan"), py::arg("tensors"), py::call_guard<py::gil_scoped_release>());
}

}  // namespace ral
