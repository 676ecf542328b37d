//! The tokenizer: text to ids and back.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::bpe::{Bpe, char_to_byte};
use super::lookup::TextIndex;
use super::special::{Fragment, SpecialTokens};
use super::spm::Spm;
use super::vocabulary::{TokenKind, Vocabulary, VocabularyModel};
use crate::error::{Error, Evidence, Result};
use crate::gguf::Metadata;

/// The tokenizer that a GGUF file describes; its ids are llama.cpp's.
///
/// Making one reads no more than the keys; the tables of encoding are built when something is first encoded.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    path: Option<PathBuf>,
    encoder: OnceLock<std::result::Result<Encoder, Box<Evidence>>>,
}

struct Encoder {
    special: SpecialTokens,
    merger: Merger,
}

enum Merger {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
}

impl Tokenizer {
    /// Reads the tokenizer keys of a file.
    ///
    /// # Errors
    /// `Error::Gguf` for keys that are missing, of a wrong type or of a wrong length; `Error::Model` for a model or a
    /// pre-tokenizer that is not known here (the message lists those that are).
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        Self::with_pre(metadata, None)
    }

    /// The same, with another pre-tokenizer than `tokenizer.ggml.pre` names.
    pub fn with_pre(metadata: &Metadata, pre: Option<&str>) -> Result<Self> {
        Ok(Self {
            vocabulary: Vocabulary::from_metadata(metadata, pre)?,
            path: metadata.path().map(Path::to_path_buf),
            encoder: OnceLock::new(),
        })
    }

    /// The ids of `text`.
    ///
    /// `add_special` adds BOS and EOS where the file's flags say so. With `parse_special`, the text of a control token
    /// becomes that token; without it, it is text like any other (for text that is not to be trusted). User-defined
    /// tokens are recognized either way.
    ///
    /// # Errors
    /// `Error::Gguf` at the first call, when the vocabulary or its merges make no sense; `Error::Model` when the
    /// vocabulary cannot spell the text.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let vocabulary = &self.vocabulary;
        let encoder = self.encoder()?;
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_special && vocabulary.add_bos {
            ids.extend(vocabulary.bos);
        }
        let wanted = |id: u32| parse_special || self.kind(id) == Some(TokenKind::UserDefined);
        let mut after_special = true;
        for fragment in encoder.special.partition(&vocabulary.tokens, text, wanted) {
            let range = match fragment {
                Fragment::Token(id) => {
                    ids.push(id);
                    after_special = true;
                    continue;
                }
                Fragment::Text(range) => range,
            };
            match &encoder.merger {
                Merger::Bpe(bpe) => bpe.encode(&vocabulary.tokens, &text[range], &mut ids),
                Merger::Spm(spm) => {
                    let prefix = if vocabulary.add_space_prefix && after_special { "\u{2581}" } else { "" };
                    let text = format!("{prefix}{}", text[range].replace(' ', "\u{2581}"));
                    spm.encode(&vocabulary.tokens, &vocabulary.scores, &text, &mut ids)?;
                }
            }
            after_special = false;
        }
        if add_special && vocabulary.add_eos {
            ids.extend(vocabulary.eos);
        }
        Ok(ids)
    }

    /// The text of these ids, with U+FFFD for what is no UTF-8; `skip_special` leaves control tokens out.
    ///
    /// Where encoding puts a space before the text, one leading space is taken off again.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        let mut at_start = self.vocabulary.add_space_prefix;
        for &id in ids {
            let control = self.is_control(id);
            if control && skip_special {
                continue;
            }
            let piece = self.token_bytes(id);
            let strip = at_start && !control && piece.first() == Some(&b' ');
            bytes.extend_from_slice(&piece[usize::from(strip)..]);
            at_start &= control;
        }
        String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The bytes that a token adds to the text; none for an id beyond the vocabulary.
    ///
    /// A control token gives its own text, such as `<|im_end|>`.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let (Some(text), Some(kind)) = (self.vocabulary.tokens.get(id as usize), self.kind(id)) else {
            return Cow::Borrowed(&[]);
        };
        match kind {
            TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown => Cow::Borrowed(text),
            TokenKind::Unused => Cow::Borrowed(&[]),
            TokenKind::Byte => match hex_byte(text) {
                Some(byte) => Cow::Owned(vec![byte]),
                None => Cow::Borrowed(text),
            },
            TokenKind::Normal if self.vocabulary.model == VocabularyModel::Gpt2 => spell(text),
            TokenKind::Normal => unescape_spaces(text),
        }
    }

    /// The token's text as the file has it, if the id is in the vocabulary.
    pub fn token_text(&self, id: u32) -> Option<Cow<'_, str>> {
        self.vocabulary.tokens.get(id as usize).map(String::from_utf8_lossy)
    }

    /// The id of the token whose text in the file is `text`.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn token_id(&self, text: &str) -> Result<Option<u32>> {
        Ok(self.encoder()?.merger.index().get(&self.vocabulary.tokens, text.as_bytes()))
    }

    /// What the token is for, if the id is in the vocabulary.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.vocabulary.kinds.get(id as usize).copied()
    }

    /// Whether the token steers the model and is no text (control and unknown tokens).
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.tokens.len()
    }

    /// The algorithm.
    pub fn model(&self) -> VocabularyModel {
        self.vocabulary.model
    }

    /// The name of the pre-tokenizer in use.
    pub fn pre_tokenizer(&self) -> &str {
        &self.vocabulary.pre_name
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.eos
    }

    /// The token that ends a turn.
    pub fn eot(&self) -> Option<u32> {
        self.vocabulary.eot
    }

    /// The token that ends a message.
    pub fn eom(&self) -> Option<u32> {
        self.vocabulary.eom
    }

    /// The token for what cannot be spelled.
    pub fn unknown(&self) -> Option<u32> {
        self.vocabulary.unknown
    }

    /// The token that fills batches.
    pub fn padding(&self) -> Option<u32> {
        self.vocabulary.padding
    }

    /// The token that masks a position (`tokenizer.ggml.mask_token_id`).
    pub fn mask(&self) -> Option<u32> {
        self.vocabulary.mask
    }

    /// Every token at which generation stops, ascending.
    pub fn eog(&self) -> &[u32] {
        &self.vocabulary.end_of_generation
    }

    /// Whether generation stops at this token.
    pub fn is_eog(&self, id: u32) -> bool {
        self.vocabulary.end_of_generation.binary_search(&id).is_ok()
    }

    /// Tokens that must never be generated (`tokenizer.ggml.suppress_tokens`).
    pub fn suppressed(&self) -> &[u32] {
        &self.vocabulary.suppressed
    }

    /// Whether `add_special` adds BOS.
    pub fn add_bos(&self) -> bool {
        self.vocabulary.add_bos
    }

    /// Whether `add_special` adds EOS.
    pub fn add_eos(&self) -> bool {
        self.vocabulary.add_eos
    }

    /// What was ignored or assumed while reading the keys, one line each.
    pub fn notices(&self) -> &[String] {
        &self.vocabulary.notices
    }

    fn encoder(&self) -> Result<&Encoder> {
        let built = self.encoder.get_or_init(|| {
            self.build_encoder().map_err(|error| {
                let evidence = error.evidence().cloned().unwrap_or_else(|| Evidence::new(error.to_string()));
                Box::new(Evidence { path: self.path.clone(), ..evidence })
            })
        });
        built.as_ref().map_err(|evidence| Error::Gguf(evidence.clone()))
    }

    fn build_encoder(&self) -> Result<Encoder> {
        let vocabulary = &self.vocabulary;
        let special = (0..vocabulary.kinds.len() as u32).filter(|&id| {
            matches!(self.kind(id), Some(TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown))
        });
        let merger = match &vocabulary.merges {
            Some(merges) if vocabulary.model != VocabularyModel::Llama => {
                Merger::Bpe(Box::new(Bpe::new(&vocabulary.tokens, merges, vocabulary.pre)?))
            }
            _ => Merger::Spm(Box::new(Spm::new(&vocabulary.tokens, vocabulary.unknown)?)),
        };
        Ok(Encoder { special: SpecialTokens::new(&vocabulary.tokens, special), merger })
    }
}

