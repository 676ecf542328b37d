"""Generating: one call, a stream, or a session that keeps its caches between turns."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from draftgauge._door import core
from draftgauge.drafters import Drafter
from draftgauge.errors import ModelError
from draftgauge.targets import Target
from draftgauge.trace import TracePlace
from draftgauge.types import Chunk, DraftStats, Generation, Message, Timings

__all__ = ["Prompt", "Run", "Session", "generate", "stream"]

Prompt = str | Sequence[int] | Sequence[Message]
"""A text, token ids, or the turns of a conversation."""


class Session:
    """A sequence that grows: what a prompt has in common with earlier turns is not computed again.

    Parameters
    ----------
    target : Target
        The model.
    drafter : Drafter, optional
        What proposes tokens; none for plain decoding.
    seed, stream_id : int
        The noise is a function of both, of position and of token; `stream_id` tells the sequences of a run apart.
    """

    def __init__(self, target: Target, drafter: Drafter | None = None, seed: int = 0, stream_id: int = 0) -> None:
        self._target = target
        self._drafter = drafter
        self._seed = _unsigned("seed", seed)
        self._stream_id = _unsigned("stream_id", stream_id)
        self._inner = core.Session(target._inner, None if drafter is None else drafter._inner)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output so far."""
        return self._inner.tokens

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on, in the target's cache and in the drafter's.

        Raises
        ------
        ValueError
            When the session has fewer tokens.
        """
        self._inner.truncate(_unsigned("length", length))

    def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """Generate as :func:`generate` does, with its options; drafter, seed and stream are the session's."""
        return Run(self, prompt, chunks=False, **options).result()

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Chunk]:
        """Generate as :func:`stream` does, with its options."""
        return iter(Run(self, prompt, **options))


class Run:
    """One generation, read step by step: an iterator of chunks that can be stopped, and its result.

    It computes in a thread of its own, at most one step ahead of its reader.
    """

    def __init__(
        self,
        session: Session,
        prompt: Prompt,
        *,
        chunks: bool = True,
        max_tokens: int | None = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repeat_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_last_n: int = 64,
        logit_bias: Mapping[int, float] | None = None,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        draft_n_max: int | None = None,
        draft_block: int | None = None,
        draft_p_min: float = 0.0,
        tree_budget: int = 0,
        verify: Literal["match"] = "match",
        raw: bool = False,
        system: str | None = None,
        trace: str | os.PathLike[str] | TracePlace | None = None,
        on_prefill: Callable[[float], object] | None = None,
    ) -> None:
        _refuse_later(tree_budget=tree_budget, verify=verify)
        target, drafter = session._target, session._drafter
        self._target = target
        self._on_prefill = on_prefill
        tokens = prompt_tokens(target, prompt, raw=raw, system=system)
        stops = [stop] if isinstance(stop, str) else list(stop)
        limit = None if max_tokens is None or max_tokens == -1 else _unsigned("max_tokens", max_tokens)
        for name, value in (("draft_n_max", draft_n_max), ("draft_block", draft_block)):
            if drafter is None and value is not None:
                raise ValueError(f"option without effect: {name}: expected a drafter beside it, found {value}")
        sampling: dict[str, Any] = {
            "temperature": float(temperature),
            "top_k": _unsigned("top_k", top_k),
            "top_p": float(top_p),
            "min_p": float(min_p),
            "repeat_penalty": float(repeat_penalty),
            "presence_penalty": float(presence_penalty),
            "frequency_penalty": float(frequency_penalty),
            "repeat_last_n": int(repeat_last_n),
            "ignore_eos": bool(ignore_eos),
            "seed": session._seed,
            "stream_id": session._stream_id,
            "draft_n_max": None if draft_n_max is None else _unsigned("draft_n_max", draft_n_max),
            "draft_block": None if draft_block is None else _unsigned("draft_block", draft_block),
            "draft_p_min": float(draft_p_min),
        }
        biases = [(_unsigned("logit_bias", token), float(bias)) for token, bias in (logit_bias or {}).items()]
        options = core.Options(max_tokens=limit, logit_bias=biases, stop=stops, **sampling)
        self._settings = {
            "max_tokens": -1 if limit is None else limit,
            **sampling,
            "logit_bias": {str(token): bias for token, bias in biases},
            "stop": stops,
            "raw": raw or not isinstance(prompt, str) or target.chat_template is None,
            "verify": "match",
            "tree_budget": 0,
            "drafter": None if drafter is None else drafter_facts(drafter),
            **target_settings(target),
        }
        self._notices = [*target.notices, *([] if drafter is None else drafter.notices)]
        if drafter is not None and draft_n_max is None:
            self._settings["draft_n_max"] = drafter.draft_len
        if drafter is not None and draft_block is None:
            self._settings["draft_block"] = drafter.block_size
        if drafter is not None and draft_n_max == 0:
            self._notices.append(f"the {drafter.kind} drafter was given and cannot draft: draft_n_max is 0")
        place: tuple[str, str | None, int, str | None, str | None] | None = None
        if isinstance(trace, TracePlace):
            place = (os.fspath(trace.path), None, trace.seq, trace.id, trace.category)
        elif trace is not None:
            place = (os.fspath(trace), json.dumps(trace_header(target, drafter, self._settings)), 0, None, None)
        self._inner = session._inner.start(tokens, options, chunks=chunks, trace=place)
        self._finished: Generation | None = None

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while (event := self._inner.next()) is not None:
                chunk, prefill = event
                if chunk is not None:
                    text, tokens, num_accepted, accepted_text = chunk
                    yield Chunk(text, tokens, num_accepted, accepted_text)
                elif prefill is not None and self._on_prefill is not None:
                    self._on_prefill(prefill[0] / max(prefill[1], 1))
            self.result()
        finally:
            self._inner.stop()

    def stop(self) -> None:
        """End the run after the step that it is in; the result then says ``interrupted``."""
        self._inner.stop()

    def result(self) -> Generation:
        """Wait for the end, and give what the run came to."""
        if self._finished is None:
            try:
                report = json.loads(self._inner.result())
            except BaseException:
                # Ctrl-C: without this the thread would compute on for nobody.
                self._inner.stop()
                raise
            timings = Timings(load_s=self._target._inner.load_seconds, **report.pop("timings"))
            notices = list(dict.fromkeys([*self._notices, *report.pop("notices")]))
            self._finished = Generation(
                timings=timings,
                draft=DraftStats(**report.pop("draft")),
                settings=self._settings,
                device=self._target.device,
                kernels=self._target.kernels,
                notices=notices,
                **report,
            )
        return self._finished


