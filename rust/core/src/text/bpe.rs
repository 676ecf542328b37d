//! Byte-pair merging by rank, over GPT-2's byte alphabet or over plain UTF-8.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::LazyLock;

use super::lookup::TextIndex;
use super::pre::PreTokenizer;
use super::split::split;
use crate::error::{Error, Evidence, Result};
use crate::gguf::Strings;

// A symbol that no token and no merge knows.
const UNKNOWN: u32 = u32::MAX;

/// GPT-2's letter for each byte: itself where it prints, else the next free letter from U+0100.
pub(super) static BYTE_TO_CHAR: LazyLock<[char; 256]> = LazyLock::new(|| {
    let prints = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    std::array::from_fn(|byte| {
        let code = if prints(byte as u32) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).unwrap_or_default()
    })
});

/// The byte that a letter of GPT-2's alphabet stands for.
pub(super) fn char_to_byte(c: char) -> Option<u8> {
    static BYTES: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
        let mut table = [None; 0x144];
        for (byte, &c) in BYTE_TO_CHAR.iter().enumerate() {
            table[c as usize] = Some(byte as u8);
        }
        table
    });
    BYTES.get(c as usize).copied().flatten()
}

/// What encoding with merges needs: built at the first call, never for decoding.
pub(super) struct Bpe {
    pre: &'static PreTokenizer,
    index: TextIndex,
    // (left, right) -> (rank, merged). Ids from the vocabulary's size on are texts that only merges name.
    merges: HashMap<(u32, u32), (u32, u32)>,
    extra: HashMap<Vec<u8>, u32>,
    num_tokens: u32,
    byte_ids: [Option<u32>; 256],
}

impl Bpe {
    pub(super) fn new(tokens: &Strings, merges: &Strings, pre: &'static PreTokenizer) -> Result<Self> {
        let index = TextIndex::new(tokens)?;
        let byte_ids = std::array::from_fn(|byte| {
            if pre.plain_bytes {
                index.get(tokens, format!("<0x{byte:02X}>").as_bytes())
            } else {
                index.get(tokens, BYTE_TO_CHAR[byte].encode_utf8(&mut [0; 4]).as_bytes())
            }
        });
        let mut bpe = Self {
            pre,
            index,
            merges: HashMap::with_capacity(merges.len()),
            extra: HashMap::new(),
            num_tokens: tokens.len() as u32,
            byte_ids,
        };
        let mut whole = Vec::new();
        for (rank, merge) in merges.iter().enumerate() {
            // A part may itself begin with a space, so the first byte never separates.
            let Some(space) = merge.iter().skip(1).position(|&byte| byte == b' ') else {
                return Err(Error::gguf(
                    Evidence::new("merge is not two parts")
                        .key(format!("tokenizer.ggml.merges[{rank}]"))
                        .expected("two texts with a space between them")
                        .found(format!("{:?}", String::from_utf8_lossy(merge))),
                ));
            };
            let (left, right) = (&merge[..space + 1], &merge[space + 2..]);
            whole.clear();
            whole.extend_from_slice(left);
            whole.extend_from_slice(right);
            let pair = (bpe.intern(tokens, left), bpe.intern(tokens, right));
            let merged = bpe.intern(tokens, &whole);
            bpe.merges.entry(pair).or_insert((rank as u32, merged));
        }
        Ok(bpe)
    }

    fn find(&self, tokens: &Strings, text: &[u8]) -> Option<u32> {
        self.index.get(tokens, text).or_else(|| self.extra.get(text).copied())
    }

    fn intern(&mut self, tokens: &Strings, text: &[u8]) -> u32 {
        if let Some(id) = self.find(tokens, text) {
            return id;
        }
        let id = self.num_tokens + self.extra.len() as u32;
        self.extra.insert(text.to_vec(), id);
        id
    }

    pub(super) fn index(&self) -> &TextIndex {
        &self.index
    }