impl Merger {
    fn index(&self) -> &TextIndex {
        match self {
            Self::Bpe(bpe) => bpe.index(),
            Self::Spm(spm) => spm.index(),
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("path", &self.path)
            .field("model", &self.vocabulary.model)
            .field("pre_tokenizer", &self.vocabulary.pre_name)
            .field("vocab_size", &self.vocab_size())
            .finish_non_exhaustive()
    }
}

// The byte of `<0xXX>`.
fn hex_byte(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

// GPT-2's letters back to bytes; what is no such letter stays as it is.
fn spell(text: &[u8]) -> Cow<'_, [u8]> {
    if text.is_ascii() && text.iter().all(u8::is_ascii_graphic) {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match char_to_byte(c) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes.extend_from_slice(chunk.invalid());
    }
    Cow::Owned(bytes)
}

fn unescape_spaces(text: &[u8]) -> Cow<'_, [u8]> {
    const SPACE: &[u8] = "\u{2581}".as_bytes();
    if !text.windows(SPACE.len()).any(|window| window == SPACE) {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(&byte) = rest.first() {
        match rest.strip_prefix(SPACE) {
            Some(tail) => {
                bytes.push(b' ');
                rest = tail;
            }
            None => {
                bytes.push(byte);
                rest = &rest[1..];
            }
        }
    }
    Cow::Owned(bytes)
}
