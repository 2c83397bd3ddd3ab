"""Random programs on several devices, streams and threads, each beside a shadow on the CPU that says what is right.

    python -m tests.soak.random_programs --seed 1 --seconds 10 --threads 4

Values are whole numbers that float32 holds exactly, so that every result must be equal to its shadow. A program obeys
the rules of streams: before a stream reads a tensor it waits for the last write, before it writes for all uses, and a
tensor that is used on another stream than its own is recorded there, or its own stream waits for the other. In between
delays change, memory runs out, kernels fail, caches are emptied. Prints what was done as JSON; raises where anything is
wrong.
"""

import argparse
import contextlib
import faulthandler
import gc
import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

EXACT = 2**22
"""Whole numbers up to here, and sums of two of them, are exact in float32."""
LARGE = 2**16
HELD = 20
"""Tensors that a thread holds at most."""
MEMORY_BYTES = 96 << 20
"""Of each device: some hundred of the largest tensors, and what is too much is soon said."""
INJECTED = re.compile(r"out of (range|bounds)")


@dataclass
class Held:
    """Storage on a device, views of it with their shadows, and who used it last."""

    home: torch.Stream
    views: list[tuple[Tensor, Tensor]]
    written: torch.Event
    write_stream: torch.Stream
    reads: dict[torch.Stream, torch.Event] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.home.device


class Devices:
    """What all threads share."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.models = [torch.ral.device_model(index) for index in range(count)]
        self.lock = threading.Lock()
        self.offered: list[Held] = []
        self.injected = self.surfaced = 0

    def retry(self, action: Callable[[], Any]) -> Any:
        """Repeats what failed for the sake of an earlier kernel's error; that error was meant."""
        while True:
            try:
                return action()
            except (RuntimeError, IndexError) as error:
                if isinstance(error, torch.OutOfMemoryError) or not INJECTED.search(str(error)):
                    raise
                with self.lock:
                    others = re.search(r"\((\d+) later failures", str(error))
                    self.surfaced += 1 + (int(others[1]) if others else 0)
                    assert self.surfaced <= self.injected, f"nobody asked for this error: {error}"

    def fail(self, action: Callable[[], Any]) -> None:
        """Launches what must fail, now or at some later wait."""
        with self.lock:
            self.injected += 1
        self.retry_once(action)

    def retry_once(self, action: Callable[[], Any]) -> None:
        once = iter([action])

        def attempt() -> None:
            for one in once:
                one()

        self.retry(attempt)


Step = Callable[["Program"], None]


