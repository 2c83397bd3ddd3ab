"""What can go wrong with the device, each in one line: what, why, what to do."""

from ral_trace.tracer.errors import RalTraceError


class BackendError(RalTraceError):
    """The `ral` device cannot do what was asked."""


class NameTaken(BackendError):
    """Another backend owns torch's PrivateUse1 device."""


class AdapterMissing(BackendError):
    """The part that needs torch was not built, or was built for another torch."""


class BadManifest(BackendError):
    """A kernel_manifest.json cannot be read at all. A bad entry in a good one is refused alone: `manifest.Refusal`."""
