"""What only Python can do in a traced program: its garbage collections, calls of torch.nn modules, exceptions that
nobody catches. Hooks are there while a recording wants them, and gone afterwards.

`apply` is called when what is wanted has changed: by `watch.start` and `trace()` before the program goes on, else from
a thread of `_native`'s (native/python_bindings.cpp).
"""

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any, Protocol

from ral_trace.tracer import _native

MODULES = "torch.nn.modules.module"

ITERATION_S = 1.0
"""How long to wait for other threads to leave torch's loop over the hooks."""

_applying = threading.RLock()


def apply() -> None:
    """Puts hooks in, and takes them out, as some recording wants now. May be called at any time, and again."""
    with _applying:
        wanted = _native.details()
        _watch_collections(wanted & _native.DETAILS["PAUSES"] != 0)
        _watch_modules(wanted & _native.DETAILS["MODULES"] != 0)
        _watch_exceptions(wanted != 0)


def forked() -> None:
    """In a forked child: the hooks of its parent are in, and its own recordings may be others."""
    global _applying
    _applying = threading.RLock()  # a thread that is not here may have held it
    _native.forked()
    apply()


def _watch_collections(wanted: bool) -> None:
    present = _native.collected in gc.callbacks
    if wanted and not present:
        gc.callbacks.append(_native.collected)
    elif present and not wanted:
        gc.callbacks.remove(_native.collected)


class _Handle(Protocol):
    """Of a hook of torch's."""

    def remove(self) -> None: ...


_module_hooks: list[_Handle] = []


def _watch_modules(wanted: bool) -> None:
    torch: Any = sys.modules.get("torch")
    modules: Any = sys.modules.get(MODULES)
    if wanted == bool(_module_hooks) or modules is None or not hasattr(torch, "compiler"):
        return  # torch is not there, or not yet: `import torch` comes here again
    _wait_for_iterations(modules.Module._call_impl.__code__)
    while _module_hooks:
        _module_hooks.pop().remove()
    if wanted:
        enter, leave = _module_callbacks(torch.compiler.is_compiling)
        _module_hooks.append(modules.register_module_forward_pre_hook(enter))
        _module_hooks.append(modules.register_module_forward_hook(leave, always_call=True))


class _Known:
    """What a module is called where it is called from: by its path from the outermost one that runs."""

    __slots__ = ("called", "class_name", "name")

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self.class_name = type(module).__qualname__
        self.called: dict[int, tuple[weakref.ref[Any], _Known]] = {}

    def of(self, module: Any) -> "_Known | None":
        """The module as called from this one, if it was before."""
        found = self.called.get(id(module))
        return found[1] if found is not None and found[0]() is module else None

    def add(self, module: Any, known: "_Known") -> "_Known":
        """Remembers it for as long as the module lives."""
        key, called = id(module), self.called

        def forget(gone: weakref.ref[Any]) -> None:
            if (found := called.get(key)) is not None and found[0] is gone:
                del called[key]

        called[key] = (weakref.ref(module, forget), known)
        return known


class _Call:
    """A module's forward that runs on this thread."""

    __slots__ = ("known", "module", "start_ticks")

    def __init__(self, module: Any, known: _Known) -> None:
        self.module = module
        self.known = known
        self.start_ticks = _native.now()


