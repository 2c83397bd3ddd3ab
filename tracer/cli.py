"""The command line.

Recording is the bare command; what reads a trace is a subcommand, found here or through the entry points
`ral_trace.commands`.
"""

import sys
import tempfile
import traceback
from importlib.metadata import entry_points, version
from itertools import chain
from pathlib import Path
from typing import Any

import click
import duckdb

from ral_trace.tracer import record_command
from ral_trace.tracer.errors import RalTraceError, UsageError
from ral_trace.tracer.flight_command import dump as write_dumps
from ral_trace.tracer.flight_command import fly
from ral_trace.tracer.interrupts import ending_queries
from ral_trace.tracer.outputs import refuse_input
from ral_trace.tracer.reading import newest_trace, open_trace
from ral_trace.tracer.recording import DEFAULT_DETAILS, DEFAULT_RING_BYTES, details
from ral_trace.tracer.run import RecordOptions, terminal
from ral_trace.tracer.text import plain
from ral_trace.tracer.units import duration_ns, percent, size_bytes

EPILOG = """\b
Examples:
  ral-trace --duration 10s                   record every PyTorch program of yours that runs
  ral-trace -- python train.py               record one program until it ends
  ral-trace --report                         read the newest trace here
  ral-trace --report --html                  the same as one HTML file
  ral-trace export run.duckdb -o run.pftrace a timeline for ui.perfetto.dev
  ral-trace query run.duckdb "SELECT kind, count(*) FROM event GROUP BY 1"
"""
QUERY_INTERRUPTED = "Query interrupted"
"""All that DuckDB says of a Ctrl-C."""
OUT_OF_MEMORY = "Out of Memory Error: "
NO_DISK = "failed to offload"
"""How DuckDB says that there is no room: in memory, and on the disk for what it takes out of memory."""
NEWEST = ""
"""What an option with an optional value holds when the value was left out."""


class Duration(click.ParamType[int]):
    """A duration option: integer nanoseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else duration_ns(str(value))


class Size(click.ParamType[int]):
    """A size option: bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else size_bytes(str(value))


