"""What a collector answers while it records: queries over what there is so far, and dumps of it."""

from pathlib import Path

from ral_trace.tracer.assemble import assemble
from ral_trace.tracer.control import Message, Work
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.finish import check_output, temporary_folder, write_snapshot
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.recording import Recording, Snapshot


class Answers:
    """Of one recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def prepare(self, asked: Message) -> Work:
        """The quick part, in the collector's own thread; gives the slow one."""
        match asked:
            case {"do": "query", "sql": str(sql)}:
                self.recording.poll()
                snapshot = self.recording.snapshot()
                return lambda: _query(snapshot, sql)
            case {"do": "dump", "output": str(output)}:
                self.recording.poll()
                snapshot = self.recording.snapshot()
                return lambda: _dump(snapshot, Path(output))
        raise RalTraceError(f"the collector does not know how to {asked.get('do')}")


def _query(snapshot: Snapshot, sql: str) -> Message:
    """Columns and rows of one SELECT over a trace of everything so far."""
    with temporary_folder() as folder:
        path = folder / "so-far.duckdb"
        assemble(snapshot, path)
        with open_trace(path) as trace:
            columns, rows = trace.query(sql)
    return {"columns": columns, "rows": rows}


def _dump(snapshot: Snapshot, output: Path) -> Message:
    check_output(output)
    return {"output": str(output), "events": write_snapshot(snapshot, output)}
