//! Operations on single values of a row, and the two largest of a row.

use crate::isa::{Isa, for_isa};
use crate::math;

/// `up *= gate * sigmoid(gate)`.
///
/// # Panics
/// When lengths differ.
pub fn silu_mul(isa: Isa, gate: &[f32], up: &mut [f32]) {
    #[inline(always)]
    fn inner(gate: &[f32], up: &mut [f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up");
        for (up, gate) in up.iter_mut().zip(gate) {
            *up *= math::silu(*gate);
        }
    }
    for_isa!(isa, inner, (gate: &[f32], up: &mut [f32]));
}

/// `up *= gelu(gate)`, the tanh form.
///
/// # Panics
/// When lengths differ.
pub fn gelu_mul(isa: Isa, gate: &[f32], up: &mut [f32]) {
    #[inline(always)]
    fn inner(gate: &[f32], up: &mut [f32]) {
        assert_eq!(gate.len(), up.len(), "gate and up");
        for (up, gate) in up.iter_mut().zip(gate) {
            *up *= math::gelu_tanh(*gate);
        }
    }
    for_isa!(isa, inner, (gate: &[f32], up: &mut [f32]));
}

/// `x *= sigmoid(gate)`.
///
/// # Panics
/// When lengths differ.
pub fn sigmoid_mul(isa: Isa, gate: &[f32], x: &mut [f32]) {
    #[inline(always)]
    fn inner(gate: &[f32], x: &mut [f32]) {
        assert_eq!(gate.len(), x.len(), "gate and values");
        for (x, gate) in x.iter_mut().zip(gate) {
            *x *= math::sigmoid(*gate);
        }
    }
    for_isa!(isa, inner, (gate: &[f32], x: &mut [f32]));
}

/// `x = cap * tanh(x * scale / cap)`, or `x * scale` without a cap.
pub fn scale_and_cap(isa: Isa, scale: f32, cap: Option<f32>, x: &mut [f32]) {
    #[inline(always)]
    fn inner(scale: f32, cap: Option<f32>, x: &mut [f32]) {
        for x in x.iter_mut() {
            *x *= scale;
        }
        if let Some(cap) = cap {
            for x in x.iter_mut() {
                *x = cap * math::tanh(*x / cap);
            }
        }
    }
    for_isa!(isa, inner, (scale: f32, cap: Option<f32>, x: &mut [f32]));
}

/// The largest of each `width` values, the last ones of fewer; NaN is passed over.
pub fn highest(isa: Isa, width: usize, x: &[f32], out: &mut [f32]) {
    #[inline(always)]
    fn inner(width: usize, x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x.chunks(width)) {
            let mut lanes = [f32::NEG_INFINITY; 8];
            let (eights, rest) = x.as_chunks::<8>();
            for eight in eights {
                for lane in 0..8 {
                    lanes[lane] = if eight[lane] > lanes[lane] { eight[lane] } else { lanes[lane] };
                }
            }
            let mut most = f32::NEG_INFINITY;
            for half in [4, 2, 1] {
                for lane in 0..half {
                    lanes[lane] = if lanes[lane + half] > lanes[lane] { lanes[lane + half] } else { lanes[lane] };
                }
            }
            for &value in rest.iter().chain(&lanes[..1]) {
                most = if value > most { value } else { most };
            }
            *out = most;
        }
    }
    for_isa!(isa, inner, (width: usize, x: &[f32], out: &mut [f32]));
}

/// The two largest of some values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Largest {
    /// Where the largest is; the lowest index where several are equal.
    pub index: usize,
    /// The largest.
    pub first: f32,
    /// The second largest, equal to the first on a tie.
    pub second: f32,
    /// Whether all were finite.
    pub finite: bool,
}

impl Largest {
    /// Of nothing.
    pub const NONE: Self = Self { index: 0, first: f32::NEG_INFINITY, second: f32::NEG_INFINITY, finite: true };

    /// Of two sets of values, the indices of `self` before those of `later`.
    #[must_use]
    pub fn merge(self, later: Self) -> Self {
        let finite = self.finite && later.finite;
        if later.first > self.first {
            Self { second: if self.first > later.second { self.first } else { later.second }, finite, ..later }
        } else {
            Self { second: if later.first > self.second { later.first } else { self.second }, finite, ..self }
        }
    }
}

