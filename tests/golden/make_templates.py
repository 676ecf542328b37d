"""Makes the chat templates' golden file: conversations rendered by transformers.

    python tests/golden/make_templates.py TEMPLATE_DIR OUT.json [SMOLLM2.gguf]

TEMPLATE_DIR holds NAME.jinja files; with the GGUF file its own template is written there too, as smollm2.jinja.
transformers 5.24.0 with Jinja2 3.1.6 made the file here. Each case is `{"template", "conversation", "tools",
"add_generation_prompt", "variables", "text"}`, or `"error"` with the template's own words in place of `"text"`;
`conversations` and `tools` are named once at the top.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from unittest import mock

import jinja2
from transformers.utils import chat_template_utils

BOS, EOS = "<bos>", "<eos>"
# A Friday before ten, so that every padded field shows its padding.
NOW = datetime.datetime(2026, 3, 6, 9, 5, 7, tzinfo=datetime.timezone.utc)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather at a place, in °C & <html> "quotes".',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "days": {"type": "array", "items": {"type": "integer"}, "description": "Which days"},
                "detail": {"type": "object", "properties": {"wind": {"type": "boolean"}}, "required": ["wind"]},
            },
            "required": ["place"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
}
TOOLS = {"none": None, "weather": [WEATHER], "two": [WEATHER, CLOCK]}


def call(name: str, arguments: object, call_id: str = "abcdef123") -> dict[str, object]:
    """A tool call in OpenAI's shape."""
    return {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}


CONVERSATIONS: dict[str, list[dict[str, object]]] = {
    "one": [{"role": "user", "content": "Hello, wörld! 🎉"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "  spaced  "},
        {"role": "assistant", "content": "Yes.\n\nNo.  "},
        {"role": "user", "content": "line\nbreak\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nAnswer"},
        {"role": "user", "content": "{{ not a template }} {% nor this %} </s>"},
    ],
    "system_turns": [
        {"role": "system", "content": "You speak {{ jinja }}.\n"},
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "and 2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "中文？"},
    ],
    "ends_with_assistant": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "reasoning": [
        {"role": "user", "content": "why"},
        {"role": "assistant", "content": "because", "reasoning_content": "let me think\nabout it"},
        {"role": "user", "content": "and?"},
    ],
    "tool_call": [
        {"role": "user", "content": "Weather in Zürich?"},
        {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"place": "Zürich", "days": [1, 2]})]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "{\"t\": 21.5}"},
        {"role": "user", "content": "Thanks"},
    ],
    "tool_call_null": [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                call("get_weather", {"place": "Bern", "unit": "C", "detail": {"wind": True, "x": None, "f": 1.0}})
            ],
        },
        {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "cold"},
    ],
    "two_tool_calls": [
        {"role": "user", "content": "Both?"},
        {
            "role": "assistant",
            "content": "On it.",
            "tool_calls": [call("get_weather", {"place": "A"}, "aaaaaaaaa"), call("now", {}, "bbbbbbbbb")],
        },
        {"role": "tool", "name": "get_weather", "tool_call_id": "aaaaaaaaa", "content": "warm"},
        {"role": "tool", "name": "now", "tool_call_id": "bbbbbbbbb", "content": "noon"},
        {"role": "assistant", "content": "Warm at noon."},
        {"role": "user", "content": "ok"},
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": " part two"}]}
    ],
    "empty_content": [{"role": "user", "content": ""}],
    "empty": [],
    "unknown_role": [{"role": "wizard", "content": "abracadabra"}],
    "assistant_first": [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Hi"}],
    "two_users": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "no_content": [{"role": "user"}],
}  # fmt: skip


class Clock(datetime.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return NOW.replace(tzinfo=tz)


def render(source: str, case: dict[str, object]) -> dict[str, object]:
    """What transformers makes of a case: its text, or the words of its refusal."""
    messages = chat_template_utils._normalize_chat_messages(CONVERSATIONS[str(case["conversation"])])
    try:
        with mock.patch.object(chat_template_utils, "datetime", Clock):
            texts, _ = chat_template_utils.render_jinja_template(
                conversations=[messages],
                tools=TOOLS[str(case["tools"])],
                chat_template=source,
                add_generation_prompt=bool(case["add_generation_prompt"]),
                bos_token=BOS,
                eos_token=EOS,
                **case["variables"],
            )
        return {**case, "text": texts[0]}
    except jinja2.exceptions.TemplateError as error:
        raised = type(error) is jinja2.exceptions.TemplateError
        return {**case, "error": str(error) if raised else type(error).__name__}
    except TypeError:
        return {**case, "error": "TypeError"}


def main() -> None:
    """Writes the golden file."""
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    if len(sys.argv) > 3:
        import gguf

        field = gguf.GGUFReader(sys.argv[3]).fields["tokenizer.chat_template"]
        (folder / "smollm2.jinja").write_text(field.contents(), encoding="utf-8", newline="")
    results = []
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode("utf-8")
        for conversation in CONVERSATIONS:
            cases = [("none", True, {}), ("none", False, {})]
            if conversation in ("one", "system", "tool_call", "tool_call_null", "two_tool_calls"):
                cases += [("weather", True, {}), ("two", True, {})]
            if conversation in ("one", "reasoning") and ("enable_thinking" in source or "thinking" in source):
                cases += [
                    ("none", True, {"enable_thinking": False, "thinking": True}),
                    ("none", True, {"enable_thinking": True}),
                ]
            for tools, add, variables in cases:
                case = {"template": path.stem, "conversation": conversation, "tools": tools}
                case |= {"add_generation_prompt": add, "variables": variables}
                results.append(render(source, case))
    head = {
        "made_by": f"transformers, Jinja2 {jinja2.__version__}",
        "unix_time": int(NOW.timestamp()),
        "bos": BOS,
        "eos": EOS,
    }
    head |= {"conversations": CONVERSATIONS, "tools": TOOLS}
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in results)
    body = json.dumps(head, ensure_ascii=False, separators=(",", ":"))[:-1] + ',\n"cases":[\n' + lines + "\n]}\n"
    out.write_text(body, encoding="utf-8")
    errors = sum("error" in case for case in results)
    print(f"{len(results)} cases, {errors} of them refused, {len(body.encode())} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
