//! The vocabulary of a GGUF file: texts, kinds, special tokens and the flags that steer encoding.

use std::collections::BTreeSet;

use super::pre::{PreTokenizer, pre_tokenizer, pre_tokenizer_names};
use crate::error::{Error, Evidence, Result};
use crate::gguf::{Metadata, Strings};

/// The algorithm that `tokenizer.ggml.model` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabularyModel {
    /// `gpt2`: byte-level merging by rank.
    Gpt2,
    /// `gemma4`: merging by rank over plain UTF-8, bytes as `<0xXX>`.
    Gemma4,
    /// `llama`: SentencePiece-style merging by score, bytes as `<0xXX>`.
    Llama,
}

/// What a token is for: `tokenizer.ggml.token_type`, corrected where a token's text says more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for what the vocabulary cannot spell.
    Unknown,
    /// Steers the model and is no text.
    Control,
    /// Text that is never split.
    UserDefined,
    /// Never produced.
    Unused,
    /// One byte.
    Byte,
}

impl TokenKind {
    fn from_type(value: i32) -> Self {
        match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            6 => Self::Byte,
            // As llama.cpp, an undefined type is a token without text.
            _ => Self::Unused,
        }
    }
}

/// Everything about the tokens but the tables that encoding builds.
pub(super) struct Vocabulary {
    pub(super) model: VocabularyModel,
    pub(super) pre: &'static PreTokenizer,
    pub(super) pre_name: String,
    pub(super) tokens: Strings,
    pub(super) kinds: Vec<TokenKind>,
    pub(super) scores: Vec<f32>,
    pub(super) merges: Option<Strings>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eot: Option<u32>,
    pub(super) eom: Option<u32>,
    pub(super) unknown: Option<u32>,
    pub(super) padding: Option<u32>,
    pub(super) mask: Option<u32>,
    /// Ascending.
    pub(super) end_of_generation: Vec<u32>,
    pub(super) suppressed: Vec<u32>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    pub(super) add_space_prefix: bool,
    pub(super) notices: Vec<String>,
}