class _Open(threading.local):
    """The calls that are open on a thread, outermost first."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


def _module_callbacks(is_compiling: Callable[[], bool]) -> tuple[Callable[..., None], Callable[..., None]]:
    """The hooks before and after every forward. What is compiled has no modules any more, so nothing is put into it.

    What they know goes with them: a call that they do not see the end of keeps no module alive.
    """
    opened, outside = _Open(), _Known("", None)

    def enter(module: Any, arguments: Any) -> None:
        if is_compiling():
            return
        calls = opened.calls
        if calls and any(call.module is module for call in calls):
            _forget_interrupted(calls, sys._getframe(1))
        caller = calls[-1].known if calls else outside
        calls.append(_Call(module, caller.of(module) or _name(module, calls, caller)))

    def leave(module: Any, arguments: Any, result: Any) -> None:
        if is_compiling():
            return
        calls = opened.calls
        if not calls or (calls[-1].module is not module and not any(call.module is module for call in calls)):
            return  # it began before the hooks were in
        while (call := calls.pop()).module is not module:
            _end(call)  # by an exception of which torch tells no hook (Ctrl-C)
        _end(call)

    return enter, leave


def _end(call: _Call) -> None:
    _native.end_module(call.known.name, call.known.class_name, call.start_ticks)


def _name(module: Any, calls: list[_Call], caller: _Known) -> _Known:
    """By its path in the innermost module that runs and holds it; by its class, where none does."""
    for call in reversed(calls):
        if (path := _path(call.module, module)) is not None:
            return caller.add(module, _Known(f"{call.known.name}.{path}", module))
    return caller.add(module, _Known(type(module).__name__, module))


def _path(holder: Any, module: Any) -> str | None:
    """The shortest; by torch's own table, because a program may have methods of its own for the rest."""
    seen, pending = {id(holder)}, [("", holder)]
    for prefix, parent in pending:
        for name, child in parent._modules.items():
            if child is module:
                return f"{prefix}{name}"
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                pending.append((f"{prefix}{name}.", child))
    return None


def _forget_interrupted(calls: list[_Call], frame: FrameType) -> None:
    """A module that seems to run already either calls itself, or was interrupted by an exception of which torch tells
    no hook. What really runs is on the stack: torch's frames, whose `self` is the module.
    """
    running: list[int] = []
    above = frame.f_back
    while above is not None:
        if above.f_code is frame.f_code:
            running.insert(0, id(above.f_locals.get("self")))
        above = above.f_back
    kept: list[_Call] = []
    for call in calls:
        if id(call.module) in running:
            running = running[running.index(id(call.module)) + 1 :]
            kept.append(call)
    calls[:] = kept


def _wait_for_iterations(call_impl: CodeType) -> None:
    """Where a forward raised, torch walks over the hooks themselves and not over a copy: a change would raise there."""
    until = time.monotonic() + ITERATION_S
    while time.monotonic() < until and any(map(_iterates(call_impl), sys._current_frames().values())):
        time.sleep(0.001)


def _iterates(call_impl: CodeType) -> Callable[[FrameType], bool]:
    def check(frame: FrameType | None) -> bool:
        called = None
        while frame is not None:
            # Else it is in its function `inner`, where the forward runs.
            if frame.f_code is call_impl and (called is None or called.co_name != "inner"):
                return True
            called, frame = frame.f_code, frame.f_back
        return False

    return check


_previous_hook: Callable[..., Any] | None = None
_previous_thread_hook: Callable[..., Any] | None = None


def _watch_exceptions(wanted: bool) -> None:
    """An exception that ends the program, or a thread of it, is worth keeping what led to it."""
    global _previous_hook, _previous_thread_hook
    if wanted and _previous_hook is None:
        _previous_hook, sys.excepthook = sys.excepthook, _uncaught
    elif not wanted and sys.excepthook is _uncaught and _previous_hook is not None:
        sys.excepthook, _previous_hook = _previous_hook, None
    if wanted and _previous_thread_hook is None:
        _previous_thread_hook, threading.excepthook = threading.excepthook, _uncaught_in_thread
    elif not wanted and threading.excepthook is _uncaught_in_thread and _previous_thread_hook is not None:
        threading.excepthook, _previous_thread_hook = _previous_thread_hook, None


def _alarm() -> None:
    if _native.details() != 0:
        _native.raise_alarm(_native.ALARM_UNCAUGHT_EXCEPTION)


def _uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    _alarm()
    (_previous_hook or sys.__excepthook__)(kind, error, traceback)


def _uncaught_in_thread(arguments: Any) -> None:
    _alarm()
    (_previous_thread_hook or threading.__excepthook__)(arguments)
