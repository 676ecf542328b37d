//! From a row of logits to a token: bias, penalties, top-k, top-p, min-p, temperature, draw.
//!
//! Every operation is defined to the last bit, so that `draftgauge.reference.sampling` can say the same: bias and
//! penalties in f32; then weights `exp(l - max)` in f64, summed one after the other. The draw is Gumbel-max on
//! [`crate::noise`], so it depends on the row and on the position alone, and a verify row chooses what plain decoding
//! would have chosen there. Ties go to the larger logit first and then to the lower id, everywhere.

mod params;

pub use params::SamplingParams;

use crate::backend::Top2;
use crate::error::{Error, Evidence, Result};
use crate::exact;
use crate::noise::{self, Noise};

/// The tokens before the one that is chosen: what is committed, then the path of drafts that leads to the row.
#[derive(Debug, Clone, Copy, Default)]
pub struct History<'a> {
    /// Prompt and output so far, the anchor included.
    pub committed: &'a [u32],
    /// Drafted tokens between the anchor and the row, in order.
    pub path: &'a [u32],
}

impl History<'_> {
    /// The last `count` tokens, newest first.
    fn newest(&self, count: usize) -> impl Iterator<Item = u32> + '_ {
        self.path.iter().rev().chain(self.committed.iter().rev()).copied().take(count)
    }
}

/// What was chosen from a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// Largest raw logit of the row minus the second largest.
    pub margin: f32,
}

/// Chooses tokens by validated parameters; holds the buffers that a choice needs.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    noise: Noise,
    vocab_size: usize,
    // The row after bias and penalties, when there are any. [vocab]
    row: Vec<f32>,
    // Survivors as sortable keys: see `key_of`.
    keys: Vec<u64>,
    // Weights in order of id; zero for tokens that top-k removed. [vocab]
    weights: Vec<f64>,
    bits: Vec<u32>,
    // Tokens of the penalty window with their counts.
    counts: Vec<(u32, u32)>,
}

