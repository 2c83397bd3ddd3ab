"""`ral-trace`, and `python -m ral_trace.tracer`. What the command line needs takes half a second to load: a Ctrl-C in
that time ends it as it does later.
"""

import sys


def main() -> None:
    """Loads the command line and runs it."""
    try:
        from ral_trace.tracer import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
