//! Decoding token by token, without ever showing half a character.

use super::Tokenizer;

/// Turns tokens into text as they come; bytes that are not a whole character yet wait for the next token.
///
/// What has been given out, joined, is always the lossy UTF-8 reading of all bytes so far: bytes that can never become a
/// character are U+FFFD at once.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    pending: Vec<u8>,
    skip_special: bool,
}

impl StreamDecoder {
    /// A decoder that leaves out control tokens if `skip_special`.
    pub fn new(skip_special: bool) -> Self {
        Self { pending: Vec::new(), skip_special }
    }

    /// The text that these tokens complete.
    pub fn push(&mut self, tokenizer: &Tokenizer, ids: &[u32]) -> String {
        for &id in ids {
            if !(self.skip_special && tokenizer.is_control(id)) {
                self.pending.extend_from_slice(&tokenizer.token_bytes(id));
            }
        }
        self.take_whole()
    }

    /// The text that these bytes complete.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        self.take_whole()
    }

    /// What is left at the end: U+FFFD for a character that was never finished.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    fn take_whole(&mut self) -> String {
        let mut text = String::new();
        let mut taken = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            taken += chunk.valid().len();
            let broken = chunk.invalid();
            let at_end = taken + broken.len() == self.pending.len();
            if broken.is_empty() || (at_end && may_continue(broken)) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            taken += broken.len();
        }
        self.pending.drain(..taken);
        text
    }
}

// Whether more bytes could make a character of these.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
