"""What the ranks say to each other: how long, how much, how fast, and who waits for whom."""

from ral_trace.analysis.base import DEVICE, KERNEL_CLASS, NAMED_DEVICE, TIME_NS, WANTED, Analysis, Column, Need, Rows
from ral_trace.analysis.units import duration
from ral_trace.tracer.reading import Trace

COMMUNICATES = f"""
    SELECT name FROM (SELECT DISTINCT kind, name FROM event WHERE kind = 'kernel') e
    WHERE {KERNEL_CLASS} = 'communication'"""
"""The names of kernels that communicate."""

GLOO = "e.kind = 'annotation' AND e.name LIKE 'gloo:%'"
"""What PyTorch's backend on the host annotates, from a collective's begin to its end."""

SOME_COMMUNICATION = Need(
    f"EXISTS ({COMMUNICATES}) OR EXISTS (FROM event e WHERE {GLOO})",
    "no communication between ranks was recorded",
)

ELEMENT_BYTES = {
    8: "double float64 fp64 long int64 uint64 complexfloat complex64",
    4: "float float32 fp32 int int32 uint32",
    2: "half float16 fp16 bfloat16 bf16 bfp16 short int16 uint16",
    1: "byte char bool int8 uint8 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz fp8 hif8",
}
"""Types as c10::toString, HCCL and others write them, in lower case."""

_SIZES = ", ".join(f"'{name}': {size}" for size, names in ELEMENT_BYTES.items() for name in names.split())

COLLECTIVES = {
    "allreduce": "AllReduce",
    "reducescatter": "ReduceScatter",
    "allgather": "AllGather",
    "alltoall": "AllToAll",
    "broadcast": "Broadcast",
    "sendrecv": "SendRecv",
    "gather": "Gather",
    "scatter": "Scatter",
    "reduce": "Reduce",
    "barrier": "Barrier",
    "send": "SendRecv",
    "rec": "SendRecv",
}
"""What a name without all but its letters may hold, the more special first, and what that is."""

_COLLECTIVE = " ".join(f"WHEN contains(letters, '{part}') THEN '{name}'" for part, name in COLLECTIVES.items())

BUS_FACTOR = """CASE
    WHEN ranks IS NULL OR ranks < 1 THEN NULL
    WHEN collective = 'AllReduce' THEN 2.0 * (ranks - 1) / ranks
    WHEN collective IN ('AllGather', 'ReduceScatter', 'AllToAll') THEN 1.0 * (ranks - 1) / ranks
    WHEN collective IN ('Broadcast', 'Reduce', 'SendRecv') THEN 1.0 END"""
"""https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: bus bandwidth by algorithm bandwidth."""


def _arg(name: str, kind: str = "VARCHAR") -> str:
    """SQL: what the source says of an event `e`; what is not of that type is not known."""
    return f"""try_cast(e.args->>'$."{name}"' AS {kind})"""


