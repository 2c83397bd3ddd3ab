"""What the real Perfetto UI shows of a .pftrace is what the database holds."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from ral_trace.tracer.exporters import export
from ral_trace.tracer.exporters.drawn import SLICE_KINDS
from ral_trace.tracer.exporters.drawn_tracks import LINKS
from ral_trace.tracer.forms import MARK
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import Trace, open_trace
from tests import perfetto_ui
from tests.awkward import EPOCH_NS, awkward
from tests.exporters.expected import Curve, bandwidths, queue_depths
from tests.shared import TRACES, needs_shared
from tests.synthetic import training

pytestmark = pytest.mark.browser

SHOWN = f"(flags & 4) = 0 AND kind IN {SLICE_KINDS}"


def long_training(path: Path) -> Path:
    """Long enough for several compressed packets."""
    return training(path, launches=5_000)


@pytest.mark.parametrize("make", [long_training, awkward])
def test_the_ui_shows_what_the_database_holds(chromium: Browser, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    check_the_ui_shows(chromium, make(tmp_path / "run.duckdb"), tmp_path / "run.pftrace")


def test_the_ui_shows_a_real_recording(chromium: Browser, char_lm_without_gelu: Path, tmp_path: Path) -> None:
    with open_trace(char_lm_without_gelu) as trace:
        kinds = dict(_sql(trace, "SELECT kind::VARCHAR, count(*) FROM event GROUP BY ALL"))
        assert {"op", "launch", "kernel", "transfer", "sync", "fallback", "alloc", "free"} <= set(kinds)
    check_the_ui_shows(chromium, char_lm_without_gelu, tmp_path / "run.pftrace")


REAL = [
    "kineto_h100_bert.json.gz",
    "kineto_mi300_ddp_resnet18.json.gz",
    "kineto_128rank_sampled_rank0.json.gz",
    "kineto_v100_gpu_metrics.json",
    "ascend_level1_rank0",
    "nsys_healthy_1pct.sqlite",
    "rpd_matmul.rpd",
]


@needs_shared
@pytest.mark.parametrize("name", REAL)
def test_the_ui_shows_what_other_tools_recorded(chromium: Browser, tmp_path: Path, name: str) -> None:
    check_the_ui_shows(chromium, import_files([TRACES / name], tmp_path / "run.duckdb"), tmp_path / "run.pftrace")


def check_the_ui_shows(chromium: Browser, path: Path, to: Path) -> None:
    """Slices, their summed duration, marks, arrows and counters."""
    with open_trace(path) as trace:
        out = export(trace, to)
        with perfetto_ui.opened(chromium, out) as ui:
            assert ui.problems() == []
            # A clock that begins below zero is moved up to it: viewers' times are unsigned.
            [(zero_ns,)] = trace.sql(f"SELECT least(min(ts_ns), 0) FROM event WHERE {SHOWN}").fetchall()
            assert _slices_in(ui) == _slices_of(trace, zero_ns)
            assert ui.rows("SELECT sum(dur) FROM slice WHERE dur > 0") == _sql(
                trace, f"SELECT sum(dur_ns)::BIGINT FROM event WHERE {SHOWN}"
            )
            assert ui.rows(f"SELECT count(*) FROM slice WHERE category = '{MARK}'") == _sql(
                trace, f"SELECT count(*) FROM event WHERE {SHOWN} AND kind = 'fallback' AND device IS NOT NULL"
            )
            assert _arrows_in(ui) == _arrows_of(trace)
            assert _curves_in(ui, "queue depth of %", zero_ns) == queue_depths(trace)
            for link in LINKS:
                assert _curves_in(ui, f"{link} bandwidth", zero_ns) == bandwidths(trace, link)
            for table, column, name in [
                ("memory_curve", "allocated_bytes", "allocated bytes"),
                ("reserved_curve", "reserved_bytes", "reserved bytes"),
            ]:
                assert _counter_in(ui, name, zero_ns) == [
                    (ts_ns, float(value))
                    for ts_ns, value in _sql(trace, f"SELECT ts_ns, {column} FROM {table} ORDER BY ts_ns, {column}")
                ]
            for (name,) in _sql(trace, "SELECT DISTINCT series FROM counter ORDER BY series"):
                quoted = str(name).replace("'", "''")
                assert _counter_in(ui, quoted, zero_ns) == _sql(
                    trace,
                    f"""SELECT v.ts_ns, v.value FROM counter_value v JOIN counter c ON c.id = v.counter
                        WHERE c.series = '{quoted}' AND isfinite(v.value) ORDER BY ALL""",
                )


@pytest.mark.parametrize("make", [training, awkward])
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_the_ui_opens_our_json(chromium: Browser, tmp_path: Path, make: Callable[[Path], Path], ending: str) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        out = export(trace, tmp_path / f"run{ending}")
        with perfetto_ui.opened(chromium, out) as ui:
            assert ui.problems() == []
            assert _slices_in(ui, "args") == _slices_of(trace, zero_ns=EPOCH_NS)


def test_the_tracks_have_the_names_and_ids_of_processes_threads_devices_and_streams(
    chromium: Browser, tmp_path: Path
) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        out = export(trace, tmp_path / "run.pftrace")
    with perfetto_ui.opened(chromium, out) as ui:
        threads = ui.rows(
            "SELECT pid, tid, thread.name FROM thread JOIN process USING (upid) WHERE tid IN (7, 8) ORDER BY pid, tid"
        )
        assert threads == [(101, 7, "python"), (101, 8, "python")]
        assert ui.rows("SELECT pid FROM process WHERE name = 'rank 1'") == [(101,)]
        names = [name for (name,) in ui.rows("SELECT name FROM track WHERE parent_id IS NULL ORDER BY name")]
        assert "rank 2 · 100 · rank 2 · host container" in names
        streams = ui.rows("""
            SELECT d.name, s.name FROM track s JOIN track d ON s.parent_id = d.id
            WHERE s.name = 'stream 1 · compute' ORDER BY d.name""")
        assert streams == [(f"ral:{rank} · sim · Sim", "stream 1 · compute") for rank in range(5)]


def _sql(trace: Trace, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in trace.sql(query).fetchall()]


def _slices_in(ui: perfetto_ui.PerfettoUi, args: str = "debug") -> list[tuple[object, ...]]:
    return ui.rows(f"""
        SELECT extract_arg(arg_set_id, '{args}.event') AS event, ts, CASE WHEN dur < 0 THEN NULL ELSE dur END,
               name, category, extract_arg(arg_set_id, '{args}.correlation'), extract_arg(arg_set_id, '{args}.bytes'),
               extract_arg(arg_set_id, '{args}.reason')
        FROM slice WHERE category <> '{MARK}' ORDER BY event""")


def _slices_of(trace: Trace, zero_ns: int = 0) -> list[tuple[object, ...]]:
    return _sql(
        trace,
        f"""
        SELECT id, ts_ns - {zero_ns}, coalesce(dur_ns, CASE WHEN (flags & 1) != 0 THEN NULL ELSE 0 END),
               coalesce(nullif(name, ''), kind::VARCHAR), kind::VARCHAR,
               correlation, bytes, args->>'reason'
        FROM event WHERE {SHOWN} ORDER BY id""",
    )


def _arrows_in(ui: perfetto_ui.PerfettoUi) -> list[list[int]]:
    """Pairs of events; the UI draws each arrow forward in time."""
    found = ui.rows("""
        SELECT extract_arg(a.arg_set_id, 'debug.event') AS origin, extract_arg(b.arg_set_id, 'debug.event') AS target,
               a.ts <= b.ts
        FROM flow JOIN slice a ON a.id = slice_out JOIN slice b ON b.id = slice_in""")
    assert all(forward for _, _, forward in found)
    return sorted(sorted(ends) for *ends, _ in found)


def _arrows_of(trace: Trace) -> list[list[int]]:
    found = trace.sql(f"""
        WITH shown AS (SELECT id, kind, parent FROM event WHERE {SHOWN}),
        arrow AS (
            SELECT from_event, to_event FROM flow WHERE from_event <> to_event UNION ALL
            SELECT op.id, l.id FROM event l JOIN event op ON op.id = l.parent
            WHERE l.kind = 'launch' AND op.kind = 'op')
        SELECT from_event, to_event FROM arrow SEMI JOIN shown a ON a.id = from_event
        SEMI JOIN shown b ON b.id = to_event""").fetchall()
    return sorted(sorted(ends) for ends in found)


def _counter_in(ui: perfetto_ui.PerfettoUi, name: str, zero_ns: int) -> list[tuple[object, ...]]:
    """Values are float64 in Perfetto; JavaScript writes a large one without a point, which is an int here."""
    found = ui.rows(f"""
        SELECT counter.ts, counter.value FROM counter JOIN counter_track ON counter.track_id = counter_track.id
        WHERE counter_track.name = '{name}' ORDER BY ts, value""")
    return [(ts_ns + zero_ns, float(value)) for ts_ns, value in found]


def _curves_in(ui: perfetto_ui.PerfettoUi, name: str, zero_ns: int) -> list[Curve]:
    """The values of each counter whose name is like `name`, in order of time."""
    curves: dict[object, Curve] = {}
    for track, ts_ns, value in ui.rows(f"""
        SELECT track_id, counter.ts, counter.value FROM counter JOIN counter_track t ON counter.track_id = t.id
        WHERE t.name LIKE '{name}' ORDER BY counter.ts"""):
        curves.setdefault(track, []).append((ts_ns + zero_ns, float(value)))
    return sorted(curves.values())
