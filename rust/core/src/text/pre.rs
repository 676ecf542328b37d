//! The pre-tokenizers that GGUF files name, under the names that llama.cpp knows.

use super::split::Splitter::{self, EachNumber, Gpt2, Newlines, Numbers, Punctuation, ThreeDigits, Word};

/// What the name of a pre-tokenizer stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreTokenizer {
    // Every name, the usual one first.
    names: &'static [&'static str],
    /// Passes over the text.
    pub(super) splitters: &'static [Splitter],
    /// Whether a whole piece found in the vocabulary wins over merging.
    pub(super) ignore_merges: bool,
    /// Whether BOS is added unless the file says otherwise.
    pub(super) add_bos: bool,
    /// Whether spaces are written as U+2581 and bytes as they are, instead of GPT-2's alphabet for bytes.
    pub(super) plain_bytes: bool,
}

const GPT2: PreTokenizer =
    PreTokenizer { names: &[], splitters: &[Gpt2], ignore_merges: false, add_bos: false, plain_bytes: false };
const LLAMA3: &[Splitter] = &[Word { digits: 3, marks: false }];
const QWEN2: &[Splitter] = &[Word { digits: 1, marks: false }];

/// Adding a pre-tokenizer is a line here, and a splitter if its expression is a new one.
static PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        splitters: LLAMA3,
        ignore_merges: true,
        add_bos: true,
        ..GPT2
    },
    PreTokenizer { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], splitters: LLAMA3, ..GPT2 },
    PreTokenizer { names: &["glm4", "glm5"], splitters: LLAMA3, ignore_merges: true, ..GPT2 },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        splitters: QWEN2,
        ..GPT2
    },
    PreTokenizer { names: &["qwen35"], splitters: &[Word { digits: 1, marks: true }], ..GPT2 },
    PreTokenizer {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        splitters: &[EachNumber, Gpt2],
        ..GPT2
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        ..GPT2
    },
    PreTokenizer { names: &["falcon"], splitters: &[Punctuation { backtick: true }, Gpt2, ThreeDigits], ..GPT2 },
    PreTokenizer { names: &["gemma4"], splitters: &[Newlines], plain_bytes: true, add_bos: true, ..GPT2 },
    PreTokenizer {
        names: &["default"],
        splitters: &[Punctuation { backtick: false }, Gpt2, Numbers, ThreeDigits],
        ..GPT2
    },
];

/// The pre-tokenizer of that name.
pub(super) fn pre_tokenizer(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|pre| pre.names.contains(&name))
}

/// Every known value of `tokenizer.ggml.pre`.
pub fn pre_tokenizer_names() -> Vec<&'static str> {
    PRE_TOKENIZERS.iter().flat_map(|pre| pre.names.iter().copied()).collect()
}