const EOT_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const EOM_TEXTS: &[&str] = &["<|eom_id|>"];
const FIM_PAD_TEXTS: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPO_TEXTS: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEPARATOR_TEXTS: &[&str] = &["<|file_sep|>"];
// Texts that infilling models use and that llama.cpp turns into control tokens; none of them ends generation.
const FIM_OTHER_TEXTS: &[&[&str]] = &[
    &[
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
    &[
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
    &[
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
];
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
// Control tokens by type, yet always part of the text.
const SHOWN_TEXTS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl Vocabulary {
    /// Reads the tokenizer keys of a file. `pre` replaces `tokenizer.ggml.pre`.
    pub(super) fn from_metadata(metadata: &Metadata, pre: Option<&str>) -> Result<Self> {
        let mut notices = Vec::new();
        let key = "tokenizer.ggml.model";
        let model = match metadata.required_str(key)? {
            "gpt2" => VocabularyModel::Gpt2,
            "gemma4" => VocabularyModel::Gemma4,
            "llama" => VocabularyModel::Llama,
            other => {
                return Err(Error::model(
                    metadata
                        .evidence("this tokenizer model is not supported", key)
                        .expected("gpt2, gemma4 or llama")
                        .found(other),
                ));
            }
        };
        let (pre, pre_name) = choose_pre(metadata, model, pre, &mut notices)?;
        let tokens = metadata
            .strings("tokenizer.ggml.tokens")?
            .ok_or_else(|| metadata.missing("tokenizer.ggml.tokens", "array of string"))?
            .clone();
        if u32::try_from(tokens.len()).is_err() || tokens.is_empty() {
            return Err(Error::gguf(
                metadata
                    .evidence("vocabulary has an impossible size", "tokenizer.ggml.tokens")
                    .expected("between 1 and 2^32 - 1 tokens")
                    .found(tokens.len()),
            ));
        }
        let kinds = match metadata.i32_array("tokenizer.ggml.token_type")? {
            Some(types) => {
                long_enough(metadata, "tokenizer.ggml.token_type", types.len(), tokens.len())?;
                types[..tokens.len()].iter().map(|&value| TokenKind::from_type(value)).collect()
            }
            None => vec![TokenKind::Normal; tokens.len()],
        };
        let scores = match metadata.f32_array("tokenizer.ggml.scores") {
            Ok(Some(scores)) => {
                long_enough(metadata, "tokenizer.ggml.scores", scores.len(), tokens.len())?;
                if model == VocabularyModel::Llama { scores[..tokens.len()].to_vec() } else { Vec::new() }
            }
            Ok(None) => Vec::new(),
            // Some converters write whole numbers.
            Err(error) => match metadata.i32_array("tokenizer.ggml.scores") {
                Ok(Some(scores)) => {
                    long_enough(metadata, "tokenizer.ggml.scores", scores.len(), tokens.len())?;
                    scores.iter().map(|&score| score as f32).collect()
                }
                _ => return Err(error),
            },
        };
        let merges = metadata.strings("tokenizer.ggml.merges")?.cloned();
        if merges.is_none() && model != VocabularyModel::Llama {
            return Err(metadata.missing("tokenizer.ggml.merges", "array of string"));
        }
        let sentence_piece = model == VocabularyModel::Llama;
        let mut vocabulary = Self {
            model,
            pre,
            pre_name,
            kinds,
            scores,
            merges,
            bos: sentence_piece.then_some(1),
            eos: sentence_piece.then_some(2),
            eot: None,
            eom: None,
            unknown: sentence_piece.then_some(0),
            padding: None,
            mask: None,
            end_of_generation: Vec::new(),
            suppressed: Vec::new(),
            add_bos: sentence_piece || pre.add_bos,
            add_eos: false,
            add_space_prefix: sentence_piece,
            notices,
            tokens,
        };
        vocabulary.read_special(metadata)?;
        Ok(vocabulary)
    }

    fn read_special(&mut self, metadata: &Metadata) -> Result<()> {
        let size = self.tokens.len() as u32;
        let mut special = |key: &str, default: Option<u32>| -> Result<Option<u32>> {
            let default = default.filter(|&id| id < size);
            let key = format!("tokenizer.ggml.{key}_token_id");
            Ok(match metadata.u32(&key)? {
                Some(id) if id < size => Some(id),
                Some(id) => {
                    self.notices.push(format!("{key} is {id}, beyond the {size} tokens: ignored"));
                    default
                }
                None => default,
            })
        };
        self.bos = special("bos", self.bos)?;
        self.eos = special("eos", self.eos)?;
        self.eot = special("eot", None)?;
        self.eom = special("eom", None)?;
        self.unknown = special("unknown", self.unknown)?;
        self.padding = special("padding", None)?;
        self.mask = special("mask", None)?;
        let fim_pad = special("fim_pad", None)?;
        let fim_repo = special("fim_rep", None)?;
        let fim_separator = special("fim_sep", None)?;

        self.add_bos = metadata.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(self.add_bos);
        self.add_eos = metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(self.add_eos);
        self.add_space_prefix = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(self.add_space_prefix);
        if self.model == VocabularyModel::Gemma4 && !self.add_bos {
            self.notices.push("tokenizer.ggml.add_bos_token is false: Gemma 4 needs BOS, so it is added".into());
            self.add_bos = true;
        }
        for (add, id, flag, key) in
            [(self.add_bos, self.bos, "add_bos_token", "bos"), (self.add_eos, self.eos, "add_eos_token", "eos")]
        {
            if add && id.is_none() {
                return Err(Error::gguf(
                    metadata
                        .evidence("a token to be added is not named", &format!("tokenizer.ggml.{key}_token_id"))
                        .expected(format!("an id, because {flag} is on"))
                        .found("nothing"),
                ));
            }
        }
        // Ids out of range name no token; llama.cpp drops them as well.
        if let Some(ids) = metadata.i32_array("tokenizer.ggml.suppress_tokens")? {
            self.suppressed = ids.iter().filter_map(|&id| u32::try_from(id).ok()).filter(|&id| id < size).collect();
        }
        self.find_by_text([fim_pad, fim_repo, fim_separator]);
        Ok(())
    }

    // Finds the special tokens that no key names, and the set that ends generation, by their texts.
    fn find_by_text(&mut self, fim: [Option<u32>; 3]) {
        // Few texts look special, and only those are compared with the lists.
        let candidates: Vec<(u32, String)> = (0..self.tokens.len() as u32)
            .filter_map(|id| {
                let text = self.tokens.get(id as usize)?;
                let first = *text.first()?;
                let last = *text.last()?;
                let special = matches!(first, b'<' | b'[' | b'_' | 0xe2) && matches!(last, b'>' | b']' | b'[');
                (special && text.len() <= 32).then(|| (id, String::from_utf8_lossy(text).into_owned()))
            })
            .collect();
        let find = |texts: &[&str]| {
            texts.iter().find_map(|want| candidates.iter().find(|(_, text)| text == want).map(|&(id, _)| id))
        };
        let mut controls = Vec::new();
        let mut or_by_text =
            |id: Option<u32>, texts: &[&str]| id.or_else(|| find(texts).inspect(|&id| controls.push(id)));
        self.eot = or_by_text(self.eot, EOT_TEXTS);
        self.eom = or_by_text(self.eom, EOM_TEXTS);
        for texts in FIM_OTHER_TEXTS {
            or_by_text(None, texts);
        }
        let lists = [FIM_PAD_TEXTS, FIM_REPO_TEXTS, FIM_SEPARATOR_TEXTS];
        let mut ends: BTreeSet<u32> =
            fim.into_iter().zip(lists).filter_map(|(id, texts)| or_by_text(id, texts)).collect();
        for (id, text) in &candidates {
            if END_TEXTS.contains(&text.as_str()) {
                ends.insert(*id);
                controls.push(*id);
            }
        }
        for id in controls {
            self.kinds[id as usize] = TokenKind::Control;
        }
        for (id, text) in &candidates {
            if SHOWN_TEXTS.contains(&text.as_str()) {
                self.kinds[*id as usize] = TokenKind::UserDefined;
            }
        }
        ends.extend([self.eos, self.eot, self.eom].into_iter().flatten());

        // Where a vocabulary has dedicated tokens for the end, `<|end|>` closes a message and `</s>` is ordinary text.
        let ending =
            |want: &str| candidates.iter().find(|(id, text)| text == want && ends.contains(id)).map(|&(id, _)| id);
        let calls = ending("<|call|>").or(ending("<|calls|>"));
        let message_end = ending("<|end|>")
            .filter(|_| calls.is_some() && (ending("<|return|>").is_some() || ending("<|flush|>").is_some()));
        let plain = ending("</s>").filter(|_| ending("<|tool_response>").is_some());
        if let Some(id) = message_end {
            ends.remove(&id);
            self.kinds[id as usize] = TokenKind::UserDefined;
        }
        if let Some(id) = plain {
            ends.remove(&id);
            self.kinds[id as usize] = TokenKind::Normal;
        }
        self.end_of_generation = ends.into_iter().collect();
    }
}

// `tokenizer.ggml.pre`, or what takes its place.
fn choose_pre(
    metadata: &Metadata,
    model: VocabularyModel,
    wanted: Option<&str>,
    notices: &mut Vec<String>,
) -> Result<(&'static PreTokenizer, String)> {
    let key = "tokenizer.ggml.pre";
    let named = metadata.str(key)?;
    let name = match model {
        // The model's name decides; llama.cpp reads no other value there.
        VocabularyModel::Gemma4 => "gemma4",
        VocabularyModel::Llama => "default",
        VocabularyModel::Gpt2 => wanted.or(named).unwrap_or(""),
    };
    let Some(pre) = pre_tokenizer(name).filter(|_| !name.is_empty()) else {
        let what = if name.is_empty() { "the pre-tokenizer is not named" } else { "this pre-tokenizer is not known" };
        let names = pre_tokenizer_names().join(", ");
        return Err(Error::model(
            metadata
                .evidence(what, key)
                .expected(format!("one of {names} (--override-kv {key}=str:NAME chooses)"))
                .found(if name.is_empty() { "nothing" } else { name }),
        ));
    };
    if model == VocabularyModel::Gpt2 && name == "default" {
        notices.push(format!("{key} is \"default\": text may be cut unlike in training, and quality suffer"));
    }
    Ok((pre, name.to_string()))
}

fn long_enough(metadata: &Metadata, key: &str, found: usize, tokens: usize) -> Result<()> {
    if found < tokens {
        return Err(Error::gguf(
            Evidence { key: Some(key.into()), ..metadata.evidence("vocabulary arrays differ in length", key) }
                .expected(format!("{tokens} elements or more"))
                .found(found),
        ));
    }
    Ok(())
}
