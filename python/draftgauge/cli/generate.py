"""``draftgauge generate``: streams text, with a drafter where one is given."""

from __future__ import annotations

import math
import re
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli import options, output
from draftgauge.cli.drafting import DrafterChoice, announce
from draftgauge.cli.failure import DONE, INTERRUPTED, RefusalError, later
from draftgauge.cli.loading import load_target
from draftgauge.decode import Run, Session
from draftgauge.types import Generation

EXAMPLE = """draftgauge generate -m demo --spec-type ngram -p "Say the days of the week twice." -n 64
draftgauge generate -m model.gguf -f prompt.txt --temp 0.7 --seed 7 --json"""

LATER_VERIFIERS = ("rejection", "block")


def command(
    model: options.Model,
    model_draft: options.Draft = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt.")] = None,
    file: Annotated[
        str | None, typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from a file; - is stdin.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("-sys", "--system-prompt", metavar="TEXT", help="The system message.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Use no chat template.")] = False,
    predict: Annotated[
        int,
        typer.Option(
            "-n", "--predict", metavar="N", help="Most tokens; -1: until the model stops or the context ends."
        ),
    ] = 256,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Ban the tokens that end a generation.")] = False,
    reverse_prompt: Annotated[
        list[str] | None,
        typer.Option("-r", "--reverse-prompt", metavar="TEXT", help="Stop at this text; can be repeated."),
    ] = None,
    temp: Annotated[float, typer.Option("--temp", metavar="T", help="Temperature; 0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", metavar="N", help="Keep the N likeliest tokens; 0: off.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", metavar="P", help="Keep this share of probability.")] = 1.0,
    min_p: Annotated[
        float, typer.Option("--min-p", metavar="P", help="Keep tokens at least this likely against the likeliest.")
    ] = 0.0,
    repeat_penalty: Annotated[float, typer.Option("--repeat-penalty", metavar="X", help="1: off.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option("--presence-penalty", metavar="X", help="0: off.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option("--frequency-penalty", metavar="X", help="0: off.")] = 0.0,
    repeat_last_n: Annotated[
        int, typer.Option("--repeat-last-n", metavar="N", help="Tokens that penalties look at.")
    ] = 64,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option("--logit-bias", metavar="ID±X", help="Add X to a token's logit; can be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="-1 draws one and prints it.")] = 0,
    spec_type: options.SpecType = "auto",
    spec_draft_n_max: Annotated[
        str | None, typer.Option("--spec-draft-n-max", metavar="N", help="Longest draft; default: the drafter's own.")
    ] = None,
    spec_draft_block: options.SpecDraftBlock = None,
    spec_draft_p_min: options.SpecDraftPMin = 0.0,
    tree_budget: Annotated[
        str, typer.Option("--tree-budget", metavar="N", help="Nodes of a draft tree (later release); 0: a chain.")
    ] = "0",
    verify: Annotated[str, typer.Option("--verify", metavar="KIND", help="match (later: rejection, block).")] = "match",
    threads: options.Threads = None,
    ctx_size: options.CtxSize = None,
    device: options.Device = "cpu",
    numerics: options.Numerics = "fast",
    cache_type_k: options.CacheK = None,
    cache_type_v: options.CacheV = None,
    no_pack: options.NoPack = False,
    override_kv: options.OverrideKv = None,
    draft_override_kv: options.DraftOverrideKv = None,
    target_layers: options.TargetLayers = None,
    chat_template: options.ChatTemplateFile = None,
    json: options.Json = False,
    trace: options.Trace = None,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> int:
    """Generate text, streamed as it comes; accepted drafts are coloured, a summary ends it on stderr."""
    choice = DrafterChoice(model_draft, spec_type, override_kv=draft_override_kv, target_layers=target_layers)
    _refuse_later(tree_budget, verify)
    n_max = _draft_length(spec_draft_n_max, choice)
    for option, given in (("--spec-draft-block", spec_draft_block), ("--spec-draft-p-min", spec_draft_p_min or None)):
        if given is not None and not choice.has_block:
            raise RefusalError("option without effect", option, expected="a drafter file (-md)", found="none")
    if not 0 <= spec_draft_p_min < 1:
        raise RefusalError(
            "invalid value", "--spec-draft-p-min", expected="0 or more and less than 1", found=str(spec_draft_p_min)
        )
    if not (math.isfinite(temp) and temp >= 0):
        raise RefusalError("invalid value", "--temp", expected="a finite number of at least 0", found=str(temp))
    if predict < -1:
        raise RefusalError("invalid value", "-n", expected="-1 or more", found=str(predict))
    if seed < -1 or seed >= 2**64:
        raise RefusalError("invalid value", "--seed", expected="-1 to 2^64 - 1", found=str(seed))
    bias = dict(_bias(text) for text in logit_bias or [])
    text = _prompt(prompt, file)
    if seed == -1:
        seed = secrets.randbits(32)
        output.say(f"draftgauge: seed: {seed}")

    target = load_target(
        model,
        threads=threads,
        device=device,
        numerics=numerics,
        ctx_size=ctx_size,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        pack=not no_pack,
        override_kv=override_kv,
        chat_template=chat_template,
        verbose=verbose,
    )
    drafter = choice.load(target)
    if drafter is not None:
        announce(drafter, depth=n_max, block=spec_draft_block)
    with output.bar("prompt") as progress:
        run = Run(
            Session(target, drafter, seed=seed),
            text,
            max_tokens=predict,
            temperature=temp,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repeat_last_n=repeat_last_n,
            logit_bias=bias,
            stop=reverse_prompt or (),
            ignore_eos=ignore_eos,
            draft_n_max=n_max,
            draft_block=spec_draft_block,
            draft_p_min=spec_draft_p_min,
            raw=raw,
            system=system,
            trace=trace,
            on_prefill=progress,
        )
        interrupted = _read(run, printed=not json)
    result = run.result()
    if json:
        document = result.to_dict()
        if interrupted:
            document["interrupted"] = True
        output.print_json(document)
    else:
        sys.stdout.write("\n")
        sys.stdout.flush()
        output.say(summary(result))
        output.notices(result.notices)
    return INTERRUPTED if interrupted else DONE


def _read(run: Run, *, printed: bool) -> bool:
    """Read the run to its end and print what comes; whether Ctrl-C ended it."""
    coloured = output.wants_colour(sys.stdout)
    try:
        for chunk in run:
            if not printed:
                continue
            accepted, rest = chunk.accepted_text, chunk.text[len(chunk.accepted_text) :]
            if accepted and coloured:
                accepted = f"{output.ACCEPTED}{accepted}{output.PLAIN}"
            sys.stdout.write(accepted + rest)
            sys.stdout.flush()
    except KeyboardInterrupt:
        run.stop()
        return True
    return False


def summary(result: Generation) -> str:
    """The line that ends a generation: tokens, speeds, and what was accepted of what was drafted."""
    timings, draft = result.timings, result.draft
    parts = [f"{len(result.tokens)} tokens ({result.finish_reason})"]
    if timings.decode_tok_s is not None:
        parts.append(f"{timings.decode_tok_s:.1f} tok/s")
    if timings.prefill_tok_s is not None:
        parts.append(f"prompt {result.prompt_tokens} at {timings.prefill_tok_s:.1f} tok/s")
    if draft.status == "inactive":
        parts.append(f"{draft.type} drafter inactive: it proposed nothing in {draft.steps} steps")
    elif draft.status == "active":
        at = " ".join(f"{kept}/{proposed}" for kept, proposed in zip(draft.accepted_at, draft.proposed_at, strict=True))
        parts.append(
            f"{draft.type} drafter: {draft.accepted}/{draft.drafted} drafts accepted in {draft.steps} steps"
            f" ({draft.acceptance_rate:.0%}; {draft.acceptance_length:.2f} tokens a step, bonus included;"
            f" by position {at})"
        )
    return "draftgauge: " + ", ".join(parts)


def _refuse_later(tree_budget: str, verify: str) -> None:
    """Refuse what later releases bring: an option that is ignored would be a lie."""
    if tree_budget != "0":
        raise later("draft trees", f"--tree-budget {tree_budget}")
    if verify in LATER_VERIFIERS:
        raise later(f"the {verify} verifier", f"--verify {verify}")
    if verify != "match":
        raise RefusalError("invalid value", "--verify", expected="match", found=verify or "nothing")


def _draft_length(text: str | None, choice: DrafterChoice) -> int | None:
    if text is None:
        return None
    if text == "auto":
        raise later("adaptive draft lengths", "--spec-draft-n-max auto")
    if not (text.isascii() and text.isdigit()):
        raise RefusalError("invalid value", "--spec-draft-n-max", expected="a number of at least 0", found=text)
    if not choice.given:
        raise RefusalError("option without effect", "--spec-draft-n-max", expected="a drafter", found="none")
    return int(text)


def _bias(text: str) -> tuple[int, float]:
    """llama.cpp's spelling: an id, then a signed number, as in 15043+1 or 15043-inf."""
    match = re.fullmatch(r"(\d+)([+-](?:\d+(?:\.\d*)?|\.\d+|inf))", text.strip())
    if match is None or match[2] == "+inf":
        raise RefusalError("invalid value", "--logit-bias", expected="ID+X or ID-X, as in 15043-1.5", found=text)
    return int(match[1]), float(match[2])


def _prompt(prompt: str | None, file: str | None) -> str:
    if (prompt is None) == (file is None):
        found = "both" if prompt is not None else "neither"
        raise RefusalError("which prompt", "-p, -f", expected="one of the two", found=found)
    if prompt is not None:
        # What is not UTF-8 on the command line arrives as lone surrogates.
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RefusalError("prompt is not UTF-8", "-p", expected="UTF-8", found="other bytes") from error
        return prompt
    data = sys.stdin.buffer.read() if file == "-" else Path(str(file)).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte {data[error.start]:#04x} at {error.start}"
        raise RefusalError("prompt is not UTF-8", f"-f {file}", expected="UTF-8", found=found) from error
