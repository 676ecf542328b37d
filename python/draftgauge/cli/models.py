"""What a model argument means: a path, or ``demo`` for the embedded target."""

from __future__ import annotations

from draftgauge.cli.failure import later
from draftgauge.targets import demo_path

DEMO = "demo"


def model_path(argument: str) -> str:
    """The file that a model argument names.

    Raises
    ------
    FileNotFoundError
        When the embedded target is not installed; the message has the command that installs it.
    """
    return str(demo_path()) if argument == DEMO else argument


def refuse_drafter(argument: str | None) -> None:
    """Refuse a drafter file: the drafters that have one come later."""
    if argument == DEMO:
        raise later("the embedded drafter", "-md demo")
    if argument is not None:
        raise later("drafters with weights", f"-md {argument}")
