//! The sampling options and their ranges.

use std::fmt::Display;

use crate::error::{Error, Evidence, Result};

/// How a token is chosen from a row of logits. The default is greedy.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the largest logit.
    pub temperature: f64,
    /// Keeps the k largest logits; 0 is off.
    pub top_k: usize,
    /// Keeps the shortest prefix that reaches this share of the probability; 1 is off.
    pub top_p: f64,
    /// Keeps tokens of at least this share of the largest probability; 0 is off.
    pub min_p: f64,
    /// Divides positive and multiplies other logits of tokens in the window; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from logits of tokens in the window; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted once for each occurrence in the window; 0 is off.
    pub frequency_penalty: f32,
    /// Length of the window over prompt and output; 0 is none, -1 is everything.
    pub repeat_last_n: i64,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens whose logit is -inf before everything else (`--ignore-eos`).
    pub banned: Vec<u32>,
    /// Seed of the noise.
    pub seed: u64,
    /// Number of the prompt or conversation within its run.
    pub stream: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
            logit_bias: Vec::new(),
            banned: Vec::new(),
            seed: 0,
            stream: 0,
        }
    }
}

impl SamplingParams {
    /// Checks every option.
    ///
    /// # Errors
    /// `Error::Argument` naming the first option that is out of range.
    pub fn validate(&self, vocab_size: usize) -> Result<()> {
        check("temperature", self.temperature, self.temperature.is_finite() && self.temperature >= 0.0, "0 or more")?;
        check("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p), "0 to 1")?;
        check("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "0 to 1")?;
        let repeat = self.repeat_penalty;
        check("repeat_penalty", repeat, repeat.is_finite() && repeat > 0.0, "a number above 0")?;
        check("presence_penalty", self.presence_penalty, self.presence_penalty.is_finite(), "a finite number")?;
        check("frequency_penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), "a finite number")?;
        check("repeat_last_n", self.repeat_last_n, self.repeat_last_n >= -1, "-1 or more")?;
        for &(token, bias) in &self.logit_bias {
            check("logit_bias", bias, !bias.is_nan() && bias != f32::INFINITY, "a number or -inf")?;
            check("logit_bias", token, (token as usize) < vocab_size, &format!("a token id below {vocab_size}"))?;
        }
        for &token in &self.banned {
            check("banned", token, (token as usize) < vocab_size, &format!("a token id below {vocab_size}"))?;
        }
        Ok(())
    }

    pub(super) fn has_penalties(&self) -> bool {
        self.repeat_last_n != 0
            && (self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0)
    }

    pub(super) fn edits_logits(&self) -> bool {
        !self.banned.is_empty() || !self.logit_bias.is_empty() || self.has_penalties()
    }
}

fn check(option: &str, value: impl Display, holds: bool, expected: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::argument(Evidence::new("option out of range").key(option).expected(expected).found(value)))
}