/// The two largest of `x`, whose first index is `offset`.
#[must_use]
pub fn largest(isa: Isa, offset: usize, x: &[f32]) -> Largest {
    #[inline(always)]
    fn inner(offset: usize, x: &[f32]) -> Largest {
        // Most tiles hold nothing that matters: only then is a tile looked at value by value.
        let mut best = Largest::NONE;
        let (tiles, rest) = x.as_chunks::<32>();
        for (tile, values) in tiles.iter().enumerate() {
            let mut above = false;
            let mut finite = true;
            for value in values {
                above |= *value > best.second;
                finite &= value.is_finite();
            }
            best.finite &= finite;
            if above {
                scan(&mut best, offset + tile * 32, values);
            }
        }
        best.finite &= rest.iter().all(|value| value.is_finite());
        scan(&mut best, offset + tiles.len() * 32, rest);
        best
    }
    fn scan(best: &mut Largest, offset: usize, values: &[f32]) {
        for (index, &value) in values.iter().enumerate() {
            if value > best.first {
                *best = Largest { index: offset + index, first: value, second: best.first, ..*best };
            } else if value > best.second {
                best.second = value;
            }
        }
    }
    for_isa!(isa, inner, (offset: usize, x: &[f32]) -> Largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_highest_of_each_tile_is_the_same_on_every_path() {
        let x: Vec<f32> = (0..203_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 - 8e6).collect();
        for width in [1, 7, 8, 16, 50, 203] {
            let want: Vec<f32> = x.chunks(width).map(|x| x.iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect();
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; want.len()];
                highest(isa, width, &x, &mut out);
                assert_eq!(out, want, "{isa}, {width}");
            }
        }
    }

    proptest! {
        #[test]
        fn largest_agrees_with_sorting_however_it_is_cut(x in proptest::collection::vec(-5_i8..5, 2..200), cut in 0_usize..200) {
            let x: Vec<f32> = x.into_iter().map(f32::from).collect();
            let cut = cut.min(x.len());
            let mut order: Vec<usize> = (0..x.len()).collect();
            order.sort_by(|&a, &b| x[b].total_cmp(&x[a]).then(a.cmp(&b)));
            for isa in Isa::available() {
                let found = largest(isa, 0, &x[..cut]).merge(largest(isa, cut, &x[cut..]));
                prop_assert_eq!(found, Largest { index: order[0], first: x[order[0]], second: x[order[1]], finite: true });
            }
        }

        #[test]
        fn gates_give_the_same_bits(pairs in proptest::collection::vec((-30.0_f32..30.0, -9.0_f32..9.0), 1..100), cap in proptest::option::of(1.0_f32..40.0)) {
            let (gate, up): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            for (vector, exact) in [
                (silu_mul as fn(Isa, &[f32], &mut [f32]), (|x: f64| x / (1.0 + (-x).exp())) as fn(f64) -> f64),
                (gelu_mul, |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())),
            ] {
                let mut twin = up.clone();
                vector(Isa::SCALAR, &gate, &mut twin);
                for isa in Isa::available() {
                    let mut out = up.clone();
                    vector(isa, &gate, &mut out);
                    prop_assert!(out.iter().zip(&twin).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", isa);
                }
                for (index, got) in twin.iter().enumerate() {
                    let want = exact(f64::from(gate[index])) * f64::from(up[index]);
                    prop_assert!((f64::from(*got) - want).abs() <= 2e-6 * (1.0 + want.abs()), "{got} {want}");
                }
            }
            let mut twin = up.clone();
            scale_and_cap(Isa::SCALAR, 0.7, cap, &mut twin);
            for isa in Isa::available() {
                let mut out = up.clone();
                scale_and_cap(isa, 0.7, cap, &mut out);
                prop_assert!(out.iter().zip(&twin).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_told() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = vec![0.0; 70];
            x[40] = bad;
            assert!(!largest(Isa::SCALAR, 0, &x).finite);
        }
    }
}
