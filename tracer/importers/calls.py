"""What the names of host calls say, of every vendor's runtime and driver."""

import re

PATTERN = (
    r"(Device|Stream|Event|Ctx|Context|Thread)Synchronize|[Ss]ynchronize(Stream|Device|Event|Context)|[Ss]ynchronize$"
    r"|^hsa_signal_wait|^ze(CommandQueueSynchronize|CommandListHostSynchronize|EventHostSynchronize"
    r"|FenceHostSynchronize)|^ur(EventWait|QueueFinish)$"
)
"""Calls that wait for a device, with whatever a tool appends (Nsight Systems: a version): for Python and DuckDB."""
WORDS = ("ynchron", "ait", "nish")
"""One of them is in every such name; looking for them is quicker."""
SYNC_CALL = re.compile(PATTERN)


def waits(name: str) -> str:
    """SQL: whether the call whose name an expression is waits for a device."""
    words = " OR ".join(f"contains({name}, '{word}')" for word in WORDS)
    return f"(({words}) AND regexp_matches({name}, '{PATTERN}'))"