class Program:
    """One thread's share: everything that it does follows from its seed, but for what others offer it."""

    def __init__(self, devices: Devices, seed: str) -> None:
        self.devices = devices
        self.dice = random.Random(seed)
        self.numbers = torch.Generator().manual_seed(self.dice.getrandbits(60))
        self.held: list[Held] = []
        self.downloads: list[tuple[torch.Event, Tensor, Tensor]] = []
        self.done: Counter[str] = Counter()
        self.streams = [
            [torch.ral.current_stream(index), *(torch.Stream(device=f"ral:{index}") for _ in range(3))]
            for index in range(devices.count)
        ]

    def run(self, until: float, steps: int | None) -> None:
        """Steps until the time has come, or so many; then everything is compared and let go of."""
        names, weights = zip(*WEIGHTS.items(), strict=True)
        count = 0
        while time.monotonic() < until and (steps is None or count < steps):
            count += 1
            step: Step = self.dice.choices(names, weights)[0]
            try:
                step(self)
                self.done[step.__name__] += 1
            except torch.OutOfMemoryError:
                self.done["out of memory"] += 1
                del self.held[len(self.held) // 2 :]
                self.devices.retry(torch.ral.synchronize)
        while self.held:
            self.compare(self.held.pop())
        self.finish_downloads()

    # --- using tensors by the rules ---

    @contextlib.contextmanager
    def using(self, stream: torch.Stream, reads: list[Held], writes: list[Held]) -> Iterator[None]:
        """Inside, the stream may use them. Afterwards their own streams wait for it, where it was not recorded."""
        guests = []
        for held in [*reads, *writes]:
            if held.write_stream != stream:
                stream.wait_event(held.written)
            if held.home != stream and self.dice.random() < 0.5:
                held.views[0][0].record_stream(stream)
            elif held.home != stream:
                guests.append(held)
        for held in writes:
            for other, event in held.reads.items():
                if other != stream:
                    stream.wait_event(event)
        with stream:
            yield
        event = stream.record_event()
        for held in guests:
            held.home.wait_event(event)
        for held in reads:
            held.reads[stream] = event
        for held in writes:
            held.written, held.write_stream = event, stream
            held.reads.clear()

    def keep(self, stream: torch.Stream, made: Tensor, shadow: Tensor) -> Held:
        """Something new, made on this stream."""
        held = Held(stream, [(made, shadow)], stream.record_event(), stream)
        self.held.append(held)
        if len(self.held) > HELD:
            gone = self.held.pop(self.dice.randrange(HELD))
            if self.dice.random() < 0.3:
                self.compare(gone)
        return held

    def pick(self, device: torch.device | None = None) -> Held:
        there = [held for held in self.held if device is None or held.device == device]
        return self.dice.choice(there) if there else self.make(device)

    def stream_on(self, device: torch.device) -> torch.Stream:
        return self.dice.choice(self.streams[device.index])

    def any_device(self) -> torch.device:
        return torch.device("ral", self.dice.randrange(self.devices.count))

    def compare(self, held: Held) -> None:
        stream = self.stream_on(held.device)
        with self.using(stream, [held], []):
            for tensor, shadow in held.views:
                self.same(self.devices.retry(tensor.cpu), shadow)

    def same(self, found: Tensor, expected: Tensor) -> None:
        assert found.shape == expected.shape
        wrong = (found != expected).nonzero()
        if len(wrong) != 0:
            first = tuple(wrong[0].tolist())
            raise AssertionError(
                f"{len(wrong)} of {expected.numel()} elements differ, the first at {first}:"
                f" {found[first]} instead of {expected[first]}"
            )

    # --- steps ---

    def fresh(self) -> Tensor:
        """Whole numbers from -50 to 50 on the CPU."""
        shape = self.dice.choice([(7,), (64,), (5, 9), (32, 32), (3, 4, 8), (LARGE,), (256, 129)])
        dtype = self.dice.choice([torch.float32, torch.float32, torch.float32, torch.int64, torch.float64])
        return torch.randint(-50, 51, shape, generator=self.numbers).to(dtype)

    def make(self, device: torch.device | None = None) -> Held:
        """From the host: blocking, or pinned without waiting, or from ordinary memory that changes right after."""
        shadow = self.fresh()
        stream = self.stream_on(device or self.any_device())
        with stream:
            way = self.dice.randrange(3)
            if way == 0:
                made = self.devices.retry(lambda: shadow.to(stream.device))
            else:
                source = shadow.pin_memory() if way == 1 else shadow.clone()
                made = torch.empty_like(source, device=stream.device)
                self.devices.retry(lambda: made.copy_(source, non_blocking=True))
                if way == 2:
                    source.fill_(-1)
        return self.keep(stream, made, shadow)

    def compute(self) -> None:
        """A new tensor from one or two."""
        first = self.pick()
        second = self.pick(first.device)
        (a, a_shadow), (b, b_shadow) = self.dice.choice(first.views), self.dice.choice(second.views)
        name, function, fits = self.dice.choice(OPERATORS)
        if not fits(a_shadow, b_shadow):
            return
        stream = self.stream_on(first.device)
        with self.using(stream, [first, second], []):
            made = self.devices.retry(lambda: function(a, b))
        self.done[name] += 1
        self.keep(stream, made, function(a_shadow, b_shadow))

    def change(self) -> None:
        """In place, also through a view: all others see it."""
        held = self.pick()
        tensor, shadow = self.dice.choice(held.views)
        name, function = self.dice.choice(CHANGES)
        if small(shadow) * 8 > EXACT:
            name, function = CHANGES[0]
        stream = self.stream_on(held.device)
        with self.using(stream, [], [held]):
            self.devices.retry(lambda: function(tensor))
        function(shadow)
        self.done[name] += 1

    def look(self) -> None:
        """One more view of a tensor."""
        held = self.pick()
        tensor, shadow = self.dice.choice(held.views)
        length = shadow.shape[0]
        begin = self.dice.randrange(length)
        size = self.dice.randint(1, length - begin)
        view = self.dice.choice(
            [
                lambda t: t.narrow(0, begin, size),
                lambda t: t.transpose(0, -1),
                lambda t: t[begin::2],
                lambda t: t.unsqueeze(0),
                lambda t: t.select(0, begin) if t.dim() > 1 else t,
            ]
        )
        if shadow.dim() < 4 and len(held.views) < 5:
            held.views.append((view(tensor), view(shadow)))

    def copy_over(self) -> None:
        """Into a tensor of this or another device."""
        source, target = self.pick(), self.pick(self.any_device())
        tensor, shadow = self.dice.choice(source.views)
        match = [(t, s) for t, s in target.views if s.shape == shadow.shape]
        if source is target or not match:
            self.send()
            return
        from_stream, to_stream = self.stream_on(source.device), self.stream_on(target.device)
        if source.device == target.device:
            from_stream = to_stream
        to, to_shadow = self.dice.choice(match)
        with self.using(from_stream, [source], []), self.using(to_stream, [], [target]):
            self.devices.retry(lambda: to.copy_(tensor, non_blocking=True))
        to_shadow.copy_(shadow)

    def send(self) -> None:
        """To another device, as a new tensor."""
        source = self.pick()
        tensor, shadow = self.dice.choice(source.views)
        device = self.any_device()
        from_stream, to_stream = self.stream_on(source.device), self.stream_on(device)
        if source.device == device:
            from_stream = to_stream
        with self.using(from_stream, [source], []), to_stream:
            made = self.devices.retry(lambda: tensor.to(device, non_blocking=True, copy=True))
        self.keep(to_stream, made, shadow.clone())

    def download(self) -> None:
        """Into pinned memory, to be looked at later."""
        held = self.pick()
        tensor, shadow = self.dice.choice(held.views)
        target = torch.empty(shadow.shape, dtype=shadow.dtype).pin_memory()
        stream = self.stream_on(held.device)
        with self.using(stream, [held], []):
            self.devices.retry(lambda: target.copy_(tensor, non_blocking=True))
        self.downloads.append((stream.record_event(), target, shadow.clone()))
        if len(self.downloads) > 8:
            self.finish_downloads()

    def finish_downloads(self) -> None:
        for event, found, expected in self.downloads:
            self.devices.retry(event.synchronize)
            self.same(found, expected)
        self.downloads.clear()

    def look_closely(self) -> None:
        self.compare(self.pick())

    def drop(self) -> None:
        if self.held:
            self.held.pop(self.dice.randrange(len(self.held)))

    def offer(self) -> None:
        """To another thread, which goes on with it."""
        with self.devices.lock:
            if self.held:
                self.devices.offered.append(self.held.pop(self.dice.randrange(len(self.held))))
            if len(self.devices.offered) > 4:
                self.held.append(self.devices.offered.pop(0))

    def delay(self) -> None:
        """Makes a device late from now on, or prompt again."""
        device = self.dice.randrange(self.devices.count)
        if self.dice.random() < 0.5:
            torch.ral.set_device_model(device, **self.devices.models[device])
        else:
            late_ns = self.dice.choice([20_000, 300_000])
            torch.ral.set_device_model(device, **{self.dice.choice(["launch_ns", "copy_latency_ns"]): late_ns})

    def wait(self) -> None:
        device = self.any_device()
        action = self.dice.choice([lambda: torch.ral.synchronize(device), self.stream_on(device).synchronize])
        self.devices.retry(action)

    def tidy(self) -> None:
        self.dice.choice([torch.ral.empty_cache, torch.ral.gc, gc.collect])()

    def ask_too_much(self) -> None:
        """More than there is."""
        with contextlib.suppress(torch.OutOfMemoryError):
            torch.empty(2 * MEMORY_BYTES, dtype=torch.uint8, device=self.any_device())
            raise AssertionError("more memory than there is")

    def fail_late(self) -> None:
        """An index that is out of range: said where somebody waits."""
        device = self.any_device()
        with self.stream_on(device):
            table = self.devices.retry(lambda: torch.ones(4, 8).to(device))
            index = self.devices.retry(lambda: torch.tensor([0, 7]).to(device))
            self.devices.fail(lambda: torch.nn.functional.embedding(index, table))


WEIGHTS: dict[Step, int] = {
    Program.make: 8,
    Program.compute: 40,
    Program.change: 25,
    Program.look: 8,
    Program.copy_over: 8,
    Program.send: 4,
    Program.download: 4,
    Program.look_closely: 8,
    Program.drop: 5,
    Program.offer: 3,
    Program.delay: 1,
    Program.wait: 1,
    Program.tidy: 1,
    Program.ask_too_much: 1,
    Program.fail_late: 1,
}


def small(tensor: Tensor) -> float:
    """The largest magnitude in it."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and small(a) + small(b) < EXACT


def multiplies(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() == 2 and a.dtype == b.dtype and a.shape[1] == b.shape[0] and a.is_floating_point()


Pair = Callable[[Tensor, Tensor], Tensor]
OPERATORS: list[tuple[str, Pair, Callable[[Tensor, Tensor], bool]]] = [
    ("add", lambda a, b: a + b, alike),
    ("sub", lambda a, b: a - b, alike),
    ("maximum", torch.maximum, alike),
    ("where", lambda a, b: torch.where(a > b, a, b), alike),
    ("mul", lambda a, b: a * b, lambda a, b: alike(a, b) and small(a) * small(b) < EXACT),
    ("scale", lambda a, b: a * 3, lambda a, b: small(a) * 3 < EXACT),
    ("relu", lambda a, b: torch.relu(a), lambda a, b: True),
    ("neg", lambda a, b: -a, lambda a, b: True),
    ("abs", lambda a, b: a.abs(), lambda a, b: True),
    ("clone", lambda a, b: a.clone(), lambda a, b: True),
    ("sum", lambda a, b: a.sum(0), lambda a, b: a.dim() > 1 and small(a) * a.shape[0] < EXACT),
    ("amax", lambda a, b: a.amax(-1), lambda a, b: a.dim() > 1),
    ("matmul", lambda a, b: a @ b, lambda a, b: multiplies(a, b) and small(a) * small(b) * a.shape[1] < EXACT),
    ("gram", lambda a, b: a @ a.t(), lambda a, b: a.dim() == 2 and multiplies(a, a.t()) and small(a) ** 2 * a.shape[1] < EXACT),
    ("cat", lambda a, b: torch.cat([a, b]), lambda a, b: alike(a, b) and a.numel() < LARGE),
    ("cumsum", lambda a, b: a.cumsum(0), lambda a, b: small(a) * a.shape[0] < EXACT),
    ("flip", lambda a, b: a.flip(0), lambda a, b: True),
    ("sort", lambda a, b: a.sort(-1).values, lambda a, b: a.numel() < 4096),
    ("nonzero", lambda a, b: a.nonzero(), lambda a, b: 0 < int(a.count_nonzero()) and a.numel() < 4096),
    ("to_float", lambda a, b: a.to(torch.float32, copy=True), lambda a, b: True),
    ("to_long", lambda a, b: a.to(torch.int64, copy=True), lambda a, b: True),
]
CHANGES: list[tuple[str, Callable[[Tensor], Any]]] = [
    ("remainder_", lambda t: t.remainder_(97)),
    ("add_", lambda t: t.add_(3)),
    ("mul_", lambda t: t.mul_(-2)),
    ("zero_", lambda t: t.zero_()),
    ("fill_", lambda t: t.fill_(5)),
    ("clamp_", lambda t: t.clamp_(-40, 60)),
    ("twice_", lambda t: t.add_(t)),
    ("relu_", lambda t: torch.relu_(t)),
    ("abs_", lambda t: t.abs_()),
]


def balance(count: int) -> list[int]:
    """Bytes in use on each device, after all is done. Raises where the books of a device do not add up."""
    from ral_trace.backend import _adapter

    gc.collect()
    for index in range(count):
        torch.ral.synchronize(index)
    torch.ral.empty_cache()
    used = []
    for index in range(count):
        stats = torch.ral.memory_stats(index)
        assert _adapter.check_memory(index) == "", (index, _adapter.check_memory(index))
        assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"], "something is still pending"
        assert torch.ral.current_stream(index).query(), "a stream has work after it was waited for"
        used.append(int(stats["allocated_bytes.all.current"]))
    return used


def run_threads(devices: Devices, seed: str, threads: int, until: float, steps: int | None) -> Counter[str]:
    """Programs side by side; the first exception of a thread is raised."""
    programs = [Program(devices, f"{seed}/{number}") for number in range(threads)]
    failures: list[BaseException] = []

    def body(program: Program) -> None:
        try:
            program.run(until, steps)
        except BaseException as failure:  # noqa: BLE001  handed to the main thread
            failures.append(failure)
            program.held.clear()

    running = [threading.Thread(target=body, args=(program,)) for program in programs]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]
    for held in devices.offered:
        programs[0].compare(held)
    devices.offered.clear()
    return sum((program.done for program in programs), Counter())


def main() -> None:
    """Runs programs until the time is over, with a seed each, and prints what they did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--steps", type=int, help="steps of a thread of one program", default=1500)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--devices", default="host:1,sim:2")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(arguments.seconds + 90, exit=True)
    from ral_trace.backend import enable

    enable(arguments.devices)
    torch.set_num_threads(1)
    count = torch.ral.device_count()
    for index in range(count):
        memory_bytes = torch.ral.get_device_properties(index)["memory_bytes"]
        torch.ral.memory.set_per_process_memory_fraction(MEMORY_BYTES / memory_bytes, index)
    before = balance(count)
    until = time.monotonic() + arguments.seconds
    done: Counter[str] = Counter()
    programs = 0
    while programs == 0 or time.monotonic() < until:
        devices = Devices(count)
        seed = f"{arguments.seed}.{programs}"
        print(f"program {seed}", file=sys.stderr, flush=True)
        done += run_threads(devices, seed, arguments.threads, until, arguments.steps)
        for index in range(count):
            devices.retry(lambda index=index: torch.ral.synchronize(index))
            torch.ral.set_device_model(index, **devices.models[index])
        assert devices.surfaced == devices.injected, "an error was lost"
        assert balance(count) == before, "memory is missing"
        programs += 1
    print(json.dumps({"programs": programs, **done}))


if __name__ == "__main__":
    main()
