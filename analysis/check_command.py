"""The command `check`: assertions about a trace, for people and for CI."""

from pathlib import Path

import click
import duckdb

from ral_trace.analysis.check import STATISTICS, Outcome, assertions_of, check, failures, read, told
from ral_trace.analysis.compare import compare
from ral_trace.analysis.compare_words import regressions, said
from ral_trace.analysis.expressions import UNITS, BadExpression
from ral_trace.analysis.metrics import METRICS
from ral_trace.tracer.errors import AssertionFailed, InputRefused, UsageError
from ral_trace.tracer.reading import Trace, newest_trace, open_trace
from ral_trace.tracer.text import plain
from ral_trace.tracer.units import percent


@click.command("check")
@click.argument("trace", required=False, type=click.Path(path_type=Path, readable=False))
@click.option("--assert", "asserted", multiple=True, metavar="EXPRESSION", help="Such as 'fallbacks == 0'. Repeatable.")
@click.option(
    "--assert-file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, readable=False),
    metavar="FILE",
    help="Assertions, one a line; # begins a comment. Repeatable.",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, readable=False),
    metavar="OTHER",
    help="A trace that TRACE must not be worse than; assertions may name its metrics: baseline.syncs.",
)
@click.option("--tolerance", default="5%", metavar="PERCENT", show_default=True, help="How much worse it may be.")
@click.option("--skip-steps", type=click.IntRange(0), default=0, metavar="N", help="Leave out the first N steps.")
@click.option("--allow-missing", is_flag=True, help="Judge by what is there where events or durations are missing.")
@click.option("--list", "listed", is_flag=True, help="List the metrics, statistics and units.")
def check_command(
    trace: Path | None,
    asserted: tuple[str, ...],
    files: tuple[Path, ...],
    baseline: Path | None,
    tolerance: str,
    skip_steps: int,
    allow_missing: bool,
    listed: bool,
) -> None:
    """Checks assertions about TRACE (default: the newest here); exit code 6 where one fails."""
    if listed:
        click.echo(listing())
        return
    share = percent(tolerance)
    texts = [*asserted, *(text for path in files for text in _assertions_in(path))]
    if not texts and baseline is None:
        raise UsageError("nothing to check; give --assert 'fallbacks == 0', --assert-file or --baseline (see --list)")
    _must_be_readable(texts, baseline is not None)
    path = trace or newest_trace(Path())
    with open_trace(path) if baseline is None else open_trace(baseline, other=path) as opened:
        try:
            if baseline is None:
                outcomes = check(opened, texts, skip_steps=skip_steps, allow_missing=allow_missing)
            else:
                with opened.other() as new:
                    outcomes = check(new, texts, baseline=opened, skip_steps=skip_steps, allow_missing=allow_missing)
                outcomes.append(_no_worse(opened, share, tolerance))
        except duckdb.Error as error:
            cause = str(error).strip().splitlines()[0]
            raise InputRefused(path, f"cannot be read through ({cause})", "record it again") from error
    for outcome in outcomes:
        click.echo(told(outcome))
    failed = failures(outcomes)
    if failed:
        names = "; ".join(outcome.assertion for outcome in failed)
        raise AssertionFailed(f"{path}: {len(failed)} of {len(outcomes)} failed: {names}")


def _must_be_readable(texts: list[str], baseline: bool) -> None:
    """Before any trace is opened: a bad expression is said at once, with a mark under the place."""
    try:
        read(texts, baseline=baseline)
    except BadExpression as error:
        click.echo("\n".join(map(plain, error.pointed().splitlines())), err=True)
        raise


def _assertions_in(path: Path) -> list[str]:
    try:
        return assertions_of(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "is no text"
        raise UsageError(f"{path}: cannot be read ({cause}); give a file with an assertion a line") from error


def _no_worse(opened: Trace, share: float, tolerance: str) -> Outcome:
    found = compare(opened)
    worse = regressions(found, share)
    asserted = f"no worse than {found.base} by more than {tolerance}"
    return Outcome(plain(asserted), not worse, said(found) if not worse else f"{len(worse)} worse", tuple(worse))


def listing() -> str:
    """The metrics with their units, the statistics and the units."""
    wide = max(len(metric.name) for metric in METRICS)
    lines = [f"{metric.name:{wide}}  {metric.unit:7}  {metric.about}" for metric in METRICS]
    return "\n".join([
        *lines,
        "",
        f"statistics: {' '.join(STATISTICS)}",
        f"units:      {' '.join(UNITS)}",
    ])  # fmt: skip
