"""Prompt sets: one JSON object a line, in the forms that the field's sets have."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgauge.types import Message

__all__ = ["Prompt", "PromptSet", "load"]


@dataclass(frozen=True)
class Prompt:
    """One prompt of a set.

    Attributes
    ----------
    id : str
        Its name, unique in the set; its line's number where the file has none.
    category : str or None
        Its category.
    content : str or list of message
        A text, or the turns of a conversation.
    """

    id: str
    category: str | None
    content: str | list[Message]


@dataclass(frozen=True)
class PromptSet:
    """A loaded set.

    Attributes
    ----------
    prompts : list of Prompt
        In the order of the file.
    sha256 : str
        Hash of ids and contents.
    notices : list of str
        What was left out: later turns of conversations.
    """

    prompts: list[Prompt]
    sha256: str
    notices: list[str]


def load(path: str | os.PathLike[str], limit: int | None = None) -> PromptSet:
    """Load a set: ``{"prompt": text}``, ``{"messages": [...]}`` or ``{"turns": [text, ...]}`` a line.

    `turns` is the form of DeepSpec's and SPEED-Bench's files; the first turn is used, as DeepSpec's evaluation does.
    ``id`` (or ``question_id``) and ``category`` are optional.

    Raises
    ------
    FileNotFoundError
        When there is no such file.
    ValueError
        For a line that is none of these, two prompts of one id, or an empty set; the message names the line.
    """
    prompts: list[Prompt] = []
    seen: set[str] = set()
    later_turns = 0
    # A line ends at a newline alone: texts may hold U+2028 and its like, at which splitlines() would cut.
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        if limit is not None and len(prompts) >= limit:
            break
        where = f"{os.fspath(path)}, line {number}"
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()
        except json.JSONDecodeError as error:
            raise ValueError(f"prompt is not JSON: {where}: expected an object, found {error}") from error
        except RecursionError as error:
            raise ValueError(
                f"prompt is nested too deeply: {where}: expected an object, found deeper nesting"
            ) from error
        except UnicodeEncodeError as error:
            half = f"U+{ord(error.object[error.start]):04X}"
            raise ValueError(
                f"prompt is no text: {where}: expected whole characters, found half a pair, {half}"
            ) from error
        if not isinstance(row, dict):
            raise ValueError(f"prompt is no object: {where}: expected an object, found {type(row).__name__}")
        content, turns = _content(row, where)
        later_turns += turns > 1
        name = str(row.get("id", row.get("question_id", number)))
        if name in seen:
            raise ValueError(f"two prompts have one id: {where}: expected another id, found {name}")
        seen.add(name)
        category = row.get("category")
        prompts.append(Prompt(name, None if category is None else str(category), content))
    if not prompts:
        raise ValueError(f"prompt set is empty: {os.fspath(path)}: expected one prompt a line, found none")
    hashed = hashlib.sha256(
        json.dumps([[one.id, one.category, one.content] for one in prompts], ensure_ascii=False).encode()
    )
    notices = []
    if later_turns:
        notices.append(f"{later_turns} prompts have further turns: the first one alone is used")
    return PromptSet(prompts, hashed.hexdigest(), notices)


def _text(path: str | os.PathLike[str]) -> str:
    data = Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.object[error.start]:#04x} at {error.start}"
        raise ValueError(f"prompt set is not UTF-8: {os.fspath(path)}: expected UTF-8, found {found}") from error


def _content(row: dict[str, Any], where: str) -> tuple[str | list[Message], int]:
    """Content of a row, and how many turns it has."""
    forms = [name for name in ("prompt", "messages", "turns") if name in row]
    if len(forms) != 1:
        found = ", ".join(forms) or "none"
        raise ValueError(f"prompt has no content: {where}: expected one of prompt, messages, turns, found {found}")
    value = row[forms[0]]
    if forms[0] == "prompt" and isinstance(value, str):
        return value, 1
    if forms[0] == "messages" and isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return value, 1
    if forms[0] == "turns" and isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return value[0], len(value)
    wanted = {"prompt": "a text", "messages": "a list of messages", "turns": "a list of texts"}[forms[0]]
    raise ValueError(f"prompt has the wrong form: {where}, {forms[0]}: expected {wanted}, found {type(value).__name__}")
