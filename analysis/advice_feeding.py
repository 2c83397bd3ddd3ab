"""Rules of `advice` about devices that are not fed: by the input, by launches, by copies, by other ranks."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from ral_trace.analysis.advice_rules import Finding, Findings
from ral_trace.analysis.base import NAMED_DEVICE, TIME_NS, Row
from ral_trace.analysis.bound import step_bounds
from ral_trace.analysis.communication import stragglers
from ral_trace.analysis.fusion import fusion
from ral_trace.analysis.round_trips import round_trips
from ral_trace.analysis.small_copies import small_copies
from ral_trace.analysis.steady import in_steady, steady_steps
from ral_trace.analysis.steps import steps
from ral_trace.analysis.transfers import transfers
from ral_trace.analysis.units import duration, human

FUSIONS = 3
"""Sequences worth fusing that are named, of each device."""

OFTEN_LAST = 0.75
"""Share of its collectives from which on a rank is not the last by chance."""


def prepare_input(known: Findings) -> Iterator[Finding]:
    """Steps that wait for their next batch."""
    bounds = _steady_bounds(known)
    to_do = "have batches ready sooner: more DataLoader workers, prefetching, cheaper transforms"
    waited = [row for row in steps(known.trace) if row["input_wait_ns"] and row["state"] != "warm-up"]
    if waited and not bounds:
        total_ns = sum(row["input_wait_ns"] for row in waited)
        yield Finding(
            "prepare input",
            to_do,
            f"{len(waited):,} steps waited for their next batch, for {duration(total_ns)}",
            ("steps",),
            total_ns,
            len(waited),
        )
    for rows in _worst_of_each_process(bounds, "input_wait_ns"):
        device, total_ns = str(rows[0]["device"]), sum(row["input_wait_ns"] for row in rows)
        count = sum(row["input_wait_ns"] > 0 for row in rows)
        yield Finding(
            "prepare input",
            to_do,
            f"in {count:,} of {len(rows):,} steps {device} was idle while the process waited for its next batch, "
            f"for {duration(total_ns)} of {duration(sum(row['window_ns'] for row in rows))}",
            ("step_bounds",),
            total_ns,
            count,
            device,
        )


def launch_less(known: Findings) -> Iterator[Finding]:
    """Devices whose kernels take less than the host needs to launch the next. What waits and fallbacks cost is not
    counted here.
    """
    short = _short_kernels(known)
    bounds = [row for row in _steady_bounds(known) if row["bound"] == "launch" and row["device"] in short]
    for device, group in groupby(bounds, key=itemgetter("device")):
        rows = list(group)
        idle_ns = sum(max(row["host_wait_ns"] - row["input_wait_ns"], 0) for row in rows)
        kernel_ns, apart_ns, launches = short[device]
        many = "1 step is" if len(rows) == 1 else f"{len(rows):,} steps are"
        yield Finding(
            "launch less",
            "launch less often: a larger batch, torch.compile, or a graph of the device (CUDA graphs)",
            f"{many} bound by launches: half the kernels take at most {duration(kernel_ns)}, and half "
            f"the launches come {duration(apart_ns)} or more after the one before; {device} waited for them for "
            f"{duration(idle_ns)}, waits and fallbacks included",
            ("step_bounds", "syncs", "fallback_tax"),
            max(idle_ns - known.held_ns(device), 0),
            launches,
            device,
        )


def _steady_bounds(known: Findings) -> list[Row]:
    """Rows of `step_bounds` of steady steps, by device, with the process of each."""
    process_of = _processes(known)
    steady = steady_steps(known.trace)
    wanted = set(zip(steady.process.tolist(), steady.step.tolist(), strict=True))
    rows = [{**row, "process": process_of[row["device"]]} for row in step_bounds(known.trace, limit=None)]
    return sorted((row for row in rows if (row["process"], row["step"]) in wanted), key=itemgetter("device", "step"))


def _processes(known: Findings) -> dict[str, int]:
    """The process of each device, by the device's name."""
    return dict(known.trace.sql(f"WITH {NAMED_DEVICE} SELECT shown, process FROM named_device").fetchall())


def _worst_of_each_process(rows: list[Row], column: str) -> Iterator[list[Row]]:
    """Of each process the rows of the device with the largest sum: its devices wait together."""
    of_device = [list(group) for _, group in groupby(rows, key=itemgetter("device"))]
    worst: dict[int, list[Row]] = {}
    for found in sorted(of_device, key=lambda found: sum(row[column] for row in found)):
        worst[found[0]["process"]] = found
    yield from worst.values()


