"""From drained records to the rows of a trace. SQL over the columns that the native reader hands over.

Batch by batch: what a row says of itself is in the trace at once; what needs the others waits for `finish`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ral_trace.tracer import _native
from ral_trace.tracer.schema import DEVICE_KINDS, FLAGS
from ral_trace.tracer.store import TraceBuilder

STAGING = """
CREATE TEMP TABLE record (process INTEGER, tid UINTEGER, kind UTINYINT, ts_ns BIGINT, dur_ns BIGINT, correlation BIGINT,
                          bytes BIGINT, arg0 UBIGINT, arg1 UBIGINT, name UINTEGER, stack UINTEGER, device TINYINT,
                          stream UTINYINT, flags UTINYINT);
CREATE TEMP TABLE record_name (process INTEGER, id UINTEGER, text VARCHAR);
CREATE TEMP TABLE record_node (process INTEGER, id UINTEGER, caller UINTEGER, frame UINTEGER);
CREATE TEMP TABLE thread_row (id INTEGER, process INTEGER, tid UINTEGER);
CREATE TEMP TABLE device_row (id INTEGER, process INTEGER, code TINYINT);
CREATE TEMP TABLE stream_row (id INTEGER, device INTEGER, code UTINYINT);
CREATE TEMP TABLE stack_row (id INTEGER, process INTEGER, node UINTEGER);
CREATE TEMP TABLE fact (process INTEGER, device TINYINT, stream UTINYINT, kind UTINYINT, name UINTEGER, number BIGINT);
CREATE TEMP TABLE op_seen (id BIGINT, process INTEGER, ts_ns BIGINT, arg0 UBIGINT, backward BOOLEAN,
                           correlation BIGINT);
CREATE TEMP TABLE access_record (process INTEGER, correlation BIGINT, ts_ns BIGINT, device INTEGER, address UBIGINT,
                                 mode VARCHAR)
"""
"""`record` has the columns of tracer/native/columns.h in their order (tracer/native/record.h says what arg0 and arg1
are for each kind), and holds one batch. The others grow: names and lines of stacks by id; which ids of the trace
threads, devices, streams and stacks have; and what waits for the end.
"""

STRIPED = "r.kind = 'region' AND r.correlation <> 0"
DOMAINS = f"(r.correlation >> {_native.STRIPE_BITS})"
STRIPE_BYTES = f"(r.correlation & {(1 << _native.STRIPE_BITS) - 1})"
"""A region that is striped over memory domains says so in its correlation; see tracer/native/record.h."""

HAPPENED_NS = "if(r.kind = 'free', r.ts_ns + r.dur_ns, r.ts_ns)"
"""A free's record begins with the last use of its block."""

READ, WRITE = 1, 2
"""Bits of AccessMode in native/record.h."""

NO_DEVICE = -1
NO_OTHER_DEVICE = 2**64 - 1
"""arg0 of a transfer without a second device: -1 as an unsigned number."""

MEMORY_KINDS = ("alloc", "free", "region")
"""Of no stream."""


@dataclass(frozen=True)
class ProcessNames:
    """What the tables in a process's shared memory say: names by id, and lines of stacks, (id, caller, frame)."""

    process: int
    names: Sequence[tuple[int, str]]
    stacks: Sequence[tuple[int, int, int]] = ()


