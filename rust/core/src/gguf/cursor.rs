//! A bounded reader over mapped bytes: the only way that the parser touches them.

use crate::error::Evidence;

/// What parsing a part gives: the evidence still lacks the file, and often the key.
pub(super) type Parsed<T> = Result<T, Box<Evidence>>;

/// llama.cpp reads no longer string.
const MAX_STRING: u64 = 1 << 30;

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `count` bytes; `what` names them in the error.
    pub(super) fn take(&mut self, count: u64, what: &str) -> Parsed<&'a [u8]> {
        if count > self.remaining() {
            return Err(Box::new(
                Evidence::new(format!("file ends within {what}"))
                    .expected(format!("{count} bytes at byte {}", self.at))
                    .found(format!("{} bytes", self.remaining())),
            ));
        }
        let taken = &self.bytes[self.at..self.at + count as usize];
        self.at += count as usize;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Parsed<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of things that take at least `min_bytes` each, which must have room in the rest of the file.
    pub(super) fn count(&mut self, min_bytes: u64, what: &str) -> Parsed<u64> {
        let count = self.u64(what)?;
        let room = self.remaining() / min_bytes;
        if count > room {
            return Err(Box::new(
                Evidence::new(format!("{what} exceeds the file")).expected(format!("at most {room}")).found(count),
            ));
        }
        Ok(count)
    }

    /// Length and bytes.
    pub(super) fn string(&mut self, what: &str) -> Parsed<&'a [u8]> {
        let len = self.u64(what)?;
        if len > MAX_STRING {
            return Err(Box::new(
                Evidence::new(format!("length of {what} is out of range"))
                    .expected(format!("at most {MAX_STRING} bytes"))
                    .found(len),
            ));
        }
        self.take(len, what)
    }

    /// Length and bytes of a name, which must be UTF-8.
    pub(super) fn name(&mut self, what: &str) -> Parsed<&'a str> {
        let bytes = self.string(what)?;
        std::str::from_utf8(bytes).map_err(|_| {
            Box::new(
                Evidence::new(format!("{what} is not UTF-8"))
                    .expected("UTF-8")
                    .found(preview(&String::from_utf8_lossy(bytes))),
            )
        })
    }
}

/// The first characters of a text from a file, escaped: a hostile name must not fill the terminal or move its cursor.
pub(super) fn preview(text: &str) -> String {
    const SHOWN: usize = 80;
    let mut out: String = text
        .chars()
        .take(SHOWN)
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    if text.chars().nth(SHOWN).is_some() {
        out.push('…');
    }
    out
}
