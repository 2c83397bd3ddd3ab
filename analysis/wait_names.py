"""Which host rows wait for a device, by what they are and how the vendors' calls are named."""

_SUFFIX = r"(_v\d+)?(_ptsz|_ptds)?(_v\d+)?$"

BLOCKING_COPY = rf"""(contains(e.name, 'emcpy') AND regexp_matches(e.name,
    '^(AscendCL@)?((cuda|hip|musa)Memcpy(WithStream|2D|3D|ToSymbol|FromSymbol|ToArray|FromArray|DtoH|HtoD|DtoD|Peer)?'
    '|cuMemcpy(DtoH|HtoD|DtoD|2D|3D|Peer)?|aclrtMemcpy){_SUFFIX}'))"""
"""Condition on a launch `e`: the call copies, and comes back when the copy is done.

https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html; hipMemcpyWithStream waits for its stream.
"""

HOST_WAITS = f"(e.kind = 'sync' OR (e.kind = 'launch' AND {BLOCKING_COPY}))"
"""Condition on a row `e`: the host waits for a device in it."""

WHOLE_DEVICE = (
    r"regexp_matches(e.name, '(Device|Ctx|Context)Synchronize|[Ss]ynchronizeDevice|^torch\.\w+\.synchronize$')"
)
"""Condition on a sync `e`: it waits for all streams of its device."""
