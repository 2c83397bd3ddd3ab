"""ONNX Runtime profiles."""

from pathlib import Path

from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.importers.rows import Rows

FORMAT = "ONNX Runtime"


def sniff(head: Head) -> float:
    return 0.0


def read(path: Path, rows: Rows) -> None:
    pass
