//! The character classes that pre-tokenizer patterns name, one table look-up a character.

use std::sync::LazyLock;

/// `\p{L}`.
pub(super) const LETTER: u8 = 1;
/// `\p{M}`.
pub(super) const MARK: u8 = 2;
/// `\p{N}`.
pub(super) const NUMBER: u8 = 4;
/// `\p{P}`.
pub(super) const PUNCTUATION: u8 = 8;
/// `\s`.
pub(super) const SPACE: u8 = 16;

static CLASSES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut table = vec![0u8; char::MAX as usize + 1];
    // `\s` is the property White_Space here as in the patterns, so U+001C to U+001F are no spaces.
    for (pattern, bit) in
        [(r"\p{L}", LETTER), (r"\p{M}", MARK), (r"\p{N}", NUMBER), (r"\p{P}", PUNCTUATION), (r"\s", SPACE)]
    {
        let class = regex_syntax::parse(pattern).expect("a pattern of this table");
        let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) = class.kind() else {
            unreachable!("a single class parses as a Unicode class")
        };
        for range in class.ranges() {
            for entry in &mut table[range.start() as usize..=range.end() as usize] {
                *entry |= bit;
            }
        }
    }
    table
});

/// The classes of a character, as bits.
pub(super) fn classes(c: char) -> u8 {
    CLASSES[c as usize]
}
