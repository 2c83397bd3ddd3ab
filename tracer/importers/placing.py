"""Ids for the processes, threads, devices and streams that staged events name by keys, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ral_trace.tracer.store import TABLES

if TYPE_CHECKING:
    from ral_trace.tracer.importers.staging import Staging

Key = tuple[str | None, int | None, int, int | None, int | None]
"""Process, tid, whether it is on a device, the device's number, the stream's number."""
Ids = tuple[int, int | None, int | None, int | None]
"""Of the process, the thread, the device, the stream."""


class Places:
    """What an importer knows of the processes, threads and devices that its rows name by key.

    `otherwise` gives the columns of a process that is not described, from its key.
    """

    def __init__(self, device_type: str, vendor: str, otherwise: Callable[[str], dict[str, Any]]) -> None:
        self.otherwise = otherwise
        self.device_type = device_type
        self.vendor = vendor
        self.processes: dict[str | None, dict[str, Any]] = {}
        self.threads: dict[tuple[str | None, int | None], dict[str, Any]] = {}
        self.devices: dict[tuple[str | None, int | None], dict[str, Any]] = {}
        """By process and index; process None: for all that have none of their own."""


class Placing:
    """Adds what is new to the trace's tables, all of one table at once, because a damaged file may name very many."""

    def __init__(self, staging: Staging, places: Places) -> None:
        self._staging = staging
        self._builder = staging.rows.builder
        self._places = places
        self._ids: dict[tuple[str, Hashable], int] = {}

    def ids(self, keys: Sequence[Key]) -> list[Ids]:
        """Those of each key, in its order."""
        self._processes(process for process, *_ in keys)
        threads = dict.fromkeys((process, tid) for process, tid, *_ in keys if tid is not None)
        self._add("thread", {
            key: {"process": self._ids["process", key[0]], "tid": key[1], **self._places.threads.get(key, {})}
            for key in threads})  # fmt: skip
        self._devices((process, number) for process, _, on_device, number, _ in keys if on_device)
        streams = dict.fromkeys(
            (process, number, stream)
            for process, _, on_device, number, stream in keys
            if on_device and stream is not None
        )
        self._add("stream", {key: {"device": self._ids["device", key[:2]], "number": key[2]} for key in streams})
        return [self._of(key) for key in keys]

    def _of(self, key: Key) -> Ids:
        process, tid, on_device, number, stream = key
        get = self._ids.get
        if not on_device:
            return self._ids["process", process], get(("thread", (process, tid))), None, None
        device = self._ids["device", (process, number)]
        return (
            self._ids["process", process],
            get(("thread", (process, tid))),
            device,
            get(("stream", (process, number, stream))),
        )

    def process(self, key: str | None) -> int:
        """The id of one process."""
        self._processes([key])
        return self._ids["process", key]

    def device(self, process: str | None, number: int | None) -> int:
        """The id of one device."""
        self._processes([process])
        self._devices([(process, number)])
        return self._ids["device", (process, number)]

    def _processes(self, keys: Iterable[str | None]) -> None:
        known, otherwise = self._places.processes, self._places.otherwise
        source = self._staging.rows.source
        self._add("process", {
            key: {"source": source, **(known[key] if key in known else {} if key is None else otherwise(key))}
            for key in dict.fromkeys(keys)})  # fmt: skip

    def _devices(self, keys: Iterable[tuple[str | None, int | None]]) -> None:
        """A number that no device can have is unknown."""
        known, new = self._places.devices, {}
        for key in dict.fromkeys(keys):
            process, number = key
            if number is not None and not -(2**31) <= number < 2**31:
                if ("device", key) not in self._ids:
                    self._staging.rows.bad("devices with a number that cannot be: taken as unknown", number)
                number = None
            described = known.get((process, number)) or known.get((None, number)) or {"vendor": self._places.vendor}
            new[key] = {"process": self._ids["process", process], "type": self._places.device_type, "index": number,
                        **described}  # fmt: skip
        self._add("device", new)

    def _add(self, table: str, wanted: Mapping[Any, Mapping[str, Any]]) -> None:
        new = {key: row for key, row in wanted.items() if (table, key) not in self._ids}
        if not new:
            return
        types = {column: kind for column, (kind, _) in TABLES[table].columns.items()}
        columns = {column: "text" if kind == "VARCHAR" else "int" for column, kind in types.items()}
        first = self._builder.new_ids(table, len(new))
        rows = []
        for id, (key, row) in enumerate(new.items(), first):
            self._ids[table, key] = id
            rows.append(tuple({"id": id, **row}.get(column) for column in columns))
        self._staging.table("new_place", columns)
        self._staging.append("new_place", list(columns), rows)
        values = ", ".join(f'try_cast("{column}" AS {kind})' for column, kind in types.items())
        self._builder.insert(table, columns, f"SELECT {values} FROM new_place")