def _short_kernels(known: Findings) -> dict[str, tuple[int, int, int]]:
    """For each device whose kernels are shorter than what lies between their launches: both medians, and how many."""
    with in_steady(known.trace, True) as condition:
        rows = known.trace.sql(f"""
            WITH {NAMED_DEVICE}, kernel AS (
                SELECT e.device, quantile_disc({TIME_NS}, 0.5) AS ns FROM event e
                WHERE e.kind = 'kernel' AND e.device IS NOT NULL AND {condition} GROUP BY e.device),
            launch AS (
                SELECT device, quantile_disc(apart, 0.5) AS apart, count(*) AS launches FROM (
                    SELECT e.device, e.ts_ns - lag(e.ts_ns) OVER (
                        PARTITION BY e.device, e.thread, e.step ORDER BY e.ts_ns, e.id) AS apart
                    FROM event e WHERE e.kind = 'launch' AND e.device IS NOT NULL AND {condition}) GROUP BY device)
            SELECT d.shown, k.ns, l.apart, l.launches FROM kernel k JOIN launch l ON l.device = k.device
            JOIN named_device d ON d.device = k.device WHERE k.ns < l.apart""").fetchall()
    return {device: (ns, apart, launches) for device, ns, apart, launches in rows}


def fuse_kernels(known: Findings) -> Iterator[Finding]:
    """Sequences of small kernels."""
    found = sorted(fusion(known.trace), key=lambda row: (row["device"], -row["gain_ns"]))
    for device, group in groupby(found, key=itemgetter("device")):
        for row in list(group)[:FUSIONS]:
            yield Finding(
                "fuse kernels",
                f"run them as one kernel or graph: {row['ops']}",
                f"{row['pattern']}: ran {row['count']:,} times, with gaps of {duration(row['gap_ns'])} between kernels "
                f"that take {duration(row['total_ns'])}; {row['launches_saved']:,} launches less",
                ("fusion",),
                row["gain_ns"],
                row["count"],
                device,
                row["line"],
                whole=True,
            )


def copy_less(known: Findings) -> Iterator[Finding]:
    """Small copies in a row, and data that goes to the host and back."""
    for row in small_copies(known.trace):
        yield Finding(
            "merge copies",
            "copy them as one: keep the small tensors in one buffer, or stack them first",
            f"{row['count']:,} copies ({row['direction']}) of {human(row['bytes'], 'bytes')} in {row['runs']:,} runs "
            f"took {duration(row['total_ns'])}",
            ("small_copies",),
            row["saved_ns"] or 0,
            row["count"],
            row["device"],
            row["line"],
            whole=True,
        )
    for row in round_trips(known.trace):
        if row["confidence"] != "possible":
            yield Finding(
                "keep data",
                "keep the data on the device: it comes back unchanged",
                f"{row['count']:,} round trips of {human(row['bytes'], 'bytes')} took "
                f"{duration(row['total_ns'] or 0)}; {row['confidence']}: {row['evidence']}",
                ("round_trips",),
                row["total_ns"] or 0,
                row["count"],
                row["device"],
                row["from_line"],
                whole=True,
            )


def pin_memory(known: Findings) -> Iterator[Finding]:
    """Copies from or to memory that is not pinned, slower than the link."""
    pageable = [row for row in transfers(known.trace) if row["host_memory"] == "pageable" and row["link_bandwidth"]]
    for (device, direction), group in groupby(
        sorted(pageable, key=itemgetter("device", "direction")), key=itemgetter("device", "direction")
    ):
        rows = [row for row in group if row["total_ns"] is not None and row["bytes"] is not None]
        count, total_ns, copied = (sum(row[name] for row in rows) for name in ("count", "total_ns", "bytes"))
        least_ns = sum(round(row["bytes"] * 1e9 / row["link_bandwidth"]) for row in rows)
        yield Finding(
            "pin memory",
            "pin the host's memory (pin_memory=True), and copy with non_blocking=True",
            f"{count:,} copies ({direction}) of {human(copied, 'bytes')} from or to pageable memory took "
            f"{duration(total_ns)}; at the speed of the best large copy they would take {duration(least_ns)}",
            ("transfers",),
            max(total_ns - least_ns, 0),
            count,
            device,
            whole=True,
        )


def balance_ranks(known: Findings) -> Iterator[Finding]:
    """A rank for which the others wait nearly always."""
    for row in stragglers(known.trace):
        if row["caused_ns"] and row["last"] >= OFTEN_LAST * row["matched"]:
            who = f"rank {row['rank']}" if row["rank"] is not None else f"process {row['process']}"
            yield Finding(
                "balance ranks",
                f"see what makes {who} late: its input, its share of the work, its machine",
                f"it was the last in {row['last']:,} of {row['matched']:,} collectives; the others waited for it for "
                f"{duration(row['caused_ns'])}",
                ("stragglers",),
                row["caused_ns"],
                row["last"],
                row["device"],
                whole=True,
            )
