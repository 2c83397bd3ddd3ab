"""What exporters and the importers that read their files back agree on."""

JSON_VERSION = 1
"""Of the form of `ralTrace` in our JSON."""

ANNOTATED_ARGS = ("routed", "route", "reason", "waited_for", "kernel", "vendor", "shapes", "dtypes")
"""Keys of `event.args` that timelines show with a slice."""
ANNOTATED_COLUMNS = ("category", "bytes", "step", "correlation")
"""Columns of `event` that timelines show with a slice."""
ANNOTATED_PLACES = ("on_device", "on_stream")
"""Ids that timelines show with a slice, of host rows whose track does not tell."""
MARK = "mark"
"""The category of points that are no rows: they repeat a fallback on its device's track."""