CALLS = f"""
    communicates AS MATERIALIZED ({COMMUNICATES}),
    stated AS (
        SELECT e.id, e.process, e.device, e.ts_ns, {TIME_NS} AS ns, e.bytes, split_part(e.name, '(', 1) AS name,
               {_arg("Collective name")} AS stated,
               coalesce({_arg("dtype")}, {_arg("data_type")}) AS dtype,
               greatest({_arg("In msg nelems", "BIGINT")}, {_arg("Out msg nelems", "BIGINT")}) AS elements,
               {_arg("count", "BIGINT")} AS count_,
               {_arg("Group size", "INTEGER")} AS ranks,
               coalesce({_arg("Process Group Description")}, {_arg("Process Group Name")}) AS of_group,
               coalesce({_arg("Process Group Name")}, '') || coalesce({_arg("Process Group Ranks")}, '') AS group_key,
               {_arg("Seq", "BIGINT")} AS seq
        FROM event e
        WHERE e.kind = 'kernel' AND e.name IN (FROM communicates) OR {GLOO}),
    named AS (
        SELECT *, regexp_replace(lower(coalesce(stated, name)), '[^a-z]', '', 'g') AS letters,
               CASE {_COLLECTIVE} ELSE coalesce(stated, name) END AS collective,
               MAP {{{_SIZES}}}[lower(dtype)] AS element_bytes
        FROM stated),
    sized AS (
        SELECT * EXCLUDE (bytes, elements), coalesce(
                   bytes, CASE WHEN elements > 0 THEN elements * element_bytes END,
                   CASE WHEN count_ > 0 AND collective IN ('AllReduce', 'Broadcast', 'Reduce')
                        THEN count_ * element_bytes END) AS bytes
        FROM named),
    numbered AS (
        SELECT *, (group_key, collective, name, bytes, dtype) AS key,
               coalesce(seq, row_number() OVER (same ORDER BY ts_ns, id)) AS number, count(*) OVER same AS times
        FROM sized WINDOW same AS (
            PARTITION BY process, device, group_key, collective, name, bytes, dtype, seq IS NULL)),
    -- The same call of several ranks. Without sequence numbers nobody knows which is which where their counts differ,
    -- and sends have each another partner.
    matched AS (
        SELECT key, number, min(ns) AS shortest_ns, max(ns) > min(ns) AS uneven
        FROM numbered WHERE collective <> 'SendRecv'
        GROUP BY key, number
        HAVING count(*) > 1 AND count(DISTINCT process) = count(*) AND count(ns) = count(*)
           AND (bool_and(seq IS NOT NULL) OR min(times) = max(times)) AND count(*) <= coalesce(min(ranks), count(*))),
    call AS (
        SELECT n.*, m.shortest_ns, n.ns - m.shortest_ns AS wait_ns, m.uneven AND n.ns = m.shortest_ns AS last
        FROM numbered n LEFT JOIN matched m ON m.key = n.key AND m.number = n.number)"""
"""CTEs: `call`, each collective of each rank: what it is, how much it moves, and how long it waited for the last rank.

All ranks leave a collective together, so that the one with the shortest was the last to come, whatever their clocks.
"""


