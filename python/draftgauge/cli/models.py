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


def drafter_path(argument: str) -> str:
    """The file that a drafter argument names.

    Raises
    ------
    RefusalError
        For the embedded drafter, which comes in a later release.
    """
    if argument == DEMO:
        raise later("the embedded drafter", "-md demo")
    return argument