impl Sampler {
    /// Validates the parameters against a vocabulary.
    ///
    /// # Errors
    /// `Error::Argument` naming the option that is out of range.
    pub fn new(params: SamplingParams, vocab_size: usize) -> Result<Self> {
        params.validate(vocab_size)?;
        Ok(Self {
            noise: Noise::new(params.seed, params.stream),
            params,
            vocab_size,
            row: Vec::new(),
            keys: Vec::new(),
            weights: Vec::new(),
            bits: Vec::new(),
            counts: Vec::new(),
        })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Whether the choice is the raw row's largest logit, so that nothing but the two largest is needed.
    pub fn is_raw_argmax(&self) -> bool {
        self.params.temperature == 0.0 && !self.params.edits_logits()
    }

    /// Chooses the token that will stand at `position` (the position of the row plus one).
    ///
    /// `row` is only a name for error messages.
    ///
    /// # Errors
    /// `Error::Model` naming the row when a logit is NaN or +Inf or when no token is left;
    /// `Error::Argument` when the row does not have the vocabulary's length.
    pub fn choose(&mut self, logits: &[f32], row: usize, position: u32, history: History<'_>) -> Result<Choice> {
        let (best, margin) = self.inspect(logits, row)?;
        let edited = self.edit(logits, history);
        let token = if self.params.temperature == 0.0 {
            if edited { argmax(&self.row) } else { best }
        } else {
            let values = if edited { std::mem::take(&mut self.row) } else { Vec::new() };
            let token = match edited {
                true => self.draw(&values, argmax(&values), position),
                false => self.draw(logits, best, position),
            };
            if edited {
                self.row = values;
            }
            token
        };
        let value = if edited { self.row[argmax(&self.row) as usize] } else { logits[best as usize] };
        if value == f32::NEG_INFINITY {
            return Err(Error::model(
                Evidence::new("no token is left to choose from")
                    .key(format!("logits row {row}"))
                    .expected("at least one finite logit"),
            ));
        }
        if value == f32::INFINITY {
            return Err(Error::argument(
                Evidence::new("bias and penalties take a logit out of range").key(format!("logits row {row}")),
            ));
        }
        Ok(Choice { token, margin })
    }

    /// The unnormalised log-weights that the draw compares after noise is added: `(l - max) / temperature` for the
    /// tokens that survive, -inf for the others. `[vocab]`
    ///
    /// At temperature 0 the survivor is the argmax alone.
    ///
    /// # Errors
    /// As [`Sampler::choose`].
    pub fn log_weights(&mut self, logits: &[f32], history: History<'_>) -> Result<Vec<f64>> {
        self.inspect(logits, 0)?;
        let values = if self.edit(logits, history) { self.row.clone() } else { logits.to_vec() };
        let best = argmax(&values) as usize;
        let max = f64::from(values[best]);
        let mut out = vec![f64::NEG_INFINITY; values.len()];
        if max == f64::NEG_INFINITY {
            return Ok(out);
        }
        if self.params.temperature == 0.0 {
            out[best] = 0.0;
            return Ok(out);
        }
        let temperature = self.params.temperature;
        let scaled = |value: f32| (f64::from(value) - max) / temperature;
        match self.survivors(&values, max) {
            Some(()) => {
                for &key in &self.keys {
                    let id = id_of(key) as usize;
                    out[id] = scaled(values[id]);
                }
            }
            None => {
                let floor = self.min_p_floor();
                for (id, &value) in values.iter().enumerate() {
                    if f64::from(value) - max >= floor {
                        out[id] = scaled(value);
                    }
                }
            }
        }
        Ok(out)
    }

    /// Index of the largest raw logit and the distance to the second largest.
    fn inspect(&self, logits: &[f32], row: usize) -> Result<(u32, f32)> {
        if logits.len() != self.vocab_size {
            return Err(Error::argument(
                Evidence::new("a row of logits has the wrong length").expected(self.vocab_size).found(logits.len()),
            ));
        }
        let Top2 { token: best, first, second } = Top2::of(logits);
        // NaN compares false with everything, so it needs its own look; the sum of the row would round it away.
        if logits.iter().fold(false, |bad, value| bad | value.is_nan()) || first == f32::INFINITY {
            let id = logits.iter().position(|v| v.is_nan() || *v == f32::INFINITY).unwrap_or_default();
            return Err(Error::model(
                Evidence::new("a logit is not finite")
                    .key(format!("logits row {row}, token {id}"))
                    .expected("a finite number")
                    .found(logits[id]),
            ));
        }
        Ok((best, if second == f32::NEG_INFINITY { f32::INFINITY } else { first - second }))
    }

    /// Applies bans, bias and penalties to a copy of the row; false when there are none.
    fn edit(&mut self, logits: &[f32], history: History<'_>) -> bool {
        if !self.params.edits_logits() {
            return false;
        }
        self.row.clear();
        self.row.extend_from_slice(logits);
        for &token in &self.params.banned {
            self.row[token as usize] = f32::NEG_INFINITY;
        }
        for &(token, bias) in &self.params.logit_bias {
            self.row[token as usize] += bias;
        }
        if self.params.has_penalties() {
            self.count(history);
            let params = &self.params;
            for &(token, count) in &self.counts {
                let value = &mut self.row[token as usize];
                // Dividing a negative logit would raise it, so the repeat penalty multiplies there.
                if *value <= 0.0 {
                    *value *= params.repeat_penalty;
                } else {
                    *value /= params.repeat_penalty;
                }
                *value -= count as f32 * params.frequency_penalty + params.presence_penalty;
            }
        }
        true
    }

    /// Counts the tokens of the penalty window.
    fn count(&mut self, history: History<'_>) {
        let window = usize::try_from(self.params.repeat_last_n).unwrap_or(usize::MAX);
        self.counts.clear();
        self.counts.extend(history.newest(window).filter(|&t| (t as usize) < self.vocab_size).map(|t| (t, 1)));
        self.counts.sort_unstable();
        self.counts.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 += u32::from(same) * next.1;
            same
        });
    }

    /// The floor of `l - max` that min-p sets.
    fn min_p_floor(&self) -> f64 {
        // A hair above -inf, so that banned tokens stay out when min-p is off.
        if self.params.min_p > 0.0 { exact::ln(self.params.min_p) } else { f64::MIN }
    }

    /// Gumbel-max over the survivors; `best` is the row's argmax.
    fn draw(&mut self, values: &[f32], best: u32, position: u32) -> u32 {
        let max = f64::from(values[best as usize]);
        if max == f64::NEG_INFINITY {
            return best;
        }
        let temperature = self.params.temperature;
        let mut winner = Winner::default();
        if self.survivors(values, max).is_some() {
            for &key in &self.keys {
                let id = id_of(key);
                let scaled = (f64::from(values[id as usize]) - max) / temperature;
                winner.offer(id, scaled, self.noise.bits(position, id));
            }
        } else {
            let floor = self.min_p_floor();
            self.bits.resize(values.len(), 0);
            self.noise.fill_bits(position, &mut self.bits);
            winner.offer(best, 0.0, self.bits[best as usize]);
            for (id, (&value, &bits)) in values.iter().zip(&self.bits).enumerate() {
                let distance = f64::from(value) - max;
                if distance >= floor {
                    winner.offer(id as u32, distance / temperature, bits);
                }
            }
        }
        winner.id
    }

    /// Fills `keys` with what top-k, top-p and min-p leave, or returns `None` when only min-p can remove anything.
    fn survivors(&mut self, values: &[f32], max: f64) -> Option<()> {
        let top_k = if self.params.top_k == 0 { values.len() } else { self.params.top_k.min(values.len()) };
        let top_p = self.params.top_p < 1.0;
        if top_k == values.len() && !top_p {
            return None;
        }
        self.keys.clear();
        if top_k < values.len() {
            self.keys.extend(keys_above(values, |value| value != f32::NEG_INFINITY));
            if top_k < self.keys.len() {
                self.keys.select_nth_unstable(top_k - 1);
                self.keys.truncate(top_k);
            }
        }
        if top_p {
            self.cut_at_top_p(values, max);
        }
        let floor = self.min_p_floor();
        self.keys.retain(|&key| f64::from(values[id_of(key) as usize]) - max >= floor);
        Some(())
    }

    /// Keeps the shortest sorted prefix whose weights reach `top_p` of the total: of the keys, or without any, of all tokens.
    fn cut_at_top_p(&mut self, values: &[f32], max: f64) {
        // The total is a sum in order of id, which needs no sorting; only the prefix is ever sorted.
        self.weights.clear();
        self.weights.resize(values.len(), 0.0);
        let whole = self.keys.is_empty();
        if whole {
            for (weight, &value) in self.weights.iter_mut().zip(values) {
                *weight = weight_of(f64::from(value) - max);
            }
        } else {
            for &key in &self.keys {
                let id = id_of(key) as usize;
                self.weights[id] = weight_of(f64::from(values[id]) - max);
            }
        }
        let total = self.weights.iter().fold(0.0, |sum, weight| sum + weight);
        let enough = self.params.top_p * total;
        if whole {
            // Tokens lighter than this share of what may be cut hold less than may be cut as long as there are no more
            // of them than the share counts: so few tokens are sorted, and all of them only where that was not enough.
            for share in [1 << 8, 1 << 14] {
                let floor = exact::ln(((1.0 - self.params.top_p) * total / f64::from(share)).max(f64::MIN_POSITIVE));
                self.keys.clear();
                self.keys.extend(keys_above(values, |value| f64::from(value) - max >= floor));
                if self.keep_prefix(enough) {
                    return;
                }
            }
            self.keys.clear();
            self.keys.extend(keys_above(values, |value| value != f32::NEG_INFINITY));
        }
        self.keep_prefix(enough);
    }

    /// Cuts the keys to the shortest sorted prefix whose weights reach `enough`; false where they do not.
    fn keep_prefix(&mut self, enough: f64) -> bool {
        let (mut sorted, mut sum) = (0, 0.0);
        let mut batch = 64;
        while sorted < self.keys.len() {
            let rest = &mut self.keys[sorted..];
            let take = batch.min(rest.len());
            if take < rest.len() {
                rest.select_nth_unstable(take - 1);
            }
            rest[..take].sort_unstable();
            for (offset, &key) in rest[..take].iter().enumerate() {
                sum += self.weights[id_of(key) as usize];
                if sum >= enough {
                    self.keys.truncate(sorted + offset + 1);
                    return true;
                }
            }
            sorted += take;
            batch *= 4;
        }
        false
    }
}