def communication(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """A row for each rank, collective, group and size, the longest first."""
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {CALLS},
        summed AS (
            SELECT process, device, collective, of_group, ranks, dtype, bytes, count(*) AS count, count(ns) AS timed,
                   sum(ns)::BIGINT AS total_ns, max(ns) AS max_ns, count(wait_ns) AS matched,
                   sum(wait_ns)::BIGINT AS wait_ns, {BUS_FACTOR} AS bus_factor
            FROM call GROUP BY process, device, collective, of_group, ranks, dtype, bytes)
        SELECT p.rank, p.pid, d.shown AS device, collective, of_group AS "group", ranks, dtype, bytes, count, total_ns,
               round(total_ns / timed)::BIGINT AS mean_ns, max_ns, matched, s.wait_ns,
               1e9 * bytes * timed / nullif(total_ns - coalesce(s.wait_ns, 0), 0) AS algorithm_bandwidth,
               algorithm_bandwidth * bus_factor AS bus_bandwidth
        FROM summed s JOIN process p ON p.id = s.process LEFT JOIN named_device d ON d.device = s.device
        WHERE {WANTED}
        ORDER BY total_ns DESC NULLS LAST, count DESC, p.rank, s.process, d.position, collective, bytes DESC, of_group,
                 dtype
        LIMIT $2""",
        [device, limit],
    )


RANK = Column("rank", "id", "distributed rank; none: not known")
PID = Column("pid", "id", "as the operating system counts them; none: not recorded")
ON_DEVICE = Column("device", "text", f"{DEVICE.about}; none: on the host (gloo)")

COMMUNICATION = Analysis(
    "communication",
    "Communication",
    "What each rank communicated. Bandwidths are those of nccl-tests: the algorithm bandwidth is the size by the time, "
    "the bus bandwidth times what the hardware has to move for it. The size is the larger of what goes in and out. "
    "Time in which a rank waited for the last one to come is left out of them where it is known, as nccl-tests begin "
    "together.",
    (
        RANK,
        PID,
        ON_DEVICE,
        Column("collective", "text", "AllReduce, AllGather, ..., else its own name"),
        Column("group", "text", "process group; none: not recorded"),
        Column("ranks", "count", "size of the process group; none: not recorded"),
        Column("dtype", "text", "type of its elements; none: not recorded"),
        Column("bytes", "bytes", "size of one call: the larger of input and output; none: not recorded", "size"),
        Column("count", "count", "calls"),
        Column("total_ns", "ns", "their time, waiting for other ranks included; none: not known"),
        Column("mean_ns", "ns", "mean duration"),
        Column("max_ns", "ns", "longest duration"),
        Column("matched", "count", "calls of which the trace holds the same call of another rank"),
        Column(
            "wait_ns",
            "ns",
            "time of those less the shortest of the ranks: at least so long it waited for the last rank to come; none: "
            "no rank to compare with",
            "waited",
        ),
        Column("algorithm_bandwidth", "bandwidth", "bytes by time without wait_ns; none: not known", "algbw"),
        Column(
            "bus_bandwidth",
            "bandwidth",
            "the same times 2 (n - 1) / n (AllReduce), (n - 1) / n (AllGather, ReduceScatter, AllToAll), 1 (Broadcast, "
            "Reduce, SendRecv) for n ranks; none: not known",
            "busbw",
        ),
    ),
    communication,
    chapter="ranks",
    shown="rank pid collective bytes count total_ns wait_ns bus_bandwidth algorithm_bandwidth mean_ns max_ns group "
    "ranks dtype matched device",
    needs=(SOME_COMMUNICATION,),
)


def stragglers(trace: Trace, *, device: str | None = None) -> Rows:
    """A row a rank that communicated, the one for which the others waited longest first."""
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {CALLS},
        waited AS (
            SELECT key, number, sum(wait_ns) / count(*) FILTER (last) AS share_ns FROM call
            WHERE wait_ns IS NOT NULL GROUP BY key, number HAVING bool_or(last)),
        summed AS (
            SELECT c.process, c.device, count(*) AS count, sum(ns)::BIGINT AS total_ns, count(wait_ns) AS matched,
                   sum(wait_ns)::BIGINT AS wait_ns, sum(ns) FILTER (wait_ns IS NOT NULL) AS matched_ns,
                   count(*) FILTER (last) AS last, sum(w.share_ns) FILTER (last) AS caused_ns
            FROM call c LEFT JOIN waited w ON w.key = c.key AND w.number = c.number
            GROUP BY c.process, c.device)
        SELECT p.rank, p.pid, d.shown AS device, s.count, s.total_ns, s.matched, s.wait_ns,
               100.0 * s.wait_ns / nullif(matched_ns, 0) AS wait_percent,
               CASE WHEN s.matched > 0 THEN s.last END AS last,
               CASE WHEN s.matched > 0 THEN round(coalesce(caused_ns, 0))::BIGINT END AS caused_ns
        FROM summed s JOIN process p ON p.id = s.process LEFT JOIN named_device d ON d.device = s.device
        WHERE {WANTED} ORDER BY caused_ns DESC NULLS LAST, p.rank, p.id, d.position""",
        [device],
    )


def said(rows: Rows) -> str | None:
    """The rank for which the others waited longest."""
    row = next((row for row in rows if row["caused_ns"]), None)
    if row is None:
        return None
    who = next((f"{name} {row[name]}" for name in ("rank", "pid") if row[name] is not None), "one of them")
    often = f"{row['last']:,} of {row['matched']:,} collectives"
    return f"The others waited for {who} for {duration(row['caused_ns'])}: it was the last to come to {often}."


STRAGGLERS = Analysis(
    "stragglers",
    "Ranks that others wait for",
    "Who waits for whom. All ranks leave a collective together, so that the one whose call was the shortest was the "
    "last to come, and what the calls of the others lasted longer they waited for it. Where the trace does not hold "
    "all ranks that is the least that it can have been.",
    (
        RANK,
        PID,
        ON_DEVICE,
        Column("count", "count", "its calls of collectives and sends"),
        Column("total_ns", "ns", "their time; none: not known"),
        Column("matched", "count", "calls of which the trace holds the same call of another rank"),
        Column(
            "wait_ns", "ns", "how long it waited in those for the last rank to come; none: there are none", "waited"
        ),
        Column("wait_percent", "percent", "of the time of those", "of it"),
        Column("last", "count", "how often it was the last to come; several that came together all count", "last"),
        Column(
            "caused_ns",
            "ns",
            "how long the others, all together, waited for it; divided among those that came last together",
            "others waited",
        ),
    ),
    stragglers,
    chapter="ranks",
    shown="rank pid caused_ns last matched wait_ns wait_percent total_ns count device",
    needs=(SOME_COMMUNICATION,),
    remark=said,
)
