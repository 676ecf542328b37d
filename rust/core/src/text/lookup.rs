//! From a token's text to its id, without a copy of any text.

use std::hash::{BuildHasher, RandomState};

use crate::error::{Error, Evidence, Result};
use crate::gguf::Strings;

const EMPTY: u32 = u32::MAX;

/// A hash table of ids over the strings of a vocabulary: open addressing, seeded so that no file can aim at it.
pub(super) struct TextIndex {
    hasher: RandomState,
    // (upper half of the hash, id); a power of two of them, at most half full.
    slots: Vec<(u32, u32)>,
}

impl TextIndex {
    /// Indexes every text.
    ///
    /// # Errors
    /// `Error::Gguf` when two tokens have the same text: ids would depend on the order of loading.
    pub(super) fn new(texts: &Strings) -> Result<Self> {
        let mut index =
            Self { hasher: RandomState::new(), slots: vec![(0, EMPTY); (texts.len() * 2).next_power_of_two().max(2)] };
        for (id, text) in texts.iter().enumerate() {
            // llama.cpp names an empty token by its id, so several of them are no clash.
            if text.is_empty() {
                continue;
            }
            let (slot, tag, found) = index.probe(texts, text);
            if let Some(earlier) = found {
                return Err(Error::gguf(
                    Evidence::new("two tokens have the same text")
                        .key(format!("tokenizer.ggml.tokens[{id}]"))
                        .expected(format!("a text unlike that of token {earlier}"))
                        .found(format!("{:?}", String::from_utf8_lossy(text))),
                ));
            }
            index.slots[slot] = (tag, id as u32);
        }
        Ok(index)
    }

    /// The id of the token with this text.
    pub(super) fn get(&self, texts: &Strings, text: &[u8]) -> Option<u32> {
        if text.is_empty() {
            return None;
        }
        self.probe(texts, text).2
    }

    // The slot where `text` is or would be, its tag, and the id if it is there.
    fn probe(&self, texts: &Strings, text: &[u8]) -> (usize, u32, Option<u32>) {
        let hash = self.hasher.hash_one(text);
        let (mask, tag) = (self.slots.len() - 1, (hash >> 32) as u32);
        let mut slot = hash as usize & mask;
        loop {
            let (found, id) = self.slots[slot];
            if id == EMPTY {
                return (slot, tag, None);
            }
            if found == tag && texts.get(id as usize) == Some(text) {
                return (slot, tag, Some(id));
            }
            slot = (slot + 1) & mask;
        }
    }
}