def generate(
    target: Target,
    prompt: Prompt,
    *,
    drafter: Drafter | None = None,
    max_tokens: int | None = 256,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repeat_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repeat_last_n: int = 64,
    logit_bias: Mapping[int, float] | None = None,
    stop: str | Sequence[str] = (),
    ignore_eos: bool = False,
    seed: int = 0,
    stream_id: int = 0,
    draft_n_max: int | None = None,
    draft_block: int | None = None,
    draft_p_min: float = 0.0,
    tree_budget: int = 0,
    verify: Literal["match"] = "match",
    raw: bool = False,
    system: str | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> Generation:
    """Continue a prompt.

    With `drafter`, the tokens are the same as without it, bit for bit, on the device ``cpu``.

    Parameters
    ----------
    target : Target
        The model.
    prompt : str, sequence of int, or sequence of mapping
        A text (given to the model's chat template as the user's turn, unless `raw`), token ids, or the turns of a
        conversation.
    drafter : Drafter, optional
        What proposes tokens.
    max_tokens : int or None
        Most tokens; -1 or ``None`` goes on until the model stops or the context is full, 0 computes the prompt alone.
    temperature : float
        0 takes the likeliest token.
    top_k, top_p, min_p : int, float, float
        Cuts of the distribution; 0, 1 and 0 leave it whole.
    repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n : float, float, float, int
        Penalties on the last `repeat_last_n` tokens of prompt and output.
    logit_bias : mapping of int to float, optional
        Added to the logits of single tokens.
    stop : str or sequence of str
        Texts that end the output before them.
    ignore_eos : bool
        Ban the tokens that end a generation.
    seed, stream_id : int
        What the noise is a function of, beside position and token.
    draft_n_max : int, optional
        Most drafts a step; by default the drafter's own length.
    draft_block : int, optional
        Width of the draft block, for drafters that have one; by default the trained width.
    draft_p_min : float
        Ends a draft before the first token whose confidence is below this. Without a confidence head, a draft's
        confidence is its probability among the ten likeliest, as llama.cpp has it.
    tree_budget, verify
        For trees and verifiers of later releases; other values than the defaults are refused.
    raw : bool
        Use no chat template.
    system : str, optional
        A system message before the prompt.
    trace : path, optional
        Write the raw facts of every step there, as JSON lines.

    Returns
    -------
    Generation
        Text, tokens, counts and timings.

    Raises
    ------
    ValueError
        For an option out of range, or one that a later release brings.
    ModelError
        When a logit is not finite, or the chat template refuses the conversation.
    KeyboardInterrupt
        After Ctrl-C, within one step. :func:`stream` keeps what came before it.
    """
    run = Run(
        Session(target, drafter, seed, stream_id),
        prompt,
        chunks=False,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repeat_last_n=repeat_last_n,
        logit_bias=logit_bias,
        stop=stop,
        ignore_eos=ignore_eos,
        draft_n_max=draft_n_max,
        draft_block=draft_block,
        draft_p_min=draft_p_min,
        tree_budget=tree_budget,
        verify=verify,
        raw=raw,
        system=system,
        trace=trace,
    )
    return run.result()


def stream(
    target: Target,
    prompt: Prompt,
    *,
    drafter: Drafter | None = None,
    max_tokens: int | None = 256,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repeat_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repeat_last_n: int = 64,
    logit_bias: Mapping[int, float] | None = None,
    stop: str | Sequence[str] = (),
    ignore_eos: bool = False,
    seed: int = 0,
    stream_id: int = 0,
    draft_n_max: int | None = None,
    draft_block: int | None = None,
    draft_p_min: float = 0.0,
    tree_budget: int = 0,
    verify: Literal["match"] = "match",
    raw: bool = False,
    system: str | None = None,
    trace: str | os.PathLike[str] | None = None,
) -> Iterator[Chunk]:
    """Continue a prompt, one chunk a step. Closing the iterator stops the run.

    Parameters and errors are those of :func:`generate`; the chunks' tokens, joined, are its tokens, and their texts,
    joined, its text. Options are checked at once, not with the first chunk.

    Returns
    -------
    iterator of Chunk
        What each step committed.
    """
    run = Run(
        Session(target, drafter, seed, stream_id),
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repeat_last_n=repeat_last_n,
        logit_bias=logit_bias,
        stop=stop,
        ignore_eos=ignore_eos,
        draft_n_max=draft_n_max,
        draft_block=draft_block,
        draft_p_min=draft_p_min,
        tree_budget=tree_budget,
        verify=verify,
        raw=raw,
        system=system,
        trace=trace,
    )
    return iter(run)


def prompt_tokens(target: Target, prompt: Prompt, *, raw: bool = False, system: str | None = None) -> list[int]:
    """Ids of a prompt: as they are, from a text, or from a conversation by way of the chat template.

    Raises
    ------
    ValueError
        For a conversation or a system message without a template to put it in.
    TypeError
        For anything but text, ids or turns.
    """
    messages: list[Message]
    broken = target._inner.template_error
    if (
        broken is not None
        and not raw
        and (isinstance(prompt, str) or any(isinstance(part, Mapping) for part in prompt))
    ):
        raise ModelError(f"{broken} (give another template, or use raw text or ids)", key="tokenizer.chat_template")
    if isinstance(prompt, str):
        if raw or target.chat_template is None:
            if system is not None:
                raise ValueError("a system message needs a chat template: system: expected a template, found none")
            return target.tokenizer.encode(prompt, add_special=True, parse_special=True)
        messages = [{"role": "user", "content": prompt}]
    elif all(isinstance(part, Mapping) for part in prompt) and len(prompt) > 0:
        messages = [dict(part) for part in prompt if isinstance(part, Mapping)]
    else:
        if system is not None:
            raise ValueError("a system message needs a text: system: expected a text or turns as prompt, found ids")
        return [_unsigned("prompt", part) for part in prompt]
    if raw or target.chat_template is None:
        raise ValueError("a conversation needs a chat template: prompt: expected a template, found none")
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    text = target.chat_template.render(messages, add_generation_prompt=True)
    ids = target.tokenizer.encode(text, add_special=False, parse_special=True)
    # Some templates write BOS themselves: it must not be there twice.
    bos = target.tokenizer.bos
    if target.tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
        ids.insert(0, bos)
    return ids


def target_settings(target: Target) -> dict[str, Any]:
    """The effective settings that a target was loaded with."""
    key, value = target._inner.cache_types
    return {
        "threads": target.threads,
        "ctx_size": target.ctx_size,
        "numerics": target._inner.numerics,
        "cache_type_k": key,
        "cache_type_v": value,
        "chat_template": None if target.chat_template is None else target.chat_template.hash,
    }


def drafter_facts(drafter: Drafter) -> dict[str, Any]:
    """Kind and configuration of a drafter, with the provenance of each field."""
    config = {name: {"value": one.value, "provenance": one.provenance} for name, one in drafter.config.items()}
    return {
        "kind": drafter.kind,
        "draft_len": drafter.draft_len,
        "block_size": drafter.block_size,
        "tap_layers": drafter.tap_layers,
        "config": config,
    }


def trace_header(target: Target, drafter: Drafter | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The first line of a trace."""
    return {
        "trace": "draftgauge",
        "version": 1,
        "target": {
            "path": str(target.path),
            "architecture": target.architecture,
            "num_layers": target.num_layers,
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
        },
        "drafter": None if drafter is None else drafter_facts(drafter),
        "settings": dict(settings),
        "machine": machine(),
        "kernels": target.kernels,
        "notices": [*target.notices, *([] if drafter is None else drafter.notices)],
    }


def machine() -> dict[str, Any]:
    """What this machine is, as far as it tells."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        # Only Linux has the file; elsewhere the platform's own word stands.
        pass
    return {"cpu": cpu, "cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}


def _refuse_later(*, tree_budget: int, verify: str) -> None:
    if tree_budget != 0:
        raise ValueError(f"a later release brings draft trees: tree_budget {tree_budget}")
    if verify in ("rejection", "block"):
        raise ValueError(f"a later release brings the {verify} verifier: verify {verify}")
    if verify != "match":
        raise ValueError(f"invalid value: verify: expected match, found {verify}")


def _unsigned(name: str, value: Any) -> int:
    """A whole number of at least 0: NumPy's are, booleans and floats are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected a whole number, found {type(value).__name__}")
    number = int(value)
    if not 0 <= number < 2**64:
        raise ValueError(f"{name}: expected 0 to 2^64 - 1, found {number}")
    return number
