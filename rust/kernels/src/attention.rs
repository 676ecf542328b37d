//! Attention of one row over the cache of one key and value head.
//!
//! Every sum has an order that depends on positions alone: scores add up along the head in sixteen lanes, the
//! denominator in eight lanes by position, values one position after the other. So a row's bits do not depend on where
//! its keys lie, on other rows, or on the instruction set.

use crate::float::f16s_to_f32s;
use crate::isa::{Isa, for_isa};
use crate::math;

/// Lanes along the head in which a score is summed.
const LANES: usize = 16;
/// Lanes by position in which the denominator is summed.
const POSITIONS: usize = 8;
/// Positions that are widened at a time.
const TILE: usize = 16;
/// Value channels that are summed at a time: they stay in registers.
const CHANNELS: usize = 32;

/// Stored rows of one head, `[capacity, width]`.
#[derive(Debug, Clone, Copy)]
pub enum Stored<'a> {
    /// Half precision.
    F16(&'a [u16]),
    /// Single precision.
    F32(&'a [f32]),
}

/// What a row may see, in order of position.
#[derive(Debug, Clone, Copy)]
pub struct Visible<'a> {
    /// Position of the first visible row.
    pub position: usize,
    /// First stored row.
    pub start: usize,
    /// Stored rows `start..end` are visible: committed ones, then ancestors that follow in storage.
    pub end: usize,
    /// Further ancestors and the row itself, where they lie elsewhere; their positions follow `end`.
    pub rest: &'a [u32],
}

impl Visible<'_> {
    /// Number of positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.start + self.rest.len()
    }

    /// Whether nothing is visible.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The attention of the query heads that share one key and value head.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Keys of the head.
    pub keys: Stored<'a>,
    /// Values of the head.
    pub values: Stored<'a>,
    /// Width of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Factor of the score.
    pub scale: f32,
    /// `cap * tanh(score / cap)` where set.
    pub softcap: Option<f32>,
    /// An extra logit of each query head in the denominator. `[heads]`
    pub sinks: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// Numbers of scratch that [`Self::run`] needs for `heads` query heads and `positions` visible positions.
    #[must_use]
    pub fn scratch(heads: usize, positions: usize, key_dim: usize, value_dim: usize) -> usize {
        heads * positions + TILE * key_dim.max(value_dim)
    }

    /// Attends. `q` is `[heads, key_dim]`, `out` `[heads, value_dim]`.
    ///
    /// # Panics
    /// When a buffer has not the size of its shape.
    pub fn run(&self, isa: Isa, visible: Visible<'_>, q: &[f32], out: &mut [f32], scratch: &mut [f32]) {
        let this = self;
        for_isa!(
            isa,
            attend,
            (this: &Attention<'_>, visible: Visible<'_>, q: &[f32], out: &mut [f32], scratch: &mut [f32])
        );
    }
}

impl Visible<'_> {
    /// Stored rows from position number `index` on that lie together: the first, and how many.
    #[inline(always)]
    fn tile(&self, index: usize) -> (usize, usize) {
        let straight = self.end - self.start;
        if index < straight {
            (self.start + index, TILE.min(straight - index))
        } else {
            (self.rest[index - straight] as usize, 1)
        }
    }
}

/// Stored rows as f32.
#[inline(always)]
fn widen<'a>(stored: Stored<'a>, width: usize, row: usize, rows: usize, wide: &'a mut [f32]) -> &'a [f32] {
    let range = row * width..(row + rows) * width;
    match stored {
        Stored::F32(all) => &all[range],
        Stored::F16(all) => {
            let wide = &mut wide[..rows * width];
            f16s_to_f32s(&all[range], wide);
            wide
        }
    }
}

#[inline(always)]
fn attend(a: &Attention<'_>, visible: Visible<'_>, q: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    let heads = q.len() / a.key_dim;
    assert!(q.len() == heads * a.key_dim && out.len() == heads * a.value_dim, "shapes of query and output");
    let positions = visible.len();
    let (scores, wide) = scratch.split_at_mut(heads * positions);

    // Loops instead of closures: a closure would be compiled without the instruction set of the path.
    let mut first = 0;
    while first < positions {
        let (row, rows) = visible.tile(first);
        let keys = widen(a.keys, a.key_dim, row, rows, wide);
        for (head, q) in q.chunks_exact(a.key_dim).enumerate() {
            let scores = &mut scores[head * positions + first..];
            for (score, key) in scores.iter_mut().zip(keys.chunks_exact(a.key_dim)) {
                *score = a.scale * dot(q, key);
            }
        }
        first += rows;
    }
    for head in 0..heads {
        let scores = &mut scores[head * positions..][..positions];
        if let Some(cap) = a.softcap {
            for score in scores.iter_mut() {
                *score = cap * math::tanh(*score / cap);
            }
        }
        let sink = a.sinks.map(|sinks| sinks[head]);
        softmax(scores, visible.position, sink);
    }
    out.fill(0.0);
    let mut first = 0;
    while first < positions {
        let (row, rows) = visible.tile(first);
        let values = widen(a.values, a.value_dim, row, rows, wide);
        for (head, out) in out.chunks_exact_mut(a.value_dim).enumerate() {
            weigh(&scores[head * positions + first..][..rows], values, a.value_dim, out);
        }
        first += rows;
    }
}

