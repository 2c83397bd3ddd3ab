"""One root for every error that a person should read as one line: what, which file, why, what to do.

Caught only in `cli.main`.
"""

from pathlib import Path


class RalTraceError(Exception):
    """Something a person can act on. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(RalTraceError):
    """The command was given something it cannot take."""

    exit_code = 2


class NothingRecorded(RalTraceError):
    """A recording ended without one event. Its message says why."""

    exit_code = 3


class InputRefused(RalTraceError):
    """A file is not what it should be.

    `path` is the file, `cause` what is wrong with it, `remedy` what the person can do.
    """

    exit_code = 4

    def __init__(self, path: Path | str, cause: str, remedy: str) -> None:
        super().__init__(f"{path}: {cause}; {remedy}")
        self.path = path


class EventsLost(RalTraceError):
    """`--strict` was asked for and events were dropped or lost."""

    exit_code = 5


class AssertionFailed(RalTraceError):
    """A `check` assertion or a baseline comparison does not hold."""

    exit_code = 6
