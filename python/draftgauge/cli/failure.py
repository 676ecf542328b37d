"""How a command fails: one line on stderr, an exit code, never a traceback unless asked for."""

from __future__ import annotations

import re

import typer

DONE, CHECK_FAILED, FAILED, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 130, 141


class RefusalError(Exception):
    """Something that cannot be done: usage, file, model, memory. Exit code 2.

    The message reads ``WHAT: WHERE: expected X, found Y``.
    """

    def __init__(self, what: str, where: str = "", *, expected: str = "", found: str = "") -> None:
        evidence = ", ".join(part for part in (expected and f"expected {expected}", found and f"found {found}") if part)
        super().__init__(": ".join(part for part in (what, where, evidence) if part))


def later(what: str, where: str) -> RefusalError:
    """The refusal of something that a later release brings."""
    return RefusalError(f"a later release brings {what}", where)


def one_line(error: BaseException) -> str:
    """The message of an error in the form ``WHAT: WHERE: expected X, found Y``."""
    if isinstance(error, typer.TyperException):
        return _usage(error)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        return f"{_lower(error.strerror)}{where}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    text = " ".join(str(error).split())
    return text or type(error).__name__


def _usage(error: typer.TyperException) -> str:
    """Typer's usage errors in our own words."""
    message = " ".join(str(getattr(error, "message", error)).split())
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "draftgauge"
    hint = f"`{command} -h`"

    option = getattr(error, "option_name", None)
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return f"unknown option: {option}: expected an option listed by {hint}, found {option}"
    if kind == "BadOptionUsage":
        return f"option without a value: {option}: expected a value (see {hint}), found nothing"
    if kind == "MissingParameter":
        return f"missing argument: {_parameter(error)}: expected a value (see {hint}), found nothing"
    if match := re.fullmatch(r"No such command '(.*?)'\.(?: .*)?", message):
        return f"unknown command: {match[1]}: expected a command listed by {hint}, found {match[1]}"
    if match := re.fullmatch(r"Got unexpected extra argument\S* \((.*)\)\.?", message):
        return f"unexpected argument: {match[1]}: expected no further argument (see {hint}), found {match[1]}"
    if kind == "BadParameter":
        where = _parameter(error)
        # Typer leaves the value itself to pydantic, whose error has it.
        errors = getattr(error.__cause__, "errors", None)
        details: list[dict[str, object]] = errors() if callable(errors) else []
        if details:
            kind_of_value = str(details[0].get("type", "")).partition("_")[0]
            words = {"float": "a number", "int": "a whole number", "bool": "true or false", "path": "a path"}
            expected = words.get(kind_of_value, str(details[0].get("msg", "another value")))
            return f"invalid value: {where}: expected {expected}, found {details[0].get('input')}"
        return f"invalid value: {where}: {message.rstrip('.')}"
    return f"{_lower(message.rstrip('.'))} (see {hint})"


def _parameter(error: typer.TyperException) -> str:
    hint = getattr(error, "param_hint", None)
    parameter = getattr(error, "param", None)
    if hint is None and parameter is not None:
        names = [name for name in getattr(parameter, "opts", []) if name.startswith("-")]
        hint = names or getattr(parameter, "metavar", None) or getattr(parameter, "name", None)
    return "/".join(hint) if isinstance(hint, (list, tuple)) else str(hint or "argument").strip("'\"")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