/// Product of two heads: lane l sums channels l, l + 16, ...; then the lanes are added in halves.
#[inline(always)]
fn dot(q: &[f32], key: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (q, q_rest) = q.as_chunks::<LANES>();
    let (key, key_rest) = key.as_chunks::<LANES>();
    for (q, key) in q.iter().zip(key) {
        for lane in 0..LANES {
            lanes[lane] = q[lane].mul_add(key[lane], lanes[lane]);
        }
    }
    for (lane, (q, key)) in q_rest.iter().zip(key_rest).enumerate() {
        lanes[lane] = q.mul_add(*key, lanes[lane]);
    }
    sum_lanes(&lanes)
}

/// Sum of sixteen lanes, halves first.
#[inline(always)]
pub(crate) fn sum_lanes(lanes: &[f32; LANES]) -> f32 {
    let mut eight = [0.0_f32; 8];
    for lane in 0..8 {
        eight[lane] = lanes[lane] + lanes[lane + 8];
    }
    sum_eight(&eight)
}

#[inline(always)]
fn sum_eight(lanes: &[f32; 8]) -> f32 {
    let four = [lanes[0] + lanes[4], lanes[1] + lanes[5], lanes[2] + lanes[6], lanes[3] + lanes[7]];
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Scores become weights that sum to one with the sink's share left out. `position` is that of the first score.
#[inline(always)]
fn softmax(scores: &mut [f32], position: usize, sink: Option<f32>) {
    // The largest does not depend on the order; NaN must not be lost on the way, so it is added below.
    let mut largest = [f32::NEG_INFINITY; POSITIONS];
    let (tiles, rest) = scores.as_chunks::<POSITIONS>();
    for tile in tiles {
        for lane in 0..POSITIONS {
            largest[lane] = if tile[lane] > largest[lane] { tile[lane] } else { largest[lane] };
        }
    }
    let mut max = sink.unwrap_or(f32::NEG_INFINITY);
    for &score in largest.iter().chain(rest) {
        max = if score > max { score } else { max };
    }
    for score in scores.iter_mut() {
        *score = math::exp(*score - max);
    }
    // Lane l sums the positions that are l modulo 8, in order.
    let mut lanes = [0.0_f32; POSITIONS];
    let head = (POSITIONS - position % POSITIONS) % POSITIONS;
    let (before, aligned) = scores.split_at(head.min(scores.len()));
    for (index, &weight) in before.iter().enumerate() {
        lanes[(position + index) % POSITIONS] += weight;
    }
    let (tiles, after) = aligned.as_chunks::<POSITIONS>();
    for tile in tiles {
        for lane in 0..POSITIONS {
            lanes[lane] += tile[lane];
        }
    }
    for (lane, &weight) in after.iter().enumerate() {
        lanes[lane] += weight;
    }
    let rest = match sink {
        Some(sink) => math::exp(sink - max),
        None => 0.0,
    };
    let total = sum_eight(&lanes) + rest;
    let factor = 1.0 / total;
    for score in scores.iter_mut() {
        *score *= factor;
    }
}

/// Adds weighted values to `out`, one position after the other.
#[inline(always)]
fn weigh(weights: &[f32], values: &[f32], width: usize, out: &mut [f32]) {
    let mut channel = 0;
    while channel + CHANNELS <= width {
        let out = out[channel..].first_chunk_mut::<CHANNELS>().expect("the channels are there");
        let mut sums = *out;
        for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
            let value = value[channel..].first_chunk::<CHANNELS>().expect("the channels are there");
            for lane in 0..CHANNELS {
                sums[lane] = weight.mul_add(value[lane], sums[lane]);
            }
        }
        *out = sums;
        channel += CHANNELS;
    }
    for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
        for (out, value) in out[channel..].iter_mut().zip(&value[channel..]) {
            *out = weight.mul_add(*value, *out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::f32_to_f16;
    use proptest::prelude::*;

    /// The definition, in f64.
    fn naive(a: &Attention<'_>, rows: &[usize], keys: &[f32], values: &[f32], q: &[f32], head: usize) -> Vec<f64> {
        let scores: Vec<f64> = rows
            .iter()
            .map(|&row| {
                let key = &keys[row * a.key_dim..][..a.key_dim];
                let score =
                    f64::from(a.scale) * q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
                a.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            })
            .collect();
        let sink = a.sinks.map(|sinks| f64::from(sinks[head]));
        let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().copied().chain(sink).map(|score| (score - max).exp()).sum();
        (0..a.value_dim)
            .map(|channel| {
                let weighted = rows
                    .iter()
                    .zip(&scores)
                    .map(|(&row, score)| (score - max).exp() * f64::from(values[row * a.value_dim + channel]));
                weighted.sum::<f64>() / total
            })
            .collect()
    }

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed | 1;
        (0..n)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state as f32 / u32::MAX as f32 * 4.0 - 2.0
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_path_gives_the_same_bits_and_the_right_values(
            seed in 1_u32..,
            heads in 1_usize..4,
            (key_dim, value_dim) in prop_oneof![Just((64, 64)), Just((8, 16)), Just((80, 40)), Just((128, 128)), Just((5, 3))],
            start in 0_usize..20,
            len in 1_usize..60,
            rest in 0_usize..4,
            softcap in proptest::option::of(1.0_f32..30.0),
            with_sinks: bool,
            half: bool,
        ) {
            let capacity = start + len + 2 * rest + 1;
            let (mut keys, mut values) = (noise(capacity * key_dim, seed), noise(capacity * value_dim, seed ^ 77));
            let (half_keys, half_values): (Vec<u16>, Vec<u16>) =
                (keys.iter().map(|&x| f32_to_f16(x)).collect(), values.iter().map(|&x| f32_to_f16(x)).collect());
            if half {
                f16s_to_f32s(&half_keys, &mut keys);
                f16s_to_f32s(&half_values, &mut values);
            }
            let q = noise(heads * key_dim, seed ^ 1234);
            let sinks = noise(heads, seed ^ 99);
            let a = Attention {
                keys: if half { Stored::F16(&half_keys) } else { Stored::F32(&keys) },
                values: if half { Stored::F16(&half_values) } else { Stored::F32(&values) },
                key_dim,
                value_dim,
                scale: 1.0 / (key_dim as f32).sqrt(),
                softcap,
                sinks: with_sinks.then_some(&sinks[..]),
            };
            // Ancestors that skip every other pending row.
            let rest: Vec<u32> = (0..rest).map(|i| (start + len + 2 * i + 1) as u32).collect();
            let visible = Visible { position: start, start, end: start + len, rest: &rest };
            let rows: Vec<usize> = (start..start + len).chain(rest.iter().map(|&row| row as usize)).collect();
            let mut scratch = vec![f32::NAN; Attention::scratch(heads, visible.len(), key_dim, value_dim)];
            let mut twin = vec![f32::NAN; heads * value_dim];
            a.run(Isa::SCALAR, visible, &q, &mut twin, &mut scratch);
            for head in 0..heads {
                let want = naive(&a, &rows, &keys, &values, &q[head * key_dim..][..key_dim], head);
                for (got, want) in twin[head * value_dim..].iter().zip(want) {
                    prop_assert!((f64::from(*got) - want).abs() < 2e-5, "{got} {want}");
                }
            }
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; heads * value_dim];
                scratch.fill(f32::NAN);
                a.run(isa, visible, &q, &mut out, &mut scratch);
                prop_assert_eq!(bits(&out), bits(&twin), "{}", isa);
                // The same rows stored one after the other, as after a commit.
                let stored = |all: &[f32], width: usize| -> Vec<f32> {
                    (0..start).chain(rows.iter().copied()).flat_map(|row| all[row * width..(row + 1) * width].to_vec()).collect()
                };
                let (moved_keys, moved_values) = (stored(&keys, key_dim), stored(&values, value_dim));
                let moved = Attention { keys: Stored::F32(&moved_keys), values: Stored::F32(&moved_values), ..a };
                let visible = Visible { position: start, start, end: start + rows.len(), rest: &[] };
                moved.run(isa, visible, &q, &mut out, &mut scratch);
                prop_assert_eq!(bits(&out), bits(&twin), "{} after a commit", isa);
            }
        }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }
}
