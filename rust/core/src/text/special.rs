//! Cutting special tokens out of text before anything else looks at it.

use std::ops::Range;

use crate::gguf::Strings;

/// A stretch of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fragment {
    /// Text still to be encoded.
    Text(Range<usize>),
    /// A special token that stood there.
    Token(u32),
}

/// The special tokens of a vocabulary, ready to be found.
pub(super) struct SpecialTokens {
    // Ids in byte order of their texts.
    sorted: Vec<u32>,
    // For each first byte, its stretch of `sorted`.
    by_byte: Box<[Range<u32>; 256]>,
}

impl SpecialTokens {
    pub(super) fn new(tokens: &Strings, ids: impl Iterator<Item = u32>) -> Self {
        let text = |id: u32| tokens.get(id as usize).unwrap_or_default();
        let mut sorted: Vec<u32> = ids.filter(|&id| !text(id).is_empty()).collect();
        sorted.sort_unstable_by(|&a, &b| text(a).cmp(text(b)));
        let by_byte = Box::new(std::array::from_fn(|byte| {
            let start = sorted.partition_point(|&id| (text(id)[0] as usize) < byte) as u32;
            let end = sorted.partition_point(|&id| text(id)[0] as usize <= byte) as u32;
            start..end
        }));
        Self { sorted, by_byte }
    }

    /// Cuts `text` at the tokens that `wanted` lets through: the longest token first, over the whole text, and from the
    /// left among its own occurrences. That is llama.cpp's order, and not the leftmost-longest match.
    pub(super) fn partition(&self, tokens: &Strings, text: &str, wanted: impl Fn(u32) -> bool) -> Vec<Fragment> {
        let mut fragments = if text.is_empty() { Vec::new() } else { vec![Fragment::Text(0..text.len())] };
        let mut present = self.present(tokens, text.as_bytes());
        present.retain(|&id| wanted(id));
        let length = |id: u32| tokens.get(id as usize).map_or(0, <[u8]>::len);
        present.sort_by_key(|&id| (std::cmp::Reverse(length(id)), id));
        for id in present {
            let Some(needle) = tokens.str(id as usize) else { continue };
            let mut finer = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                let Fragment::Text(range) = fragment else {
                    finer.push(fragment);
                    continue;
                };
                let mut start = range.start;
                while let Some(at) = text[start..range.end].find(needle) {
                    if at > 0 {
                        finer.push(Fragment::Text(start..start + at));
                    }
                    finer.push(Fragment::Token(id));
                    start += at + needle.len();
                }
                if start < range.end {
                    finer.push(Fragment::Text(start..range.end));
                }
            }
            fragments = finer;
        }
        fragments
    }

    // The tokens that occur anywhere, found in one walk: a vocabulary may have thousands, a text has a few.
    fn present(&self, tokens: &Strings, text: &[u8]) -> Vec<u32> {
        let mut seen = vec![false; self.sorted.len()];
        let text_of = |place: usize| tokens.get(self.sorted[place] as usize).unwrap_or_default();
        for start in 0..text.len() {
            let stretch = &self.by_byte[text[start] as usize];
            let (mut low, mut high) = (stretch.start as usize, stretch.end as usize);
            let mut depth = 1;
            // Every text between low and high agrees with the input over `depth` bytes.
            while low < high {
                if text_of(low).len() == depth {
                    seen[low] = true;
                    low += 1;
                    continue;
                }
                let Some(&byte) = text.get(start + depth) else { break };
                let window = &self.sorted[low..high];
                let at = |id: &u32| tokens.get(*id as usize).unwrap_or_default()[depth];
                let first = window.partition_point(|id| at(id) < byte);
                let last = window.partition_point(|id| at(id) <= byte);
                (low, high) = (low + first, low + last);
                depth += 1;
            }
        }
        seen.iter().zip(&self.sorted).filter_map(|(&seen, &id)| seen.then_some(id)).collect()
    }
}
