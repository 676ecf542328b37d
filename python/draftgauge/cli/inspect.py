"""``draftgauge inspect``: what a GGUF file holds, what is wrong with it, and how two of them differ."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated, Any

import typer

from draftgauge import gguf
from draftgauge.cli import options, output
from draftgauge.cli.failure import CHECK_FAILED, DONE, RefusalError
from draftgauge.cli.models import drafter_path, model_path
from draftgauge.drafters import Check, pairing

EXAMPLE = """draftgauge inspect demo
draftgauge inspect model.gguf --metadata general.architecture
draftgauge inspect target.gguf -md drafter.gguf
draftgauge inspect a.gguf --diff b.gguf --data"""

LONG_VALUE = 72


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .gguf file (any shard of several), or `demo`.")],
    model_draft: options.Draft = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY", help="Print one metadata value in full; can be repeated."),
    ] = None,
    validate: Annotated[bool, typer.Option("--validate", help="Read the data too: NaN and infinite scales.")] = False,
    diff: Annotated[
        str | None, typer.Option("--diff", metavar="OTHER", help="Show how another file differs from this one.")
    ] = None,
    data: Annotated[bool, typer.Option("--data", help="With --diff: compare the values as well.")] = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> int:
    """Show metadata, tensors, sizes and problems of a GGUF file. Exit code 1 when there are problems or differences."""
    if data and diff is None:
        raise RefusalError("option without effect", "--data", expected="--diff OTHER beside it", found="none")
    if diff is not None and (tensors or metadata or validate or model_draft is not None):
        raise RefusalError(
            "options that exclude each other", "--diff", expected="--diff alone or with --data", found="others"
        )
    opened = gguf.open(model_path(file))
    if diff is not None:
        return _difference(opened, gguf.open(model_path(diff)), data, json)
    report: dict[str, Any] = opened.report()
    checks = None if model_draft is None else pairing(model_path(file), drafter_path(model_draft))
    if checks is not None:
        report["pairing"] = {"checks": [asdict(check) for check in checks]}
    if validate:
        report["problems"] += _validate(opened, shown=not json)
    for key in metadata or []:
        if key not in report["metadata"]:
            raise RefusalError("no such metadata key", f"{file}, {key}", expected="a key of the file", found="none")
    if json:
        if metadata:
            report["metadata"] = {key: report["metadata"][key] for key in metadata}
        output.print_json(report)
    elif metadata:
        for key in metadata:
            print(_full(report["metadata"][key]))
    else:
        _print(report, opened, tensors)
        if checks is not None:
            _print_pairing(checks)
    misfit = any(check.verdict == "error" for check in checks or [])
    return CHECK_FAILED if report["problems"] or misfit else DONE


def _validate(file: gguf.GgufFile, *, shown: bool) -> list[str]:
    with output.bar("reading", shown=shown) as advance:
        return file.validate(None if advance is None else lambda done, total: advance(done / max(total, 1)))


def _print(report: dict[str, Any], file: gguf.GgufFile, tensors: bool) -> None:
    print(f"{report['path']}: GGUF v{report['version']}, alignment {report['alignment']}")
    if len(report["shards"]) > 1:
        for shard in report["shards"]:
            print(f"  shard {shard['path']}: {output.human_bytes(shard['bytes'])}")
    print(f"architecture: {report['architecture'] or 'not given'}")
    print(f"name: {report['name'] or 'not given'}")
    print(f"parameters: {report['parameters']:,} in {len(report['tensors'])} tensors")
    print(f"size: {output.human_bytes(report['bytes'])}")
    print("\nmetadata:")
    for key, value in report["metadata"].items():
        print(f"  {key}: {_short(value)}")
    print()
    header = ("type", "tensors", "bytes")
    types = [(name, str(total["tensors"]), str(total["bytes"])) for name, total in report["types"].items()]
    print(output.table(header, types))
    if tensors:
        print()
        rows = [
            (
                tensor["name"],
                tensor["type"],
                " x ".join(str(extent) for extent in tensor["shape"]),
                str(tensor["bytes"]),
            )
            for tensor in report["tensors"]
        ]
        print(output.table(("tensor", "type", "shape", "bytes"), rows))
    print()
    print("problems: " + (str(len(report["problems"])) if report["problems"] else "none"))
    for problem in report["problems"]:
        print(f"  {problem}")
    output.notices(report["notices"])


def _print_pairing(checks: list[Check]) -> None:
    print("\npairing:")
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"  {check.name:{width}}  {check.verdict:6}  {check.detail}")


def _difference(left: gguf.GgufFile, right: gguf.GgufFile, data: bool, json: bool) -> int:
    difference = gguf.diff(left, right, data=data)
    same = bool(difference["equal"])
    if json:
        output.print_json(difference)
        return DONE if same else CHECK_FAILED
    if same:
        print("no difference" + (" in structure" if not data else ""))
        return DONE
    for part in ("metadata", "tensors"):
        sides = difference[part]
        for name in sides["only_left"]:
            print(f"- {part}: {name}")
        for name in sides["only_right"]:
            print(f"+ {part}: {name}")
        for change in sides["changed"]:
            print(f"! {part}: {change['name']}: {_side(change['left'])} -> {_side(change['right'])}")
    for row in difference["data"] or []:
        if not row["equal"]:
            error = row["relative_error"]
            print(f"! data: {row['name']}: relative error {'not defined' if error is None else f'{error:.3g}'}")
    return CHECK_FAILED


def _short(value: Any) -> str:
    if isinstance(value, list):
        head = ", ".join(_short(element) for element in value[:4])
        return f"[{head}{', …' if len(value) > 4 else ''}] ({len(value)})"
    text = json_module.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONG_VALUE else f"{text[: LONG_VALUE - 1]}… ({len(text)} characters)"


def _side(value: Any) -> str:
    """A metadata value is text already, a tensor's form has a type and a shape."""
    return value if isinstance(value, str) else f"{value['type']} {' x '.join(map(str, value['shape']))}"


def _full(value: Any) -> str:
    return value if isinstance(value, str) else json_module.dumps(value, ensure_ascii=False)
