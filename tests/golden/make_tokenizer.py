# ruff: noqa: E501 (tables of strings read better in long lines)
"""Makes the tokenizer's golden files: hard strings of our own making and llama.cpp's ids for them.

    python tests/golden/make_tokenizer.py LLAMA_TOKENIZE OUT_DIR NAME=MODEL.gguf [NAME=MODEL.gguf ...]

LLAMA_TOKENIZE is llama.cpp's tool of that name (b11434 made the files here). Each NAME.json holds `cases`, a list of
`{"text", "parse_special", "ids"}`; ids include BOS where the file's flags add it. Small vocabularies made by
make_vocabularies.py are given in the same way.
"""

from __future__ import annotations

import concurrent.futures
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

SPECIAL_TEXTS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<unk>", "<pad>",
    "<s>", "</s>", "<0x0A>", "<0xFF>", "<unused7>", "<repo_name>", "<|eot_id|>", "<table>", "<h1>", "<|tool>", "<tool|>",
]  # fmt: skip


def hard_strings() -> list[str]:
    """At least 300 strings, each hard for its own reason; nothing random that a seed does not fix."""
    plain = [
        "Hello, world!", "hello", " hello", "  hello", "   hello", "hello ", "hello  ", "hello   ", "Hello\n", "\nHello",
        "\n", "\n\n", "\n\n\n", "\n" * 7, "\n" * 33, "\r\n", "\r\n\r\n", "\r", "\r\r\n", "a\r\nb\rc\nd", "\t", "\t\t", " \t ",
        "\t\n\t", " ", "  ", "   ", " " * 5, " " * 16, " " * 31, " " * 32, " " * 33, " " * 100, "a" + " " * 40 + "b",
        " \n ", "  \n  \n  ", "\n \n \n", "x \n", "x\n ", "x \n y", "x\n\n  y", "  \n\tx",
        "\v", "\f", "a\vb\fc", "\x85", "a\x85b", "\xa0", "a\xa0b", "\xa0\xa0 x", "\u2028", "\u2029", "a\u2028b\u2029c",
        "\u3000", "\u3000全角", "\u200b", "zero\u200bwidth", "\u2009thin\u200aspaces\u202f", "\ufeff", "\ufeffBOM",
        "\x01", "\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x1c\x1d\x1e\x1f", "a\x1cb",
    ]  # fmt: skip
    contractions = [
        "I'm he's she'd we'll they've you're isn't", "I'M HE'S SHE'D WE'LL THEY'VE YOU'RE ISN'T", "I'm I'M i'm 'Tis 'twas",
        "'s", "'S", "'t", "'re", "'RE", "'rE", "'ll'll", "''s", "'sx", "'dx 'mx", "don't", "DON'T", "Don’t", "l'été d'où",
        "rock'n'roll", "o'clock", "'", "''", "'''", " '", "' ", "x'", "'x", "'ſ", "a'ſb", "'ŝ", "it's 5'8\"", "'ve'VE've",
    ]  # fmt: skip
    digits = [
        "0", "1", "12", "123", "1234", "12345", "123456", "1234567", "0123456789" * 3, " 1", " 12", "  123", "1 2 3", "1,234.56",
        "3.14159", "-1", "+1", "1e10", "1e-10", "0x1F", "0b1010", "1/2", "50%", "$100", "€1.000,00", "2024-01-31T12:34:56Z",
        "192.168.0.1", "v1.2.3-rc4", "a1b2c3", "1a", "a1", "١٢٣٤", "१२३", "１２３４", "Ⅳ Ⅻ", "½ ¾ ⅓", "①②③", "²³¹", "x²+y³", "৪২", "𝟏𝟐𝟑",
        "〇一二三", "1２3", "000000000000000000000", "9" * 100,
    ]  # fmt: skip
    scripts = [
        "你好，世界！", "中文 English 混合 123", "今天天气很好。我们去公园吧？", "日本語のテキスト", "カタカナ ひらがな 漢字", "ｱｲｳｴｵ", "한국어 텍스트입니다", "ㅎㅎㅋㅋ",
        "مرحبا بالعالم", "السَّلَامُ عَلَيْكُمْ", "שָׁלוֹם עוֹלָם", "नमस्ते दुनिया", "क्षत्रिय श्रीमान्", "สวัสดีชาวโลก", "ก็ที่นี่ไม่มี", "ខ្មែរ", "မြန်မာ",
        "தமிழ் எழுத்து", "తెలుగు", "ಕನ್ನಡ", "മലയാളം", "ગુજરાતી", "ਪੰਜਾਬੀ", "සිංහල", "ལྷ་ས་", "አማርኛ", "ქართული", "Հայերեն", "Ελληνικά", "Привет, мир!",
        "ПРИВЕТ привет ПрИвЕт", "Žluťoučký kůň úpěl ďábelské ódy", "Zażółć gęślą jaźń", "Fußgängerübergänge ÄÖÜ ẞ", "Ærøskøbing", "İstanbul ışık ILIK",
        "Đặng Thị Hồng Ngọc", "ʻŌlelo Hawaiʻi", "ᏣᎳᎩ", "ᚠᚢᚦᚨᚱᚲ", "𐍈𐌰𐌽", "𓀀𓁐", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "ｆｕｌｌｗｉｄｔｈ", "ﬁ ﬂ ﬃ", "Ǆ ǅ ǆ", "ª º ʰ ˢ", "ᵃᵇᶜ",
        "a̐éö̲", "e\u0301", "é", "n\u0303 ñ", "Z͑ͫ̓a̴l̵g̶o̷", "\u0301", " \u0301", "\u0301a", "a\u0300\u0301\u0302b", "क\u093c", "\u200dx", "x\u200cy", "ा",
        "1\u0301", ".\u0301.", "\n\u0301", "אֳ\u200eb", "\u202eRTL\u202c", "⃣", "1️⃣", "A\u20dd",
    ]  # fmt: skip
    symbols = [
        "🎉", "🎉🎉🎉", " 🎉", "👩‍👩‍👧‍👦", "👩🏽‍🚀", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☃", "©®™", "a🎉b", "🎉 1", "🤖’s", "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋", "α+β≠γ", "→←↔", "░▒▓█", "•◦‣",
        "…", "—–-", "“quotes” ‘single’ «guillemets»", "„unten“", "¿Qué? ¡Sí!", "£¥€¢₿", "°C ±5 µm", "¬¦¨", "㎞ ㏒", "♠♥♦♣", "𝄞", "\U0001fae8", "\ue000", "\U000f0000",
        "\ufffd", "\ufffe", "\U0010ffff", "!!!", "???", "?!", "...", "....", "--", "---", "===", "#### Title", "***bold***", "__init__", "~~~", "`code`", "```py\nx\n```",
        "<<>>", "<|", "|>", "<||>", "[x](y)", "{{{}}}", "(((", ")))", ";;", "::", "@user #tag", "a@b.c", "https://example.org/a?b=c&d=%20#e", "C:\\path\\to", "/usr/bin/env",
        "\"", "\\", "\\n", "\\\\", "a\\tb", "%d%s", "$x$", "^_^", "a_b", "snake_case_name", "camelCaseName", "SCREAMING_CASE", "kebab-case", "dot.case", "!a", " !a", "!\n", "!\r\n", "! \n",
        "!\n\nx", "..\n\n..", "a.b", "a. b", "a ,b", "word-word", "word—word", ".\t.", "\t.", " .", "  .", "\u2581", "a\u2581b", "\u2581\u2581", " \u2581 ", "Ġ", "Ġhello", "Ċ", "ĠĠ", "Ã©",
    ]  # fmt: skip
    code = [
        "def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) {\n\ta[i] = b[i];\n}\n", "if x:\n        pass\n    else:\n        y()\n", "SELECT * FROM t WHERE a='b';",
        '{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}', "<html><body><p class=\"x\">Hi</p></body></html>", "#!/bin/sh\nset -eu\n", "x = lambda *a, **k: (a, k)",
        "fn main() { println!(\"{}\", 1 << 3); }", "a[i][j] += b->c.d(&e);", "\\begin{equation}\\frac{1}{2}\\end{equation}", "- item\n  - nested\n\t- tab\n", "| a | b |\n|---|---|\n",
        "    indented\n        more\n", "\tone\n\t\ttwo\n\t\t\tthree", "}\n}\n}", "//comment\n/* block */", "a\n\n\n\nb", "x=1;y=2;", "0x7fff_ffff", "r\"\\d+\"", "f'{x!r:>10}'",
    ]  # fmt: skip
    long_runs = [
        "a" * 200, "ab" * 150, "A" * 65, "é" * 100, "漢" * 80, "🎉" * 40, "!" * 120, "-" * 80, "=" * 81, ". " * 60, "\t" * 40, "\n " * 30, " \n" * 30, "a " * 80, "\u0301" * 50, "_" * 64,
        "the " * 60, "ha" * 50, "0" * 64, "<" * 33, "'" * 40, "\r\n" * 20, "ا" * 60, "ก" * 60,
        "Pneumonoultramicroscopicsilicovolcanoconiosis", "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    ]  # fmt: skip
    special = list(SPECIAL_TEXTS)
    special += [f"a{text}b" for text in SPECIAL_TEXTS[:10]] + [f" {text} " for text in SPECIAL_TEXTS[:10]]
    special += [
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<|im_start|><|im_end|>",
        "<|im_end|><|im_end|>", "<|im_end |>", "<|im_end", "im_end|>", "<<|im_end|>>", "<|im_start|>\n\n", "\n<|im_end|>\n", "<|IM_END|>", "<bos><bos>x", "<bos> x", "<eos>\n\n\nx",
        "<0x41>", "<0x0a>", "<0xC3><0xA9>", "<unused0><unused1>", "<unused 1>", "[multimodal]", "\n<end_of_turn>\n\n", "<end_of_turn>   x", "<h1><h2></h1>", "</s><s>", "[INST] x [/INST]",
    ]  # fmt: skip
    sentences = [
        "The quick brown fox jumps over the lazy dog.", "It was the best of times, it was the worst of times...", "Don't panic! It's 42—isn't it?", "Mr. O'Neill's co-op re-opened @ 9:30 a.m.",
        "Once upon a time,\nthere was a cat.\n\nThe end.", "ALL CAPS AND lower AND MiXeD", "supercalifragilisticexpialidocious", "antidisestablishmentarianism is long", "x\ty\tz\n1\t2\t3\n",
        "Numbers like 1,000,000 and 3.5e-7 or 2^10 = 1024.", "E = mc² – Einstein’s “famous” formula", "naïve café résumé coöperate", "𝕳𝖊𝖑𝖑𝖔 Wörld 你好 مرحبا 🌍 1234!", "",
    ]  # fmt: skip
    texts = plain + contractions + digits + scripts + symbols + code + long_runs + special + sentences
    texts += random_strings(60)
    return list(dict.fromkeys(texts))


def random_strings(count: int) -> list[str]:
    """Mixtures of characters of every general category, fixed by a seed."""
    rng = random.Random(20261201)
    pools: dict[str, list[str]] = {}
    # Characters assigned before Unicode 13: tables differ in what is newer.
    for code in [*range(1, 0x3000), *range(0x3000, 0xD800, 7), *range(0xE000, 0x11000, 5), *range(0x1D400, 0x1F700, 3)]:
        category = unicodedata.category(chr(code))
        if category not in ("Cn", "Cs") and unicodedata.ucd_3_2_0.category(chr(code)) != "Cn":
            pools.setdefault(category, []).append(chr(code))
    glue = [" ", "  ", "\n", "'", "'s", "1", "22", ".", "a", "The", "\r\n", "\t", "!"]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(4, 24)):
            pool = pools[rng.choice(sorted(pools))] if rng.random() < 0.6 else glue
            parts.append(rng.choice(pool))
        texts.append("".join(parts))
    return texts


