"""What goes to stdout and stderr: one JSON object, plain tables, bars on a terminal alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

ACCEPTED, PLAIN = "\x1b[32m", "\x1b[0m"


def print_json(value: Any) -> None:
    """Print exactly one JSON object on stdout: no NaN, nothing after it."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)


def say(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr, flush=True)


def notices(lines: Sequence[str]) -> None:
    """Print each notice once, on stderr."""
    for line in dict.fromkeys(lines):
        say(f"draftgauge: notice: {line}")


def is_terminal(stream: TextIO) -> bool:
    """Whether bars and moving text make sense on a stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def wants_colour(stream: TextIO) -> bool:
    """Whether colours make sense on a stream: a terminal, and nobody said ``NO_COLOR``."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that line up: the first to the left, the others to the right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def human_bytes(count: int) -> str:
    """Bytes in the largest binary unit that leaves at least one."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


@contextmanager
def bar(label: str, *, shown: bool = True) -> Iterator[Callable[[float], None] | None]:
    """A progress bar with an ETA on stderr; gives ``None`` where there is no terminal to draw on.

    The callable takes the share that is done, from 0 to 1. Work that ends within half a second draws nothing.
    """
    if not (shown and is_terminal(sys.stderr)):
        yield None
        return
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr, no_color=not wants_colour(sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(label, total=1.0)
    started = time.monotonic()
    live = False

    def advance(share: float) -> None:
        nonlocal live
        if not live and share < 1 and time.monotonic() - started > 0.5:
            progress.start()
            live = True
        progress.update(task, completed=share)
        if live and share >= 1:
            # What comes next may print on the same terminal.
            progress.stop()
            live = False

    try:
        yield advance
    finally:
        if live:
            progress.stop()
