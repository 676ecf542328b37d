"""The command line: one command a file, joined by a registry."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    # Imported late: `import draftgauge.cli` must not pay for typer and rich.
    from draftgauge.cli.app import run

    raise SystemExit(run())
