"""Text in and out: tokenizers and chat templates, as a GGUF file carries them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftgauge._door import core
from draftgauge.types import Message

__all__ = ["ChatTemplate", "Tokenizer"]


class Tokenizer:
    """A tokenizer that gives llama.cpp's ids for the same file.

    :meth:`from_gguf` reads the metadata alone, so it also serves files whose architecture does not run here.

    Examples
    --------
    >>> import draftgauge as dg
    >>> from draftgauge.targets import demo_path
    >>> tokenizer = dg.Tokenizer.from_gguf(demo_path())
    >>> ids = tokenizer.encode("Hello, world!")
    >>> ids
    [19556, 28, 905, 17]
    >>> tokenizer.decode(ids)
    'Hello, world!'
    >>> tokenizer.vocab_size
    49152
    """

    def __init__(self, inner: core.Tokenizer) -> None:
        self._inner = inner

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read the tokenizer of a file.

        Raises
        ------
        FileNotFoundError
            When there is no such file.
        GgufError, ModelError
            When the file is wrong, or has no tokenizer that is known here.
        """
        return cls(core.Tokenizer.from_gguf(os.fspath(path)))

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Turn text into ids.

        Parameters
        ----------
        text : str
            The text.
        add_special : bool
            Put BOS before it and EOS after it where the file says so.
        parse_special : bool
            Read the names of control tokens in the text as those tokens.

        Returns
        -------
        list of int
            The ids, each below :attr:`vocab_size`.

        Examples
        --------
        >>> import draftgauge as dg
        >>> from draftgauge.targets import demo_path
        >>> tokenizer = dg.Tokenizer.from_gguf(demo_path())
        >>> tokenizer.encode("<|im_end|>"), tokenizer.encode("<|im_end|>", parse_special=False)
        ([2], [44, 108, 306, 79, 486, 108, 46])
        """
        return self._inner.encode(text, add_special, parse_special)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Turn ids into text. Bytes that form no character become U+FFFD.

        Parameters
        ----------
        ids : iterable of int
            The ids.
        skip_special : bool
            Leave control tokens out.

        Raises
        ------
        ValueError
            When an id is not in the vocabulary.

        Examples
        --------
        >>> import draftgauge as dg
        >>> from draftgauge.targets import demo_path
        >>> tokenizer = dg.Tokenizer.from_gguf(demo_path())
        >>> tokenizer.decode([1, 19556, 2]), tokenizer.decode([1, 19556, 2], skip_special=True)
        ('<|im_start|>Hello<|im_end|>', 'Hello')
        """
        return self._inner.decode(list(ids), skip_special)

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self._inner.vocab_size

    @property
    def bos(self) -> int | None:
        """Id of the token that begins a text."""
        return self._inner.bos

    @property
    def eos(self) -> int | None:
        """Id of the token that ends a text."""
        return self._inner.eos

    @property
    def add_bos(self) -> bool:
        """Whether BOS goes before a text."""
        return self._inner.add_bos

    @property
    def eog(self) -> list[int]:
        """Ids of every token that ends a generation."""
        return self._inner.eog


class ChatTemplate:
    """A model's own Jinja template, rendered as ``transformers`` renders it, in a sandbox with bounded work.

    Examples
    --------
    >>> import draftgauge as dg
    >>> from draftgauge.targets import demo_path
    >>> template = dg.ChatTemplate.from_gguf(demo_path())
    >>> print(template.render([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]))
    <|im_start|>system
    Be brief.<|im_end|>
    <|im_start|>user
    Hi<|im_end|>
    <|im_start|>assistant
    <BLANKLINE>
    """

    def __init__(self, inner: core.ChatTemplate) -> None:
        self._inner = inner

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> ChatTemplate:
        """Read the template of a file.

        Raises
        ------
        FileNotFoundError
            When there is no such file.
        ModelError
            When the file has no template, or one that cannot be read.
        """
        return cls(core.ChatTemplate.from_gguf(os.fspath(path)))

    @property
    def source(self) -> str:
        """The template as the file has it."""
        return self._inner.source

    @property
    def hash(self) -> str:
        """SHA-256 of the source, in hexadecimal."""
        return self._inner.hash

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The text of a conversation, as the model was trained to read it.

        Parameters
        ----------
        messages : sequence of mapping
            Turns such as ``{"role": "user", "content": "Hello"}``.
        add_generation_prompt : bool
            End where the model's answer begins.
        tools : sequence of mapping, optional
            Functions that the model may call, as JSON schemas.

        Raises
        ------
        ModelError
            When the template refuses the conversation; the message has its own words.
        """
        return self._inner.render(
            json.dumps(list(messages)), add_generation_prompt, None if tools is None else json.dumps(list(tools))
        )
