"""``python -m draftgauge`` is the command line."""

from draftgauge.cli import main

main()