def llama_ids(tool: str, model: str, text: str, parse_special: bool) -> list[int]:
    """What llama.cpp makes of one text."""
    with tempfile.NamedTemporaryFile("wb", suffix=".txt", delete=False) as file:
        file.write(text.encode("utf-8"))
    try:
        command = [tool, "-m", model, "-f", file.name, "--ids", "--no-escape", "--log-disable"]
        if not parse_special:
            command.append("--no-parse-special")
        out = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        return json.loads(out.strip().splitlines()[-1])
    finally:
        Path(file.name).unlink()


def main() -> None:
    """Writes one file a model."""
    tool, out_dir = sys.argv[1], Path(sys.argv[2])
    texts = hard_strings()
    assert len(texts) >= 300, len(texts)
    jobs = [(text, True) for text in texts]
    jobs += [(text, False) for text in texts if any(special in text for special in SPECIAL_TEXTS)]
    for argument in sys.argv[3:]:
        name, model = argument.split("=", 1)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            ids = list(pool.map(lambda job: llama_ids(tool, model, *job), jobs))  # noqa: B023
        lines = [
            json.dumps({"text": text, "parse_special": parse, "ids": found}, ensure_ascii=True, separators=(",", ":"))
            for (text, parse), found in zip(jobs, ids, strict=True)
        ]
        body = '{"made_by":"llama-tokenize b11434","cases":[\n' + ",\n".join(lines) + "\n]}\n"
        (out_dir / f"{name}.json").write_text(body, encoding="ascii")
        print(f"{name}: {len(jobs)} cases, {len(body)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