/// The largest score so far, ties to the lower id.
struct Winner {
    id: u32,
    score: f64,
}

impl Default for Winner {
    fn default() -> Self {
        Self { id: u32::MAX, score: f64::NEG_INFINITY }
    }
}

impl Winner {
    #[inline]
    fn offer(&mut self, id: u32, scaled: f64, bits: u32) {
        // Two logarithms only for the few whose bound could still win.
        if scaled + noise::gumbel_bound(bits) < self.score {
            return;
        }
        let score = scaled + noise::gumbel(bits);
        if score > self.score || (score == self.score && id < self.id) {
            *self = Self { id, score };
        }
    }
}

/// `exp(x)` for `x <= 0`; what is below the smallest normal number counts as zero.
#[inline]
fn weight_of(x: f64) -> f64 {
    let weight = exact::exp(x.max(-700.0));
    if x < -700.0 { 0.0 } else { weight }
}

/// A key whose ascending order is (logit descending, id ascending).
#[inline]
fn key_of(value: f32, id: u32) -> u64 {
    let bits = (value + 0.0).to_bits(); // -0 and 0 are equal
    let ascending = bits ^ (((bits as i32) >> 31) as u32 | 0x8000_0000);
    u64::from(!ascending) << 32 | u64::from(id)
}

/// The keys of the values that a test lets pass, in order of id.
fn keys_above(values: &[f32], passes: impl Fn(f32) -> bool) -> impl Iterator<Item = u64> {
    values.iter().enumerate().filter(move |&(_, &value)| passes(value)).map(|(id, &value)| key_of(value, id as u32))
}

#[inline]
fn id_of(key: u64) -> u32 {
    key as u32
}

/// Index of the largest value, the lowest on ties. NaN never wins.
pub fn argmax(values: &[f32]) -> u32 {
    Top2::of(values).token
}

#[cfg(test)]
mod tests;
