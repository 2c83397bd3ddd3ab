"""Prepared launches: what can be decided when an artefact is first seen is decided then. Part of `torch.ral`.

An artefact is a folder with plan.json and a shared library of functions as in ral_plugin.h (docs/prepared.md). Its
tensors are symbols. `prepare_kernel` checks all of it once; `launch_jobplan` binds tensors to the symbols and enqueues.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ral_trace.backend import _adapter, plugins
from ral_trace.backend.errors import BackendError, PluginRefused
from ral_trace.backend.manifest import MAX_RANK
from ral_trace.backend.python_backend import DTYPES

PLAN_FILE = "plan.json"

ROLES = _adapter.JOB_ROLES
KINDS = _adapter.WORK_KINDS

_PLAN_FIELDS = {"name": str, "vendor": str, "library": str, "symbols": dict, "operations": list}
_SYMBOL_FIELDS = {"role": str, "dtype": str, "dims": list, "on": str}
_OPERATION_FIELDS: dict[str, dict[str, type]] = {
    "host": {"kind": str, "function": str, "args": list, "outputs": list},
    "compute": {"kind": str, "function": str, "args": list, "outputs": list},
    "transfer": {"kind": str, "from": str, "to": str},
    "sync": {"kind": str},
}

JobPlan = _adapter.JobPlan


class BadPlan(BackendError):
    """An artefact cannot be prepared: the file, the field and what to do about it."""


def prepare_kernel(folder: str | os.PathLike[str]) -> JobPlan:
    """Read and check an artefact, open its library, and look its functions up. Launch the result with `launch_jobplan`.

    Raises BadPlan naming the file and the field, PluginRefused where the folder, plan.json or the library belongs to
    another user or may be written by others.
    """
    folder = Path(folder)
    file = folder / PLAN_FILE
    plugins.check_owner(folder)
    with _in(file):
        return _Plan(file, plugins.read_json(file)).prepare()


def launch_jobplan(
    plan: JobPlan, args: Mapping[str, torch.Tensor] | Sequence[torch.Tensor | None]
) -> list[torch.Tensor]:
    """Enqueue a plan's operations on the current stream of the tensors' device, and return its outputs.

    `args` are tensors by symbol, or in the order of `plan.arguments`; an output that is not given, or None, is made.
    Raises RuntimeError, with nothing enqueued, where a tensor does not fit its symbol. Waits only where the plan says
    sync; an error of a function is raised where somebody next waits for the device. Gives no gradients.
    """
    if isinstance(args, Mapping):
        unknown = [name for name in args if name not in plan.arguments]
        if unknown:
            raise BackendError(f"{plan.name} takes no '{unknown[0]}'; it takes {', '.join(plan.arguments)}")
        args = [args.get(name) for name in plan.arguments]
    return _adapter.launch_job_plan(plan, args)


@contextmanager
def _in(file: Path) -> Iterator[None]:
    try:
        yield
    except PluginRefused as error:
        if error.status == "UNSAFE_OWNER":
            raise
        raise BadPlan(str(error)) from None
    except _Fault as fault:
        raise BadPlan(f"{file}: {fault}") from None


class _Fault(Exception):
    """What is wrong with a plan, without the file."""


class _Plan:
    """One plan.json while it is checked."""

    def __init__(self, file: Path, content: Any) -> None:
        self.file = file
        self.content = _fields("the plan", content, _PLAN_FIELDS)
        self.symbols: dict[str, dict[str, Any]] = {}
        self.dims: dict[str, int] = {}  # symbolic dimensions by name
        self.holding: set[str] = set()  # symbols that something has been written to
        self.unsynchronised: set[str] = set()  # outputs on the host that are written without a wait after it

    def prepare(self) -> JobPlan:
        """All checks, in the order of the file."""
        vendor = self.content["vendor"]
        if vendor not in _adapter.vendors():
            known = ", ".join(_adapter.vendors())
            raise _Fault(f"vendor: there are no devices of '{vendor}' here, only of {known}; name one of these")
        library = self._library()
        for name, symbol in self.content["symbols"].items():
            self.symbols[name] = self._symbol(name, symbol)
        given = {name for name, symbol in self.symbols.items() if ROLES[symbol["role"]] in ("input", "inout")}
        if all(self.symbols[name]["on_host"] for name in given):
            raise _Fault("symbols: an input on the device must say which device it is; add one")
        self.holding = given
        operations = [self._operation(number, row) for number, row in enumerate(self.content["operations"])]
        self._check_outputs()
        try:
            return _adapter.make_job_plan(
                self.content["name"], vendor, str(library), list(self.symbols.values()), list(self.dims), operations
            )
        except RuntimeError as error:
            raise _Fault(str(error)) from None

    def _library(self) -> Path:
        folder = self.file.parent
        library = (folder / str(self.content["library"])).resolve()
        if not library.is_relative_to(folder.resolve()):
            raise _Fault(f"library: '{self.content['library']}' lies outside of the folder; put it inside")
        if not library.is_file():
            raise _Fault(f"library: there is no {library}; build it")
        plugins.check_owner(library)
        return library

    # --- symbols ---

    def _symbol(self, name: str, row: Any) -> dict[str, Any]:
        where = f"symbols.{name}"
        row = _fields(where, row if not isinstance(row, dict) else {"on": "device"} | row, _SYMBOL_FIELDS)
        role = _one_of(f"{where}.role", row["role"], ROLES)
        on = _one_of(f"{where}.on", row["on"], ("device", "host"))
        dtype = _one_of(f"{where}.dtype", row["dtype"], tuple(DTYPES))
        if len(row["dims"]) > MAX_RANK:
            raise _Fault(f"{where}.dims: has {len(row['dims'])} dimensions, there may be {MAX_RANK}")
        dims = [self._dim(f"{where}.dims", dim, known_only=role in ("output", "temporary")) for dim in row["dims"]]
        return {"name": name, "role": ROLES.index(role), "on_host": on == "host", "dtype": DTYPES[dtype], "dims": dims}

    def _dim(self, where: str, dim: Any, *, known_only: bool) -> int:
        """A size, or -1 - i for the i-th symbolic dimension."""
        if isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0:
            return dim
        if not isinstance(dim, str) or not dim.isidentifier():
            raise _Fault(f'{where}: {dim!r} is neither a size nor the name of one; write 16 or "rows"')
        if known_only and dim not in self.dims:
            raise _Fault(f"{where}: no input before it has a dimension '{dim}'; put an input that has it first")
        return -1 - self.dims.setdefault(dim, len(self.dims))

    # --- operations ---

    def _operation(self, number: int, row: Any) -> dict[str, Any]:
        where = f"operations[{number}]"
        if not isinstance(row, dict):
            raise _Fault(f"{where}: must be an object with a kind")
        kind = _one_of(f"{where}.kind", row.get("kind"), KINDS)
        row = _fields(where, row, _OPERATION_FIELDS[kind])
        result = {"kind": KINDS.index(kind), "function": "", "values": [], "outputs": [], "from": 0, "to": 0}
        if kind == "sync":
            self.unsynchronised.clear()
            return result
        if kind == "transfer":
            return result | self._transfer(where, row)
        values = [self._value(f"{where}.args", value, kind) for value in row["args"]]
        outputs = [self._written(f"{where}.outputs", name, kind) for name in row["outputs"]]
        return result | {"function": row["function"], "values": values, "outputs": outputs}

    def _transfer(self, where: str, row: dict[str, Any]) -> dict[str, int]:
        source = self._read(f"{where}.from", row["from"])
        target = self._written(f"{where}.to", row["to"], "transfer")
        one, other = self.symbols[row["from"]], self.symbols[row["to"]]
        if (one["dtype"], one["dims"]) != (other["dtype"], other["dims"]):
            raise _Fault(f"{where}: '{row['from']}' and '{row['to']}' differ in dtype or dims; a transfer moves bytes")
        return {"from": source, "to": target}

    def _value(self, where: str, value: Any, kind: str) -> Any:
        """A constant, or a symbol as its index in a tuple; a text that begins with "=" is itself."""
        if isinstance(value, str) and value.startswith("="):
            return value[1:]
        if isinstance(value, str):
            index = self._read(where, value)
            self._reachable(where, value, kind)
            return (index,)
        if isinstance(value, (bool, int, float)):
            return value
        raise _Fault(f'{where}: {value!r} is no symbol, number or text; write a text as "=text"')

    def _index(self, where: str, name: Any) -> int:
        if name not in self.symbols:
            raise _Fault(f"{where}: there is no symbol '{name}'; there are {', '.join(self.symbols)}")
        return list(self.symbols).index(name)

    def _read(self, where: str, name: Any) -> int:
        index = self._index(where, name)
        if name not in self.holding:
            raise _Fault(f"{where}: '{name}' is read before anything is written to it; change the order")
        return index

    def _written(self, where: str, name: Any, kind: str) -> int:
        index = self._index(where, name)
        symbol = self.symbols[name]
        if ROLES[symbol["role"]] == "input":
            raise _Fault(f"{where}: '{name}' is an input and may not be written; make it inout")
        self._reachable(where, name, kind)
        self.holding.add(name)
        if symbol["on_host"]:
            self.unsynchronised.add(name)
        return index

    def _reachable(self, where: str, name: str, kind: str) -> None:
        if kind == "compute" and self.symbols[name]["on_host"]:
            raise _Fault(f"{where}: '{name}' lies on the host, where a kernel cannot reach it; transfer it first")

    def _check_outputs(self) -> None:
        for name, symbol in self.symbols.items():
            if ROLES[symbol["role"]] == "output" and name not in self.holding:
                raise _Fault(f"operations: nothing is written to the output '{name}'; write it or take it away")
        for name in self.unsynchronised:
            if ROLES[self.symbols[name]["role"]] != "temporary":
                raise _Fault(f"operations: '{name}' is written on the host and nobody waits for it; end with a sync")


def _fields(where: str, row: Any, fields: Mapping[str, type]) -> dict[str, Any]:
    """The row, with exactly these fields of these types."""
    if not isinstance(row, dict):
        raise _Fault(f"{where}: must be an object with {', '.join(fields)}")
    for name in row:
        if name not in fields:
            raise _Fault(f"{where}: knows no '{name}'; there are {', '.join(fields)}")
    for name, kind in fields.items():
        if not isinstance(row.get(name), kind) or (kind is str and not row[name]):
            raise _Fault(f"{where}.{name}: must be a {kind.__name__}")
    return row


def _one_of(where: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise _Fault(f"{where}: is {value!r} and must be one of {', '.join(allowed)}")
    return str(value)
