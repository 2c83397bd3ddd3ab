"""Several files in one trace: which rank each is, and what is missing or claimed twice."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from ral_trace.tracer.importers.rows import Rows

NAMED_RANK = re.compile(r"rank[-_. ]?(\d{1,6})", re.IGNORECASE)
MANY = 20
"""More missing ranks than that are counted, not listed."""


def settle(files: Sequence[Rows]) -> None:
    """Gives every source its rank, and says what does not fit. Files of different formats may be about one rank."""
    for _, found in groupby(sorted(files, key=lambda rows: rows.format), key=lambda rows: rows.format):
        same = sorted(found, key=files.index)
        if len(same) > 1:
            _find_unstated(same)
        _keep_apart(same)
        _name_missing(same)
    for rows in files:
        rank = rows.facts.get("rank")
        if rank is not None:
            rows.builder.connection.execute(
                "UPDATE process SET rank = ? WHERE source = ? AND rank IS NULL", [rank, rows.source]
            )


def _find_unstated(same: Sequence[Rows]) -> None:
    """From the files' names, else from their order, where none of them says it."""
    if any(rows.facts.get("rank") is not None for rows in same):
        return
    named = [_rank_in_name(rows.path) for rows in same]
    stated = None not in named and len(set(named)) == len(named)
    for order, (rows, rank) in enumerate(zip(same, named, strict=True)):
        rows.facts["rank"] = rank if stated else order
        where = "its name" if stated else "the order of the files"
        rows.bad(f"files that do not say their rank: taken from {where}", rows.facts["rank"])


def _rank_in_name(path: Path) -> int | None:
    """The last number that follows the word rank in a path."""
    found = NAMED_RANK.findall(f"{path.absolute().parent.name}/{path.name}")
    return int(found[-1]) if found else None


def _keep_apart(same: Sequence[Rows]) -> None:
    """A rank that two files claim is the first one's; nobody knows what the other is."""
    claimed: dict[int, Path] = {}
    for rows in same:
        rank = rows.facts.get("rank")
        if rank is None:
            continue
        if rank in claimed:
            rows.facts["rank"] = None
            rows.builder.connection.execute("UPDATE process SET rank = NULL WHERE source = ?", [rows.source])
            rows.bad(f"files that claim a rank which another has: kept apart, without a rank (it says {rank})",
                     f"{claimed[rank].name} is rank {rank} already")  # fmt: skip
        else:
            claimed[rank] = rows.path


def _name_missing(same: Sequence[Rows]) -> None:
    stated = [rows.world_size for rows in same if rows.world_size is not None]
    if not stated:
        return
    if len(set(stated)) > 1:
        same[0].bad("files that do not agree on how many ranks there are", sorted(set(stated)), count=len(stated))
    size = Counter(stated).most_common(1)[0][0]
    there = {rows.facts.get("rank") for rows in same}
    missing = [rank for rank in range(size) if rank not in there] if size <= 1_000_000 else []
    if missing:
        listed = ", ".join(map(str, missing[:MANY])) + (", ..." if len(missing) > MANY else "")
        same[0].bad(f"ranks of {size} that no file is about", listed, count=len(missing))
