//! What a generation is asked for, what it tells on the way, and what it gives back.

use super::Counters;
use crate::error::{Error, Evidence, Result};
use crate::sampling::SamplingParams;

/// What a generation is asked for.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None` goes on until the model stops or the context is full, 0 only runs the prompt.
    pub max_tokens: Option<usize>,
    /// Bans the tokens that end a generation.
    pub ignore_eos: bool,
    /// Texts that end the output before them.
    pub stop: Vec<String>,
    /// Most drafts a step; the drafter's own draft length where `None`.
    pub draft_n_max: Option<usize>,
    /// Width of the draft block; the trained one where `None`.
    pub draft_block: Option<usize>,
    /// Ends a draft before the first token whose confidence is below this; 0 keeps all.
    pub draft_p_min: f32,
    /// Rows of one prompt pass; chosen by the time that a pass takes where `None`. The result does not depend on it.
    pub prefill_rows: Option<usize>,
}

impl GenerateOptions {
    pub(super) fn validate(&self) -> Result<()> {
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::argument(Evidence::new("a stop string is empty").key("stop")));
        }
        if !(0.0..1.0).contains(&self.draft_p_min) {
            return Err(Error::argument(
                Evidence::new("option out of range")
                    .key("draft_p_min")
                    .expected("0 or more and less than 1")
                    .found(self.draft_p_min),
            ));
        }
        if self.prefill_rows == Some(0) {
            return Err(Error::argument(
                Evidence::new("option out of range").key("prefill_rows").expected("1 or more").found(0),
            ));
        }
        Ok(())
    }
}

/// What one step brought.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// Text that is certain: what may still become a stop string or is half a character waits.
    pub text: &'a str,
    /// Tokens of the step, a stop token included.
    pub tokens: &'a [u32],
    /// How many of them were drafts.
    pub num_accepted: usize,
    /// How many bytes of the text came out with the accepted drafts.
    pub accepted_bytes: usize,
}

/// Whoever watches a generation. An `Error::Interrupted` from any method ends it where it stands.
pub trait Observer {
    /// `done` of `total` prompt tokens are computed; called before each prompt pass and after the last.
    fn prefill(&mut self, done: usize, total: usize) -> Result<()> {
        let _ = (done, total);
        Ok(())
    }

    /// Called before each step.
    fn pause(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called after each step.
    fn chunk(&mut self, chunk: &Chunk<'_>) -> Result<()> {
        let _ = chunk;
        Ok(())
    }
}

/// An observer that says nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or a stop string.
    Stop,
    /// As many tokens as were asked for, or a full context.
    Length,
    /// The observer interrupted.
    Interrupted,
}

impl FinishReason {
    /// As the JSON spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Whether a drafter took part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftStatus {
    /// There was none.
    None,
    /// It proposed something.
    Active,
    /// It proposed nothing at all.
    Inactive,
}

impl DraftStatus {
    /// As the JSON spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Active => "active",
            Self::Inactive => "inactive",
        }
    }
}

/// What drafting came to.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftReport {
    /// Whether a drafter took part.
    pub status: DraftStatus,
    /// Its kind.
    pub kind: Option<&'static str>,
    /// The counts.
    pub counters: Counters,
}

/// The outcome of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// The text, without the stop token or stop string.
    pub text: String,
    /// The generated tokens, a stop token included, up to the one that completed a stop string.
    pub tokens: Vec<u32>,
    /// The prompt that ran, the BOS token of an empty one included.
    pub prompt_tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// SHA-256 of the tokens.
    pub identity: String,
    /// Seconds of the prompt pass.
    pub prefill_s: f64,
    /// Seconds of everything after it.
    pub decode_s: f64,
    /// What drafting came to.
    pub draft: DraftReport,
    /// What had to be said once.
    pub notices: Vec<String>,
}
