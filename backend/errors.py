"""What can go wrong with the device, each in one line: what, why, what to do."""

from ral_trace.tracer.errors import RalTraceError


class BackendError(RalTraceError):
    """The `ral` device cannot do what was asked."""


class NameTaken(BackendError):
    """Another backend owns torch's PrivateUse1 device."""


class AdapterMissing(BackendError):
    """The part that needs torch was not built, or was built for another torch."""


class PluginRefused(BackendError):
    """A vendor's plugin cannot be used. `status` is what `ralctl plugin-status` shows, e.g. "BAD_ABI"."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class BadManifest(PluginRefused):
    """A kernel_manifest.json or plugin.json cannot be read at all.

    A bad entry in a good kernel manifest is refused alone: `manifest.Refusal`.
    """

    def __init__(self, message: str) -> None:
        super().__init__("BAD_MANIFEST", message)


class NoCodeGenerator(BackendError):
    """torch.compile was asked for code that nobody generates for a `ral` device."""


class NotShared(BackendError):
    """A tensor on a `ral` device was handed to another process."""
