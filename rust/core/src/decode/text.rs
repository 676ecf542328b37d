//! Text as it comes out: whole characters only, and nothing that may still become a stop string.

use std::sync::Arc;

use crate::session::Detokenize;
use crate::text::StreamDecoder;

/// Tokens to released text.
pub(super) struct TextStream {
    detokenizer: Arc<dyn Detokenize>,
    decoder: StreamDecoder,
    stops: Vec<String>,
    // Decoded, but it may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl TextStream {
    pub fn new(detokenizer: Arc<dyn Detokenize>, stops: Vec<String>) -> Self {
        Self { detokenizer, decoder: StreamDecoder::new(false), stops, held: String::new(), stopped: false }
    }

    /// The text that a token releases, and whether it completed a stop string.
    pub fn push(&mut self, token: u32) -> (String, bool) {
        let piece = self.decoder.push_bytes(&self.detokenizer.bytes(token));
        self.release(&piece)
    }

    /// What is held back at the end; nothing after a stop string.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let rest = self.decoder.finish();
        let (mut text, stopped) = self.release(&rest);
        if !stopped {
            text.push_str(&std::mem::take(&mut self.held));
        }
        text
    }

    fn release(&mut self, piece: &str) -> (String, bool) {
        self.held.push_str(piece);
        if let Some(start) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(start);
            self.stopped = true;
            return (std::mem::take(&mut self.held), true);
        }
        let wait = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - wait);
        (std::mem::replace(&mut self.held, rest), false)
    }
}

/// Length of the longest end of `text` that is a beginning of `stop`, but not all of it.
fn overlap(text: &str, stop: &str) -> usize {
    (1..stop.len())
        .rev()
        .filter(|&len| stop.is_char_boundary(len))
        .find(|&len| text.ends_with(&stop[..len]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Bytes;
    impl Detokenize for Bytes {
        fn bytes(&self, token: u32) -> Vec<u8> {
            vec![token as u8]
        }
    }

    fn stream(stops: &[&str]) -> TextStream {
        TextStream::new(Arc::new(Bytes), stops.iter().map(|&s| s.to_owned()).collect())
    }

    #[test]
    fn a_stop_string_across_tokens_ends_the_text_before_it() {
        let mut stream = stream(&["END", "STOP"]);
        let mut text = String::new();
        let mut stopped = false;
        for byte in "a STEN STOENDx".bytes() {
            let (piece, stop) = stream.push(u32::from(byte));
            text.push_str(&piece);
            if stop {
                stopped = true;
                break;
            }
        }
        assert!(stopped);
        assert_eq!(text + &stream.finish(), "a STEN STO");
    }

    #[test]
    fn an_unfinished_stop_string_comes_out_at_the_end() {
        let mut stream = stream(&["END"]);
        let early: String = "xEN".bytes().map(|b| stream.push(u32::from(b)).0).collect();
        assert_eq!((early.as_str(), stream.finish().as_str()), ("x", "EN"));
    }

    proptest! {
        /// Whatever the borders, the text is what a search of the whole text gives, and nothing is released too early.
        #[test]
        fn text_ends_at_the_first_completed_stop(
            text in "[abé]{0,20}", stops in prop::collection::vec("[abé]{1,4}", 0..3),
        ) {
            let mut stream = stream(&stops.iter().map(String::as_str).collect::<Vec<_>>());
            let mut out = String::new();
            let mut stopped_at = None;
            for (index, byte) in text.bytes().enumerate() {
                let (piece, stop) = stream.push(u32::from(byte));
                out.push_str(&piece);
                if stop {
                    stopped_at = Some(index);
                    break;
                }
            }
            out.push_str(&stream.finish());
            // The first byte at which some stop string is complete; the earliest that is complete there begins the cut.
            let want = (0..text.len()).filter(|&end| text.is_char_boundary(end + 1)).find_map(|end| {
                let seen = &text[..=end];
                let start = stops.iter().filter_map(|stop| seen.find(stop.as_str())).min()?;
                Some((end, seen[..start].to_owned()))
            });
            match want {
                Some((end, kept)) => {
                    prop_assert_eq!(stopped_at, Some(end));
                    prop_assert_eq!(out, kept);
                }
                None => prop_assert_eq!(out, text),
            }
        }
    }
}
