//! Pre-tokenization: cutting text into the pieces within which tokens are merged.
//!
//! Each splitter is a published regular expression, read by hand: a backtracking engine gives up on long runs of
//! spaces, and the pieces it then leaves out would change ids silently. The tests compare every splitter with the
//! expression itself.

use super::unicode::{LETTER, MARK, NUMBER, PUNCTUATION, SPACE, classes};

/// One pass over the pieces of the pass before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Splitter {
    /// GPT-2's expression.
    Gpt2,
    /// The expression that GPT-4 introduced, with the differences between families.
    Word {
        /// Most digits in one piece.
        digits: usize,
        /// Whether marks count as letters, and not as symbols.
        marks: bool,
    },
    /// Each number character alone.
    EachNumber,
    /// Runs of number characters alone.
    Numbers,
    /// Groups of three ASCII digits, from the left.
    ThreeDigits,
    /// Runs of punctuation (and of the symbols `$ + < = > ^ ~ |`, with `backtick` also that) alone.
    Punctuation {
        /// Whether a backtick counts.
        backtick: bool,
    },
    /// Runs of newlines alone.
    Newlines,
}

/// Cuts `text` by every splitter in turn; the pieces in order are the text.
pub(super) fn split<'t>(text: &'t str, splitters: &[Splitter]) -> Vec<&'t str> {
    let mut pieces = if text.is_empty() { Vec::new() } else { vec![text] };
    for splitter in splitters {
        let mut finer = Vec::with_capacity(pieces.len());
        for piece in pieces {
            splitter.run(piece, &mut finer);
        }
        pieces = finer;
    }
    pieces
}

impl Splitter {
    fn run<'t>(self, text: &'t str, out: &mut Vec<&'t str>) {
        let step: &dyn Fn(&str) -> usize = match self {
            Self::Gpt2 => &gpt2,
            Self::Word { digits, marks } => &move |rest: &str| word(rest, digits, marks),
            Self::EachNumber => return isolate(text, out, |c| is(c, NUMBER), 1),
            Self::Numbers => return isolate(text, out, |c| is(c, NUMBER), usize::MAX),
            Self::ThreeDigits => return three_digits(text, out),
            Self::Punctuation { backtick } => {
                let symbol = move |c: char| is(c, PUNCTUATION) || "$+<=>^~|".contains(c) || (backtick && c == '`');
                return isolate(text, out, symbol, usize::MAX);
            }
            Self::Newlines => return isolate(text, out, |c| c == '\n', usize::MAX),
        };
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(step(rest));
            out.push(piece);
            rest = tail;
        }
    }
}

fn is(c: char, class: u8) -> bool {
    classes(c) & class != 0
}

// Length of the longest prefix of `text` whose characters all pass.
fn run_length(text: &str, pass: impl Fn(char) -> bool) -> usize {
    text.find(|c| !pass(c)).unwrap_or(text.len())
}

// Runs of at most `most` characters that pass become pieces, and so does what lies between them.
fn isolate<'t>(text: &'t str, out: &mut Vec<&'t str>, pass: impl Fn(char) -> bool, most: usize) {
    let mut rest = text;
    while !rest.is_empty() {
        let mut length = run_length(rest, |c| !pass(c));
        if length == 0 {
            length = run_length(rest, &pass);
            if most == 1 {
                length = rest.chars().next().map_or(0, char::len_utf8);
            }
        }
        let (piece, tail) = rest.split_at(length);
        out.push(piece);
        rest = tail;
    }
}

fn three_digits<'t>(text: &'t str, out: &mut Vec<&'t str>) {
    let bytes = text.as_bytes();
    let (mut start, mut at) = (0, 0);
    while at + 3 <= bytes.len() {
        if bytes[at..at + 3].iter().all(u8::is_ascii_digit) {
            if start < at {
                out.push(&text[start..at]);
            }
            out.push(&text[at..at + 3]);
            at += 3;
            start = at;
        } else {
            at += 1;
        }
    }
    if start < text.len() {
        out.push(&text[start..]);
    }
}

// Length of the piece at the start of `text`, which is not empty:
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
fn gpt2(text: &str) -> usize {
    if let Some(length) = contraction(text, false) {
        return length;
    }
    let (space, body) = optional_space(text);
    for length in [
        run_length(body, |c| is(c, LETTER)),
        run_length(body, |c| is(c, NUMBER)),
        run_length(body, |c| !is(c, SPACE | LETTER | NUMBER)),
    ] {
        if length > 0 {
            return space + length;
        }
    }
    spaces(text)
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// where `marks` turns the second \p{L} into [\p{L}\p{M}] and takes \p{M} out of the symbols.
fn word(text: &str, digits: usize, marks: bool) -> usize {
    if let Some(length) = contraction(text, true) {
        return length;
    }
    let letters = if marks { LETTER | MARK } else { LETTER };
    let Some(first) = text.chars().next() else { return 0 };
    let lead = if first == '\r' || first == '\n' || is(first, LETTER | NUMBER) { 0 } else { first.len_utf8() };
    let length = run_length(&text[lead..], |c| is(c, letters));
    if length > 0 {
        return lead + length;
    }
    // A mark is a lead of nothing here, and yet a letter itself.
    if is(first, letters) {
        return run_length(text, |c| is(c, letters));
    }
    if is(first, NUMBER) {
        return text.chars().take(digits).take_while(|&c| is(c, NUMBER)).map(char::len_utf8).sum();
    }
    let (space, body) = optional_space(text);
    let symbols = run_length(body, |c| !is(c, SPACE | letters | NUMBER));
    if symbols > 0 {
        return space + symbols + run_length(&body[symbols..], |c| c == '\r' || c == '\n');
    }
    let run = run_length(text, |c| is(c, SPACE));
    match text[..run].rfind(['\r', '\n']) {
        Some(last) => last + 1,
        None => spaces(text),
    }
}

// 's|'t|'re|'ve|'m|'ll|'d. Any case means ASCII's: llama.cpp does not fold the long s either.
fn contraction(text: &str, any_case: bool) -> Option<usize> {
    let tail = text.strip_prefix('\'')?;
    for ending in ["s", "t", "re", "ve", "m", "ll", "d"] {
        let mut length = 1;
        let mut chars = tail.chars();
        let matches = ending.chars().all(|want| {
            chars.next().is_some_and(|c| {
                length += c.len_utf8();
                c == want || (any_case && c.to_ascii_lowercase() == want)
            })
        });
        if matches {
            return Some(length);
        }
    }
    None
}

fn optional_space(text: &str) -> (usize, &str) {
    match text.strip_prefix(' ') {
        Some(body) => (1, body),
        None => (0, text),
    }
}

// \s+(?!\S)|\s+: a run of spaces leaves its last one to the word that follows.
fn spaces(text: &str) -> usize {
    let run = run_length(text, |c| is(c, SPACE));
    if run == text.len() {
        return run;
    }
    let last = text[..run].chars().next_back().map_or(0, char::len_utf8);
    if run > last { run - last } else { run }
}
