//! Rotary position embedding of the heads of a row.

use crate::isa::{Isa, for_isa};
use crate::math;

/// Writes cosine and sine of `position * frequency / factor` for each pair, times `magnitude`. `table` is `[2, pairs]`.
///
/// Angles and their functions are f64, rounded once: they are exact far out and the same on every machine.
pub fn table(position: u32, frequencies: &[f64], factors: Option<&[f32]>, magnitude: f32, table: &mut [f32]) {
    let (cos, sin) = table.split_at_mut(frequencies.len());
    for (pair, frequency) in frequencies.iter().enumerate() {
        let angle = f64::from(position) * frequency / factors.map_or(1.0, |factors| f64::from(factors[pair]));
        let (s, c) = math::sin_cos(angle);
        cos[pair] = c as f32 * magnitude;
        sin[pair] = s as f32 * magnitude;
    }
}

/// Rotates the first `table.len()` channels of each head of `x` in place; pairs are neighbours, or half the rotated width apart.
///
/// # Panics
/// When the rotated width exceeds the head.
pub fn rotate(isa: Isa, x: &mut [f32], head_dim: usize, adjacent: bool, table: &[f32]) {
    for_isa!(isa, rotate_heads, (x: &mut [f32], head_dim: usize, adjacent: bool, table: &[f32]));
}

#[inline(always)]
fn rotate_heads(x: &mut [f32], head_dim: usize, adjacent: bool, table: &[f32]) {
    let pairs = table.len() / 2;
    let (cos, sin) = table.split_at(pairs);
    for head in x.chunks_exact_mut(head_dim) {
        if adjacent {
            let (rotated, _) = head[..2 * pairs].as_chunks_mut::<2>();
            for ((pair, cos), sin) in rotated.iter_mut().zip(cos).zip(sin) {
                let [a, b] = *pair;
                *pair = [a * cos - b * sin, a * sin + b * cos];
            }
        } else {
            let (first, second) = head[..2 * pairs].split_at_mut(pairs);
            for (((first, second), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                let (a, b) = (*first, *second);
                *first = a * cos - b * sin;
                *second = a * sin + b * cos;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_path_gives_the_same_bits_and_turns_by_the_angle(
            position in 0_u32..100_000, pairs in 1_usize..40, spare in 0_usize..5, heads in 1_usize..4, adjacent: bool,
        ) {
            let head_dim = 2 * pairs + spare;
            let frequencies: Vec<f64> = (0..pairs).map(|i| 1e4_f64.powf(-(i as f64) / pairs as f64)).collect();
            let x: Vec<f32> = (0..heads * head_dim).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
            let mut cos_sin = vec![0.0; 2 * pairs];
            table(position, &frequencies, None, 1.0, &mut cos_sin);
            let mut twin = x.clone();
            rotate(Isa::SCALAR, &mut twin, head_dim, adjacent, &cos_sin);
            for isa in Isa::available() {
                let mut out = x.clone();
                rotate(isa, &mut out, head_dim, adjacent, &cos_sin);
                prop_assert!(out.iter().zip(&twin).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
            for head in 0..heads {
                for (pair, frequency) in frequencies.iter().enumerate() {
                    let (i, j) = if adjacent { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
                    let (a, b) = (f64::from(x[head * head_dim + i]), f64::from(x[head * head_dim + j]));
                    let (sin, cos) = (f64::from(position) * frequency).sin_cos();
                    prop_assert!((f64::from(twin[head * head_dim + i]) - (a * cos - b * sin)).abs() < 1e-5);
                    prop_assert!((f64::from(twin[head * head_dim + j]) - (a * sin + b * cos)).abs() < 1e-5);
                }
                for channel in 2 * pairs..head_dim {
                    prop_assert_eq!(twin[head * head_dim + channel], x[head * head_dim + channel]);
                }
            }
        }
    }

    #[test]
    fn factors_divide_and_the_magnitude_multiplies() {
        let mut plain = [0.0; 2];
        let mut divided = [0.0; 2];
        table(3, &[0.5], None, 1.0, &mut plain);
        table(12, &[0.5], Some(&[4.0]), 2.0, &mut divided);
        assert_eq!(divided, [plain[0] * 2.0, plain[1] * 2.0]);
    }
}