class Percent(click.ParamType[float]):
    """A percentage option: a share, 0 to 1."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return value if isinstance(value, float) else percent(str(value))


class Words(click.ParamType[tuple[str, ...]]):
    """An option of words with commas between them."""

    name = "words"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if not isinstance(value, str):
            return tuple(value)
        words = tuple(word.strip() for word in value.split(","))
        if not all(words):
            raise UsageError(f"'{value}' is not a list of words; write it as kernel,transfer")
        return words


RECORDING_ONLY = ("--duration", "--output", "-o", "--pid")


def report_words(words: list[str]) -> list[str]:
    """`ral-trace --report [TRACE] OPTIONS` is the subcommand `report` with the same words. Raises UsageError where
    options for a recording are among them.
    """
    asked = next((word for word in words if word == "--report" or word.startswith("--report=")), None)
    if asked is None:
        return words
    rest = list(words)
    place = rest.index(asked)
    rest[place : place + 1] = [] if asked == "--report" else [asked.removeprefix("--report=")]
    if any(word.split("=")[0] in RECORDING_ONLY for word in rest):
        raise UsageError("--report reads a trace; --duration, --output and --pid record one")
    ahead = [word for word in rest if word == "--debug"]
    return [*ahead, "report", *(word for word in rest if word != "--debug")]


class Commands(click.Group):
    """The subcommands of this folder and those that other folders and plugins register; loaded only when one is
    used.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, report_words(args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(
            {*super().list_commands(ctx), *(entry.name for entry in entry_points(group="ral_trace.commands"))}
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if own := super().get_command(ctx, cmd_name):
            return own
        for entry in entry_points(group="ral_trace.commands", name=cmd_name):
            command: click.Command = entry.load()
            return command
        return None


trace_output = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE",
    help="Where the trace goes. Default: ral-trace-<UTC time>.duckdb here.",
)
"""Of what records, or writes out a recording."""


@click.group(
    cls=Commands,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--duration",
    type=Duration(),
    metavar="TIME",
    help="How long to record: 500ms, 10s, 2m. With a command: from its first event.",
)
@trace_output
@click.option("--pid", type=int, metavar="N", help="Record this process and its children only.")
@click.option(
    "--buffer",
    "ring_bytes",
    type=Size(),
    default=DEFAULT_RING_BYTES,
    metavar="SIZE",
    show_default="4MiB",
    help="Ring of one thread.",
)
@click.option(
    "--on-full",
    type=click.Choice(["drop", "overwrite"]),
    default="drop",
    show_default=True,
    help="What a full ring loses: the newest events, or the oldest.",
)
@click.option(
    "--max-overhead",
    type=Percent(),
    metavar="PERCENT",
    help="Of the programs' CPU time. Beyond it detail is left out: stacks, shapes, small ops, then all ops.",
)
@click.option(
    "--flight",
    type=Duration(),
    metavar="TIME",
    help="Keep only the last seconds; `ral-trace dump` or a program's death writes them out.",
)
@click.option("--salvage", is_flag=True, help="Write out what recordings left whose collector died.")
@click.option("--with-shapes", is_flag=True, help="Record the shapes and types of every op's inputs.")
@click.option(
    "--with-stack", is_flag=True, help="Record the Python stack of every op (always: of syncs, fallbacks, OOM)."
)
@click.option("--with-modules", is_flag=True, help="Record calls of torch.nn modules by name.")
@click.option("--with-access", is_flag=True, help="Record which blocks of memory each op reads and writes.")
@click.option("--strict", is_flag=True, help="Exit with 5 when an event was dropped or lost.")
@click.option(
    "--report",
    is_flag=False,
    flag_value=NEWEST,
    expose_value=False,
    metavar="[TRACE]",
    help="Read a trace; the newest one here when none is named. `ral-trace report --help` has all options.",
)
@click.option(
    "--html",
    is_flag=False,
    flag_value=NEWEST,
    default=None,
    metavar="[FILE]",
    help="With --report: write it as one HTML file.",
)
@click.option("--json", "as_json", is_flag=True, help="With --report: print it as JSON.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--leash", is_flag=True, hidden=True)
@click.version_option(version("ral-trace"), prog_name="ral-trace")
@click.pass_context
def main_command(
    ctx: click.Context,
    duration: int | None,
    output: Path | None,
    pid: int | None,
    ring_bytes: int,
    on_full: str,
    max_overhead: float | None,
    flight: int | None,
    salvage: bool,
    with_shapes: bool,
    with_stack: bool,
    with_modules: bool,
    with_access: bool,
    strict: bool,
    html: str | None,
    as_json: bool,
    debug: bool,
    leash: bool,
) -> None:
    """See what a PyTorch program really does on its devices.

    Without a command it records: every program of yours that has ral-trace installed, or with `-- COMMAND` that one
    and its children.
    """
    if ctx.invoked_subcommand is not None:
        return
    if html is not None or as_json:
        raise UsageError("--html and --json go with --report: ral-trace --report --html")
    command: tuple[str, ...] = ctx.obj or ()
    target = output or record_command.default_output()
    if salvage:
        from ral_trace.tracer import salvage_command

        ctx.exit(salvage_command.write_left(target, terminal()))
    if duration is None and flight is None and not command and not leash and pid is None:
        raise UsageError(
            "say for how long, or what to record: ral-trace --duration 10s, "
            "or ral-trace -- python train.py (see --help)"
        )
    more = {"SHAPES": with_shapes, "OP_STACKS": with_stack, "MODULES": with_modules, "ACCESSES": with_access}
    options = RecordOptions(
        target,
        duration,
        command,
        pid,
        ring_bytes,
        strict,
        details=details(*DEFAULT_DETAILS, *(name for name, wanted in more.items() if wanted)),
        overwrite=on_full == "overwrite" or flight is not None,
        flight_ns=flight,
        max_overhead=max_overhead,
        leash=leash,
    )
    ctx.exit((record_command.record if flight is None else fly)(options, terminal()))


@main_command.command()
@click.argument("trace", type=click.Path(path_type=Path, readable=False), required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, readable=False),
    required=True,
    metavar="FILE",
    help="Its ending decides: .pftrace, .json, .json.gz, .speedscope.json, .collapsed, .pickle (memory), .csv, .tsv, "
    "a folder (Parquet).",
)
@click.option(
    "--from",
    "from_ns",
    type=Duration(),
    metavar="TIME",
    help="Leave out what ended before, counted from the first event.",
)
@click.option("--to", "to_ns", type=Duration(), metavar="TIME", help="Leave out what begins later.")
@click.option(
    "--device",
    "devices",
    type=Words(),
    multiple=True,
    metavar="DEVICE",
    help="Only this device's work (ral:1; cuda for all of that type), and the host rows that led to it. Repeatable.",
)
@click.option(
    "--kind",
    "kinds",
    type=Words(),
    multiple=True,
    metavar="KIND",
    help="Only events of this kind: kernel,transfer. Repeatable.",
)
@click.option("--run", metavar="NAME", help="With a folder: the run's name there. Default: the trace's.")
@click.option("--table", metavar="NAME", help="For .csv and .tsv: the table or view to write (default: events).")
@click.option("--query", metavar="SELECT", help="For .csv and .tsv: write the rows of this query.")
def export(
    trace: Path | None,
    output: Path,
    from_ns: int | None,
    to_ns: int | None,
    devices: tuple[tuple[str, ...], ...],
    kinds: tuple[tuple[str, ...], ...],
    run: str | None,
    table: str | None,
    query: str | None,
) -> None:
    """Write TRACE (default: the newest here) in another format."""
    from ral_trace.tracer import exporters

    if run is not None and exporters.exporter_for(output).ENDINGS:
        raise UsageError("--run names a run in a folder; --output is a file")
    if from_ns is not None and to_ns is not None and from_ns >= to_ns:
        raise UsageError("--from must lie before --to")
    source = trace or newest_trace(Path.cwd())
    refuse_input(output, [source])
    with open_trace(source) as opened:
        window = exporters.Window(from_ns, to_ns, tuple(chain(*devices)), tuple(chain(*kinds)), run, table, query)
        exporters.export(opened, output, window)
    click.echo(f"{plain(str(output))}: written", err=True)


