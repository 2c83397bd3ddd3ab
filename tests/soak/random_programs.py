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
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tests.soak.random_devices import Devices, Held, balance
from tests.soak.random_operators import CHANGES, EXACT, LARGE, OPERATORS, small

MEMORY_BYTES = 3 << 20
"""Of each device: at times too little for what the threads hold."""
HELD = 20
"""Tensors that a thread holds at most."""


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
        for held in [*reads, *writes]:
            stream.wait_event(held.written)
        for held in writes:
            for event in held.reads.values():
                stream.wait_event(event)
        guests = [held for held in [*reads, *writes] if held.home != stream]
        recorded = self.dice.random() < 0.5
        for held in guests if recorded else []:
            held.views[0][0].record_stream(stream)
        with stream:
            yield
        event = stream.record_event()
        for held in [] if recorded else guests:
            held.home.wait_event(event)
        for held in reads:
            held.reads[stream] = event
        for held in writes:
            held.written = event
            held.reads.clear()

    def keep(self, stream: torch.Stream, made: Tensor, shadow: Tensor) -> Held:
        """Something new, made on this stream."""
        held = Held(stream, [(made, shadow)], stream.record_event())
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
    parser.add_argument("--programs", type=int, help="stop after so many")
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
    while programs != arguments.programs and (programs == 0 or time.monotonic() < until):
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