class LiveRows:
    """Turns the records of one recording into rows of `builder`'s trace."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.connection = builder.connection
        self.events = 0
        """So far: event.id is the order of their arrival. (rowid is not: in a transaction it begins anywhere.)"""
        self.connection.execute(STAGING)

    def add_names(self, names: ProcessNames) -> None:
        """Once each, before the records that carry them."""
        if names.names:
            ids, texts = zip(*names.names, strict=True)
            self.connection.execute(
                "INSERT INTO record_name SELECT ?, unnest(?::UINTEGER[]), unnest(?::VARCHAR[])",
                [names.process, list(ids), list(texts)],
            )
        if names.stacks:
            ids, callers, frames = zip(*names.stacks, strict=True)
            self.connection.execute(
                "INSERT INTO record_node SELECT ?, unnest(?::UINTEGER[]), unnest(?::UINTEGER[]), unnest(?::UINTEGER[])",
                [names.process, list(ids), list(callers), list(frames)],
            )

    def add(self, batch: _native.Batch) -> None:
        """Moves a batch of records into the trace, and empties it."""
        self.connection.register("batch", batch)
        self.connection.execute("CREATE OR REPLACE TEMP TABLE record AS FROM batch")
        self.connection.unregister("batch")
        batch.clear()
        self.add_staged()

    def add_staged(self) -> None:
        """The rows of `record` become rows of the trace."""
        self.connection.execute(f"""
            CREATE OR REPLACE TEMP VIEW known AS
            SELECT {self.events} + row_number() OVER () - 1 AS id, record.* EXCLUDE (kind),
                   enum_range(NULL::event_kind)[kind + 1]::event_kind AS kind,
                   (flags & {FLAGS["BEFORE_TRACE"]}) <> 0 AS before_trace
            FROM record WHERE kind < {len(_native.KINDS)}""")
        self._number_places()
        self._add_events()
        self._add_memory_changes()
        self._stage_for_the_end()
        [(rows,)] = self.connection.execute("SELECT count(*) FROM known").fetchall()
        self.events += rows
        self.connection.execute("CREATE OR REPLACE TEMP TABLE record AS FROM record LIMIT 0")

    def _number_places(self) -> None:
        """Gives ids to threads, devices, streams and stacks that are new. The host's own memory is a device, without
        streams.
        """
        without_stream = [_native.KIND_DEVICE, *(_native.KINDS.index(kind) for kind in MEMORY_KINDS)]
        self.connection.execute("""
            INSERT INTO thread_row
            SELECT (SELECT count(*) FROM thread_row) + row_number() OVER (ORDER BY process, tid) - 1, process, tid
            FROM (SELECT DISTINCT process, tid FROM record ANTI JOIN thread_row USING (process, tid))""")
        self.connection.execute(f"""
            INSERT INTO device_row
            SELECT (SELECT count(*) FROM device_row) + row_number() OVER (ORDER BY process, device) - 1, process, device
            FROM (SELECT DISTINCT process, device FROM record r WHERE device <> {NO_DEVICE}
                  AND NOT EXISTS (FROM device_row d WHERE d.process = r.process AND d.code = r.device))""")
        self.connection.execute(f"""
            INSERT INTO stream_row
            SELECT (SELECT count(*) FROM stream_row) + row_number() OVER (ORDER BY device, code) - 1, device, code
            FROM (SELECT DISTINCT d.id AS device, r.stream AS code FROM record r
                  JOIN device_row d ON d.process = r.process AND d.code = r.device
                  WHERE r.device >= 0 AND r.kind NOT IN ({", ".join(map(str, without_stream))})
                  AND NOT EXISTS (FROM stream_row s WHERE s.device = d.id AND s.code = r.stream))""")
        self.connection.execute("""
            INSERT INTO stack_row
            SELECT (SELECT count(*) FROM stack_row) + row_number() OVER (ORDER BY process, stack) - 1, process, stack
            FROM (SELECT DISTINCT process, stack FROM record r WHERE stack <> 0
                  AND NOT EXISTS (FROM stack_row s WHERE s.process = r.process AND s.node = r.stack))""")

    def _add_events(self) -> None:
        """What was there before the recording is no event of it; it becomes a row of `allocation` or `region` only."""
        directions = "[" + ", ".join(f"'{direction}'" for direction in _native.DIRECTIONS) + "]"
        sorts = "[" + ", ".join(f"nullif('{sort}', '')" for sort in _native.ANNOTATION_SORTS) + "]"
        on_device = ", ".join(f"'{kind}'" for kind in DEVICE_KINDS)
        self.connection.execute(f"""
            INSERT INTO event (id, kind, category, name, ts_ns, dur_ns, process, thread, device, stream, correlation,
                               bytes, stack, args, flags)
            SELECT r.id, r.kind,
                   CASE r.kind WHEN 'op' THEN if((r.flags & {FLAGS["BACKWARD"]}) = 0, 'forward', 'backward')
                               WHEN 'transfer' THEN {directions}[try_cast(r.arg1 AS BIGINT) + 1]
                               WHEN 'annotation' THEN {sorts}[try_cast(r.arg0 AS BIGINT) + 1] END,
                   n.text, {HAPPENED_NS}, if(r.kind = 'free', 0, r.dur_ns), r.process,
                   if(r.kind IN ({on_device}), NULL, t.id), d.id, s.id,
                   if(r.kind IN ('region', 'op'), NULL, nullif(r.correlation, 0)), nullif(r.bytes, -1), k.id,
                   CASE WHEN r.kind = 'launch' THEN json_object('routed', n0.text, 'route', n1.text)
                        WHEN r.kind = 'kernel' THEN json_object('kernel', n0.text, 'vendor', n1.text)
                        WHEN r.kind = 'fallback' THEN json_object('routed', n0.text, 'reason', n1.text)
                        WHEN r.kind = 'op' AND n1.text IS NOT NULL THEN try_cast(n1.text AS JSON)
                        WHEN r.kind = 'annotation' AND n1.text IS NOT NULL THEN json_object('class', n1.text)
                        WHEN r.kind = 'python' THEN json_object('generation', r.arg0, 'collected', r.arg1)
                        WHEN r.kind = 'region' AND r.correlation <> 0
                             THEN json_object('domain', r.stream, 'domains', {DOMAINS}, 'stripe_bytes', {STRIPE_BYTES})
                        WHEN r.kind = 'sync' AND n0.text IS NOT NULL THEN json_object('waited_for', n0.text)
                        WHEN r.kind = 'transfer' AND r.arg0 <> {NO_OTHER_DEVICE}
                             THEN json_object('other_device', 'ral:' || r.arg0) END,
                   r.flags
            FROM known r
            LEFT JOIN record_name n ON n.process = r.process AND n.id = r.name
            LEFT JOIN record_name n0 ON n0.process = r.process AND n0.id = r.arg0
                 AND r.kind IN ('launch', 'kernel', 'fallback', 'sync')
            LEFT JOIN record_name n1 ON n1.process = r.process AND n1.id = r.arg1
                 AND r.kind IN ('launch', 'kernel', 'fallback', 'op', 'annotation')
            LEFT JOIN thread_row t ON t.process = r.process AND t.tid = r.tid
            LEFT JOIN device_row d ON d.process = r.process AND d.code = r.device
            LEFT JOIN stream_row s ON s.device = d.id AND s.code = r.stream
                 AND r.kind NOT IN ('alloc', 'free', 'region')
            LEFT JOIN stack_row k ON k.process = r.process AND k.node = r.stack
            WHERE NOT (r.before_trace AND r.kind IN ('alloc', 'region'))""")

    def _add_memory_changes(self) -> None:
        self.connection.execute(f"""
            INSERT INTO memory_change
            SELECT CASE WHEN r.kind <> 'region' THEN r.kind::VARCHAR
                        WHEN (r.flags & {FLAGS["CLOSED"]}) = 0 THEN 'open' ELSE 'close' END,
                   r.id, {HAPPENED_NS}, d.id, r.arg0, nullif(r.bytes, -1), if(r.kind = 'alloc', r.arg1, NULL),
                   if(r.kind = 'free' AND r.device >= 0, r.arg1, NULL), if(r.kind = 'region', r.arg1, NULL),
                   r.before_trace, CASE WHEN {STRIPED} THEN r.stream END, CASE WHEN {STRIPED} THEN {DOMAINS} END,
                   CASE WHEN {STRIPED} THEN {STRIPE_BYTES} END, NULL,
                   if(r.kind = 'free' AND r.dur_ns > 0, r.ts_ns, NULL)
            FROM known r JOIN device_row d ON d.process = r.process AND d.code = r.device
            WHERE r.kind IN ('alloc', 'free', 'region')""")

    def _stage_for_the_end(self) -> None:
        self.connection.execute(f"""
            INSERT INTO fact SELECT process, device, stream, kind, name, bytes FROM record
            WHERE kind IN ({_native.KIND_DEVICE}, {_native.KIND_STREAM})""")
        self.connection.execute(f"""
            INSERT INTO op_seen
            SELECT id, process, ts_ns, arg0, (flags & {FLAGS["BACKWARD"]}) <> 0, correlation FROM known
            WHERE kind = 'op' AND (arg0 <> 0 OR correlation <> 0)""")
        self.connection.execute(f"""
            INSERT INTO access_record
            SELECT a.process, a.correlation, a.ts_ns, d.id, a.arg0,
                   CASE a.arg1 WHEN {READ} THEN 'read' WHEN {WRITE} THEN 'write' ELSE 'read_write' END
            FROM record a JOIN device_row d ON d.process = a.process AND d.code = a.device
            WHERE a.kind = {_native.KIND_ACCESS}""")

    def finish(self, thread_names: dict[tuple[int, int], str]) -> None:
        """Adds what needs all records: threads (named by process and tid), devices and streams as they describe
        themselves, stacks, uses of blocks, what caused a backward node. Nothing can be added afterwards.
        """
        self._finish_threads(thread_names)
        self._finish_devices()
        self._finish_stacks()
        self._link_autograd()
        self._forget_blocks_of_others()
        # `derive` finds the allocation that was at the address then.
        self.connection.execute("""
            INSERT INTO access_seen SELECT op.id, a.ts_ns, a.device, a.address, a.mode FROM access_record a
            JOIN op_seen op ON op.process = a.process AND op.correlation = a.correlation""")
        # A fallback has its line from the launch around it.
        self.connection.execute("""
            UPDATE event SET stack = launch.stack FROM event launch
            WHERE event.kind = 'fallback' AND event.stack IS NULL AND launch.kind = 'launch'
              AND launch.stack IS NOT NULL AND launch.process = event.process
              AND launch.correlation = event.correlation""")

    def _forget_blocks_of_others(self) -> None:
        """A host's block that is freed without having been allocated here is no block of this recording: its size is
        unknown.
        """
        self.connection.execute(f"""
            DELETE FROM memory_change WHERE action = 'free' AND rowid IN (
                SELECT number FROM (
                    SELECT m.rowid AS number, count(*) FILTER (action = 'alloc') OVER (
                               PARTITION BY device, address ORDER BY ts_ns, event) AS allocated
                    FROM memory_change m JOIN device_row d ON d.id = m.device AND d.code = {_native.HOST_MEMORY})
                WHERE allocated = 0)""")

    def _finish_threads(self, names: dict[tuple[int, int], str]) -> None:
        rows = self.connection.execute("SELECT id, process, tid FROM thread_row ORDER BY id").fetchall()
        if rows:
            self.connection.executemany(
                "INSERT INTO thread (id, process, tid, name) VALUES (?, ?, ?, ?)",
                [(number, process, tid, names.get((process, tid))) for number, process, tid in rows],
            )

    def _finish_devices(self) -> None:
        """A device that never described itself still gets its row, because its events have one."""
        self.connection.execute("""
            CREATE TEMP TABLE said AS
            SELECT f.process, f.device, f.stream, f.kind, any_value(n.text) AS text, any_value(f.number) AS number
            FROM fact f LEFT JOIN record_name n ON n.process = f.process AND n.id = f.name GROUP BY ALL""")
        self.connection.execute(f"""
            INSERT INTO device
            SELECT d.id, d.process,
                   if(d.code = {_native.HOST_MEMORY}, 'cpu', coalesce(try_cast(said.text AS JSON)->>'type', 'ral')),
                   if(d.code = {_native.HOST_MEMORY}, 0, d.code), try_cast(said.text AS JSON)->>'vendor',
                   try_cast(said.text AS JSON)->>'name', said.number
            FROM device_row d LEFT JOIN said ON said.process = d.process AND said.device = d.code
                 AND said.kind = {_native.KIND_DEVICE} ORDER BY d.id""")
        number = 2**_native.STREAM_BITS - 1
        self.connection.execute(f"""
            INSERT INTO stream
            SELECT s.id, s.device, s.code & {number}, said.text, said.number
            FROM stream_row s JOIN device_row d ON d.id = s.device
            LEFT JOIN said ON said.process = d.process AND said.device = d.code AND said.stream = s.code
                 AND said.kind = {_native.KIND_STREAM} ORDER BY s.id""")
        self.connection.execute("DROP TABLE said")

    def _finish_stacks(self) -> None:
        """Each from its innermost line outwards."""
        self.connection.execute("""
            INSERT INTO stack
            WITH RECURSIVE walk AS (
                SELECT id, process, node, 0 AS depth FROM stack_row
                UNION ALL
                SELECT w.id, w.process, n.caller, w.depth + 1 FROM walk w
                JOIN record_node n ON n.process = w.process AND n.id = w.node WHERE n.caller <> 0),
            line AS (
                SELECT w.id, w.depth, string_split(t.text, chr(9)) AS part FROM walk w
                JOIN record_node n ON n.process = w.process AND n.id = w.node
                LEFT JOIN record_name t ON t.process = n.process AND t.id = n.frame)
            SELECT id, list({'file': array_to_string(part[3:], chr(9)), 'line': try_cast(part[1] AS INTEGER),
                             'function': part[2]} ORDER BY depth) FROM line GROUP BY id ORDER BY id""")

    def _link_autograd(self) -> None:
        """From a forward op to the nodes of the backward pass that it caused.

        Both carry autograd's sequence number and the forward thread (autograd_key() in native/record.h). The number is
        the next node's: every op that began before that node was made has it, and the last of them made it.
        """
        self.connection.execute("""
            INSERT INTO flow
            WITH op AS (FROM op_seen WHERE arg0 <> 0),
            maker AS (SELECT process, arg0, arg_max(id, (ts_ns, -id)) AS id FROM op WHERE NOT backward GROUP BY ALL)
            SELECT 'autograd', maker.id, op.id FROM op JOIN maker USING (process, arg0) WHERE op.backward""")