@main_command.command("import")
@click.argument("files", type=click.Path(path_type=Path, readable=False), nargs=-1, required=True)
@trace_output
def import_command(files: tuple[Path, ...], output: Path | None) -> None:
    """Read FILES of other tools (folders, too; several ranks) into one trace."""
    from ral_trace.tracer import import_command

    click.get_current_context().exit(import_command.run(files, output or record_command.default_output(), terminal()))


@main_command.command()
@trace_output
def dump(output: Path | None) -> None:
    """Write out what a running recording holds: of a flight recorder the last seconds, of any other all so far."""
    write_dumps(output or record_command.default_output(), terminal())


@main_command.command()
@click.argument("trace", type=click.Path(path_type=Path, readable=False))
@click.argument("sql")
def query(trace: Path, sql: str) -> None:
    """Run one SELECT over TRACE and print its rows, tab-separated."""
    with open_trace(trace) as opened:
        columns, rows = opened.query(sql)
    click.echo("\t".join(map(plain, columns)))
    for row in rows:
        click.echo("\t".join("" if value is None else plain(str(value)) for value in row))


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line: the one place where errors are caught, said in one line, and become an exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    cut = words.index("--") if "--" in words else len(words)
    try:
        with ending_queries():
            code = main_command.main(
                words[:cut], prog_name="ral-trace", standalone_mode=False, obj=tuple(words[cut + 1 :])
            )
    except click.ClickException as error:
        sys.stderr.write(f"ral-trace: {plain(error.format_message())} (see ral-trace --help)\n")
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (RuntimeError, duckdb.InterruptException, duckdb.OutOfMemoryException, RalTraceError) as error:
        if _interrupted(error):
            sys.exit(130)
        said = _no_room(error) or error
        if not isinstance(said, RalTraceError):
            raise
        if "--debug" in words[:cut]:
            traceback.print_exc()
        sys.stderr.write(f"ral-trace: {plain(str(said))}\n")
        sys.exit(said.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: DuckDB makes a RuntimeError of one that comes in the middle of a query."""
    while error is not None:
        if isinstance(error, (KeyboardInterrupt, duckdb.InterruptException)) or str(error) == QUERY_INTERRUPTED:
            return True
        error = error.__cause__
    return False


def _no_room(error: BaseException | None) -> RalTraceError | None:
    """What to say where the database had no room: it is not the fault of the trace, the query or the output."""
    while error is not None:
        words = str(error)
        # An Arrow stream that ends so has only the words.
        if isinstance(error, duckdb.OutOfMemoryException) or words.startswith(OUT_OF_MEMORY):
            if NO_DISK in words:
                place = tempfile.gettempdir()
                return RalTraceError(f"there is no room for temporary files in {place}; make some, or set TMPDIR")
            cause = words.partition("\n")[0].removeprefix(OUT_OF_MEMORY).strip(" .")
            return RalTraceError(f"that takes more memory than may be used ({cause}); ask for a part of it")
        error = error.__cause__
    return None


if __name__ == "__main__":
    main()
