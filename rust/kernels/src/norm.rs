//! Root-mean-square norm of a row.

use crate::attention::sum_lanes;
use crate::isa::{Isa, for_isa};

/// `out = x * rsqrt(mean(x^2) + eps) * weight`. Returns whether every input was finite.
///
/// # Panics
/// When lengths differ.
pub fn rms_norm(isa: Isa, x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) -> bool {
    for_isa!(isa, norm_row, (x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) -> bool)
}

#[inline(always)]
fn norm_row(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) -> bool {
    assert_eq!(x.len(), out.len(), "shape of the norm's output");
    let mut lanes = [0.0_f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for lane in 0..16 {
            lanes[lane] = chunk[lane].mul_add(chunk[lane], lanes[lane]);
        }
    }
    for (lane, x) in rest.iter().enumerate() {
        lanes[lane] = x.mul_add(*x, lanes[lane]);
    }
    let sum = sum_lanes(&lanes);
    let factor = 1.0 / (sum / x.len() as f32 + eps).sqrt();
    match weight {
        Some(weight) => {
            assert_eq!(x.len(), weight.len(), "shape of the norm's weight");
            for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                *out = x * factor * weight;
            }
        }
        None => {
            for (out, x) in out.iter_mut().zip(x) {
                *out = x * factor;
            }
        }
    }
    // Squares overflow where a value is infinite or near the end of the range: both are beyond any model.
    sum.is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_path_gives_the_same_bits(x in proptest::collection::vec(-1e3_f32..1e3, 1..300), weighted: bool) {
            let weight: Vec<f32> = x.iter().map(|x| x.abs() * 0.01 + 0.5).collect();
            let weight = weighted.then_some(&weight[..]);
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
            let mut twin = vec![0.0; x.len()];
            prop_assert!(rms_norm(Isa::SCALAR, &x, weight, 1e-5, &mut twin));
            for (index, got) in twin.iter().enumerate() {
                let want = f64::from(x[index]) / (mean + 1e-5).sqrt() * weight.map_or(1.0, |w| f64::from(w[index]));
                prop_assert!((f64::from(*got) - want).abs() <= 1e-5 * want.abs() + 1e-7);
            }
            for isa in Isa::available() {
                let mut out = vec![0.0; x.len()];
                rms_norm(isa, &x, weight, 1e-5, &mut out);
                prop_assert!(out.iter().zip(&twin).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", isa);
            }
        }
    }

    #[test]
    fn a_value_that_is_not_finite_is_told() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 40];
            x[33] = bad;
            for isa in Isa::available() {
                assert!(!rms_norm(isa, &x, None, 1e-5, &mut [0.0; 40]));
            }
        }
    }
}
