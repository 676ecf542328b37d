"""The exceptions of this package, each with the evidence that its message shows.

A missing or unreadable file stays Python's own :class:`OSError` (:class:`FileNotFoundError` where it applies),
a wrong argument :class:`ValueError` or :class:`TypeError`.

Examples
--------
>>> import draftgauge as dg
>>> issubclass(dg.GgufError, dg.DraftgaugeError)
True
"""

from __future__ import annotations


class DraftgaugeError(Exception):
    """Base of every exception that this package defines.

    The message reads ``WHAT: WHERE: expected X, found Y``; its parts are attributes as well.

    Attributes
    ----------
    what : str
        What could not be done, as a short phrase.
    path : str or None
        The file concerned.
    tensor : str or None
        The tensor concerned.
    key : str or None
        The metadata key, option or argument concerned.
    expected : str or None
        What would have been right.
    found : str or None
        What was there instead.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        tensor: str | None = None,
        key: str | None = None,
        expected: str | None = None,
        found: str | None = None,
    ) -> None:
        super().__init__(message)
        self.what: str = message
        self.path = path
        self.tensor = tensor
        self.key = key
        self.expected = expected
        self.found = found


class GgufError(DraftgaugeError):
    """A GGUF file that lies about itself or breaks off."""


class QuantError(DraftgaugeError):
    """Quantized data of the wrong size or type."""


class ModelError(DraftgaugeError):
    """A model that cannot be loaded or run."""


class PairingError(DraftgaugeError):
    """A drafter that does not fit its target."""


class TreeError(DraftgaugeError):
    """A tree, draft or verification input that is not well formed."""


class DeviceError(DraftgaugeError):
    """A device, kernel path or amount of memory that is not to be had."""