    /// Appends the ids of `text`, in which no special token is left.
    pub(super) fn encode(&self, tokens: &Strings, text: &str, out: &mut Vec<u32>) {
        if self.pre.plain_bytes {
            let text = text.replace(' ', "\u{2581}");
            for piece in split(&text, self.pre.splitters) {
                // A run of newlines is one token if there is one that long, whatever the merges say.
                if piece.starts_with('\n')
                    && let Some(id) = self.index.get(tokens, piece.as_bytes())
                {
                    out.push(id);
                    continue;
                }
                let symbols = piece.char_indices().map(|(start, c)| {
                    let bytes = &piece.as_bytes()[start..start + c.len_utf8()];
                    (self.find(tokens, bytes).unwrap_or(UNKNOWN), c.len_utf8())
                });
                self.merge(piece.as_bytes(), symbols, out);
            }
            return;
        }
        for piece in split(text, self.pre.splitters) {
            if self.pre.ignore_merges {
                let letters: String = piece.bytes().map(|byte| BYTE_TO_CHAR[byte as usize]).collect();
                if let Some(id) = self.index.get(tokens, letters.as_bytes()) {
                    out.push(id);
                    continue;
                }
            }
            let symbols = piece.bytes().map(|byte| match self.byte_ids[byte as usize] {
                Some(id) => (id, 1),
                None => {
                    let letter = BYTE_TO_CHAR[byte as usize];
                    (self.extra.get(letter.encode_utf8(&mut [0; 4]).as_bytes()).copied().unwrap_or(UNKNOWN), 1)
                }
            });
            self.merge(piece.as_bytes(), symbols, out);
        }
    }

    // Merges the symbols (id, bytes) of one piece: lowest rank first, leftmost first among equals.
    fn merge(&self, piece: &[u8], symbols: impl Iterator<Item = (u32, usize)>, out: &mut Vec<u32>) {
        let mut chain = Chain::new(symbols);
        let mut queue = BinaryHeap::new();
        let push = |queue: &mut BinaryHeap<_>, chain: &Chain, left: usize| {
            let Some(right) = chain.next(left) else { return };
            let pair = (chain.ids[left], chain.ids[right]);
            if let Some(&(rank, merged)) = self.merges.get(&pair) {
                queue.push(Reverse((rank, left, pair, merged)));
            }
        };
        for left in 0..chain.ids.len() {
            push(&mut queue, &chain, left);
        }
        while let Some(Reverse((_, left, pair, merged))) = queue.pop() {
            // A neighbour may have been merged away since this entry was made.
            let Some(right) = chain.next(left) else { continue };
            if chain.sizes[left] == 0 || (chain.ids[left], chain.ids[right]) != pair {
                continue;
            }
            chain.join(left, right, merged);
            if let Some(before) = chain.previous(left) {
                push(&mut queue, &chain, before);
            }
            push(&mut queue, &chain, left);
        }
        let mut start = 0;
        for (&id, &size) in chain.ids.iter().zip(&chain.sizes) {
            if size == 0 {
                continue;
            }
            let bytes = &piece[start..start + size];
            start += size;
            if id < self.num_tokens {
                out.push(id);
            } else {
                // As llama.cpp, what no token spells is left out; a whole alphabet of bytes leaves nothing out.
                out.extend(bytes.iter().filter_map(|&byte| self.byte_ids[byte as usize]));
            }
        }
    }
}

/// The symbols of a piece, linked so that merging is constant time.
struct Chain {
    ids: Vec<u32>,
    // Bytes of each symbol; 0 once it was merged into the one before it.
    sizes: Vec<usize>,
    next: Vec<usize>,
    previous: Vec<usize>,
}

impl Chain {
    fn new(symbols: impl Iterator<Item = (u32, usize)>) -> Self {
        let (ids, sizes): (Vec<_>, Vec<_>) = symbols.unzip();
        let next = (1..=ids.len()).collect();
        let previous = (0..ids.len()).map(|at| at.wrapping_sub(1)).collect();
        Self { ids, sizes, next, previous }
    }

    fn next(&self, at: usize) -> Option<usize> {
        self.next.get(at).copied().filter(|&next| next < self.ids.len())
    }

    fn previous(&self, at: usize) -> Option<usize> {
        self.previous.get(at).copied().filter(|&previous| previous < self.ids.len())
    }

    fn join(&mut self, left: usize, right: usize, merged: u32) {
        self.ids[left] = merged;
        self.sizes[left] += self.sizes[right];
        self.sizes[right] = 0;
        self.next[left] = self.next[right];
        if let Some(after) = self.next(left) {
            self.previous[after] = left;
        }
    }
}
