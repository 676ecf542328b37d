//! SentencePiece-style merging: the adjacent pair whose token scores best is joined first; what no token spells becomes
//! bytes.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::lookup::TextIndex;
use crate::error::{Error, Evidence, Result};
use crate::gguf::Strings;

/// What encoding by scores needs: built at the first call, never for decoding.
pub(super) struct Spm {
    index: TextIndex,
    byte_ids: [Option<u32>; 256],
    unknown: Option<u32>,
}

struct Candidate {
    score: f32,
    left: usize,
    // Bytes that the pair had when it was found: fewer than now if one side has grown since.
    size: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    size: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

impl Spm {
    pub(super) fn new(tokens: &Strings, unknown: Option<u32>) -> Result<Self> {
        let index = TextIndex::new(tokens)?;
        let byte_ids = std::array::from_fn(|byte| {
            index.get(tokens, format!("<0x{byte:02X}>").as_bytes()).or_else(|| index.get(tokens, &[byte as u8]))
        });
        Ok(Self { index, byte_ids, unknown })
    }

    pub(super) fn index(&self) -> &TextIndex {
        &self.index
    }

    /// Appends the ids of `text`, in which no special token is left and every space is U+2581.
    ///
    /// # Errors
    /// `Error::Model` when a character is no token, its bytes are none either, and the vocabulary has no unknown token.
    pub(super) fn encode(&self, tokens: &Strings, scores: &[f32], text: &str, out: &mut Vec<u32>) -> Result<()> {
        let bytes = text.as_bytes();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(at, (start, c))| Symbol {
                start,
                size: c.len_utf8(),
                previous: at.checked_sub(1),
                next: Some(at + 1),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        let mut queue = BinaryHeap::new();
        let push = |queue: &mut BinaryHeap<Candidate>, symbols: &[Symbol], left: usize| {
            let Some(right) = symbols[left].next else { return };
            let (start, size) = (symbols[left].start, symbols[left].size + symbols[right].size);
            if let Some(id) = self.index.get(tokens, &bytes[start..start + size]) {
                // Adding zero makes -0.0 the equal of 0.0, as it is when floats are compared.
                let score = scores.get(id as usize).copied().unwrap_or(0.0) + 0.0;
                queue.push(Candidate { score, left, size });
            }
        };
        for left in 0..symbols.len() {
            push(&mut queue, &symbols, left);
        }
        while let Some(Candidate { left, size, .. }) = queue.pop() {
            let Some(right) = symbols[left].next else { continue };
            if symbols[left].size == 0 || symbols[left].size + symbols[right].size != size {
                continue;
            }
            symbols[left].size = size;
            symbols[right].size = 0;
            symbols[left].next = symbols[right].next;
            if let Some(after) = symbols[left].next {
                symbols[after].previous = Some(left);
            }
            if let Some(before) = symbols[left].previous {
                push(&mut queue, &symbols, before);
            }
            push(&mut queue, &symbols, left);
        }
        for symbol in symbols.iter().filter(|symbol| symbol.size > 0) {
            let piece = &bytes[symbol.start..symbol.start + symbol.size];
            if let Some(id) = self.index.get(tokens, piece) {
                out.push(id);
                continue;
            }
            for &byte in piece {
                match self.byte_ids[byte as usize].or(self.unknown) {
                    Some(id) => out.push(id),
                    None => {
                        return Err(Error::model(
                            Evidence::new("the vocabulary cannot spell this text")
                                .key("tokenizer.ggml.tokens")
                                .expected(format!("a token <0x{byte:02X}> or an unknown token"))
                                .found("neither"),
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}
