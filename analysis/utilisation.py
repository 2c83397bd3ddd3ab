"""How well each device was used: busy and idle, what it was busy with, what hid behind what, and what bounds it."""

from ral_trace.analysis.base import DEVICE, SOME_DEVICE_WORK, Analysis, Column, Row, Rows
from ral_trace.analysis.bound import BOUND, HOST_WAIT, INPUT_WAIT, IdleCauses, input_waits, verdict
from ral_trace.analysis.device_work import DeviceWork, device_work, exact_sum, find_gaps, named_devices
from ral_trace.analysis.intervals import Union
from ral_trace.analysis.units import duration, percent
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain


def utilisation(trace: Trace, *, device: str | None = None) -> Rows:
    """A row a device on which anything ran."""
    work, waits = device_work(trace).by_device(), input_waits(trace)
    untimed = {found for (found,) in trace.sql(
        "SELECT DISTINCT device FROM event WHERE kind IN ('kernel', 'transfer') AND device IS NOT NULL"
    ).fetchall()} - work.keys()  # fmt: skip
    return Rows(
        {"device": found.shown, **_row(work.get(found.id), waits.get(found.process))}
        for found in named_devices(trace, device)
        if found.id in work or found.id in untimed
    )


def _row(work: DeviceWork | None, waits: Union | None) -> Row:
    """All but the device. None: of nothing on it are the times known."""
    if work is None:
        return dict.fromkeys(column.name for column in COLUMNS[1:])
    busy, compute = work.busy, work.of_class("compute")
    communication, copies = work.of_class("communication"), work.of_class("memory")
    start, stop = work.start.min(keepdims=True), work.stop.max(keepdims=True)
    total_ns = int((stop - start)[0])
    [idle] = IdleCauses(work, waits).within(start, stop)
    gaps = find_gaps(work)
    return {
        "total_ns": total_ns,
        "busy_ns": busy.total_ns,
        "busy_percent": _percent(busy.total_ns, total_ns),
        "idle_ns": total_ns - busy.total_ns,
        "bound": verdict(idle, total_ns),
        "host_wait_ns": idle.host_ns,
        "input_wait_ns": idle.input_ns,
        "kernel_wait_ns": gaps.total_ns(gaps.kernel_wait),
        "other_wait_ns": gaps.total_ns(~gaps.host_wait & ~gaps.kernel_wait),
        "compute_ns": compute.total_ns,
        "non_compute_ns": busy.total_ns - compute.total_ns,
        "communication_ns": communication.total_ns,
        "communication_hidden_percent": _hidden(communication, compute),
        "copy_ns": copies.total_ns,
        "copy_hidden_percent": _hidden(copies, compute),
        "kernel_ns": work.kernels.total_ns,
        "sum_ns": exact_sum(work.stop - work.start),
    }


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None


def _hidden(these: Union, compute: Union) -> float | None:
    return _percent(these.common(compute).total_ns, these.total_ns) if len(these.start) else None


COLUMNS = (
    DEVICE,
    Column("total_ns", "ns", "from the first start to the last end of its work; none: no duration is known", "over"),
    Column("busy_ns", "ns", "union of its kernels and copies over all streams", "busy time"),
    Column("busy_percent", "percent", "busy_ns of total_ns; none: total_ns is 0", "busy"),
    Column("idle_ns", "ns", "the remainder: nothing ran on any stream", "idle time"),
    BOUND,
    HOST_WAIT,
    INPUT_WAIT,
    Column("kernel_wait_ns", "ns", "idle time in other gaps of less than 30 us: what launching costs", "launching"),
    Column("other_wait_ns", "ns", "idle time in other gaps: waits of streams for each other", "other"),
    Column("compute_ns", "ns", "union of its compute kernels", "compute"),
    Column("non_compute_ns", "ns", "the rest of busy_ns: communication and copies alone", "non-compute"),
    Column("communication_ns", "ns", "union of its communication kernels", "communication"),
    Column(
        "communication_hidden_percent",
        "percent",
        "of communication_ns, during which it also computed; none: there is none",
        "comm. hidden",
    ),
    Column("copy_ns", "ns", "union of its copies and of what sets memory", "copies"),
    Column(
        "copy_hidden_percent", "percent", "of copy_ns, during which it also computed; none: there is none", "hidden"
    ),
    Column("kernel_ns", "ns", "union of its kernels of all classes", "kernels"),
    Column("sum_ns", "ns", "sum of the durations of its kernels and copies, which may overlap: no measure of busy"),
)


def said(rows: Rows) -> str | None:
    """The device that is idle for the longest, where it is not the device that bounds."""
    bound = [row for row in rows if row["bound"] in SAID]
    if not bound:
        return None
    row = max(bound, key=lambda row: row["idle_ns"])
    return (
        f"{plain(row['device'])} was busy for {percent(row['busy_percent'])} of the "
        f"{duration(row['total_ns'])} between its first and its last work: {SAID[row['bound']]}."
    )


SAID = {
    "launch": "it waited for the host to launch work",
    "input": "it waited for input",
    "wait": "its streams waited for each other, or for another device",
    "mixed": "it waited for several things",
}

UTILISATION = Analysis(
    "utilisation",
    "Utilisation",
    "How well each device was used, from the first start to the last end of its work. Busy is the union of kernels and "
    "copies over all streams, by HolisticTraceAnalysis' definitions, but for waits recorded on a stream, which are not "
    "work.",
    COLUMNS,
    utilisation,
    chapter="devices",
    shown="device bound busy_percent total_ns idle_ns host_wait_ns input_wait_ns compute_ns communication_ns "
    "communication_hidden_percent copy_ns copy_hidden_percent total_ns kernel_wait_ns other_wait_ns busy_ns",
    needs=(SOME_DEVICE_WORK,),
    remark=said,
    notable=lambda row: ["bound"] if row["bound"] in SAID else [],
)
