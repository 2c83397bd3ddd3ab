"""A folder with one .parquet file a table, for other tools: `SELECT * FROM 'folder/event.parquet'`."""

import shutil
from pathlib import Path

from ral_trace.tracer.exporters.output import Window, cut_note, select
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import TABLES

FORMAT = "Parquet"
ENDINGS: tuple[str, ...] = ()


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes all tables (not the views, which follow from them). Raises duckdb.Error, OSError.

    A locked trace may write to its private folder only. One file after the other moves from there to `out`.
    """
    selection = select(trace, window)
    conditions = selection.tables()
    out.mkdir(mode=0o700)
    for table in TABLES:
        staged = trace.export_folder / f"{table.name}.parquet"
        rows = f"SELECT * FROM {table.name} WHERE {conditions.get(table.name, 'true')}"
        if table.name == "quality":
            rows += cut_note(selection)
        order = f"ORDER BY {table.sort}" if table.sort else ""
        quoted = str(staged).replace("'", "''")
        trace.connection.execute(f"COPY (SELECT * FROM ({rows}) {order}) TO '{quoted}' (FORMAT parquet)")
        staged.chmod(0o600)
        shutil.move(staged, out / staged.name)
