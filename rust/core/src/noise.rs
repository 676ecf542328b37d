//! Keyed Gumbel noise: a function of (seed, stream, absolute position, token id) and of nothing else.
//!
//! The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). The layout is
//!
//! ```text
//! key     = [seed low, seed high]
//! counter = [token id >> 2, position, stream low, stream high]
//! bits    = word (token id & 3) of the output
//! ```
//!
//! so a token has 32 bits, and one evaluation serves four neighbouring tokens. The uniform is `(bits + 0.5) / 2^32`,
//! strictly inside (0, 1), and the noise is `-ln(-ln u)` with [`exact::ln`]. `draftgauge.reference.noise` computes the
//! same bits with NumPy.

use crate::exact;

const MULTIPLIER_0: u32 = 0xD251_1F53;
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
const WEYL_0: u32 = 0x9E37_79B9;
const WEYL_1: u32 = 0xBB67_AE85;

/// Philox4x32 with ten rounds.
#[inline]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for round in 0..10 {
        if round > 0 {
            k0 = k0.wrapping_add(WEYL_0);
            k1 = k1.wrapping_add(WEYL_1);
        }
        let product_0 = u64::from(MULTIPLIER_0) * u64::from(c0);
        let product_1 = u64::from(MULTIPLIER_1) * u64::from(c2);
        (c0, c1, c2, c3) = (
            (product_1 >> 32) as u32 ^ c1 ^ k0,
            product_1 as u32,
            (product_0 >> 32) as u32 ^ c3 ^ k1,
            product_0 as u32,
        );
    }
    [c0, c1, c2, c3]
}

/// The noise of one seed and stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noise {
    seed: u64,
    stream: u64,
}

impl Noise {
    /// Noise of a seed, for the prompt or conversation number `stream` of a run.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { seed, stream }
    }

    fn words(&self, position: u32, group: u32) -> [u32; 4] {
        philox4x32_10(
            [group, position, self.stream as u32, (self.stream >> 32) as u32],
            [self.seed as u32, (self.seed >> 32) as u32],
        )
    }

    /// The 32 bits of one token at the position where it would stand.
    pub fn bits(&self, position: u32, token: u32) -> u32 {
        self.words(position, token >> 2)[(token & 3) as usize]
    }

    /// The bits of tokens `0 .. out.len()`.
    pub fn fill_bits(&self, position: u32, out: &mut [u32]) {
        for (group, four) in out.chunks_mut(4).enumerate() {
            let words = self.words(position, group as u32);
            four.copy_from_slice(&words[..four.len()]);
        }
    }

    /// The noise of one token at the position where it would stand.
    pub fn gumbel(&self, position: u32, token: u32) -> f64 {
        gumbel(self.bits(position, token))
    }
}

/// The uniform of 32 bits, strictly between 0 and 1.
#[inline]
pub fn uniform(bits: u32) -> f64 {
    (f64::from(bits) + 0.5) * (1.0 / 4_294_967_296.0)
}

/// The standard Gumbel variate of 32 bits.
pub fn gumbel(bits: u32) -> f64 {
    -exact::ln(-exact::ln(uniform(bits)))
}

/// Never below [`gumbel`] of the same bits, and costs a table look-up.
///
/// `-ln u >= 1 - u`, so the variate is at most `-ln(1 - u)`, and `1 - u` lies above the power of two under it.
#[inline]
pub fn gumbel_bound(bits: u32) -> f64 {
    BOUNDS[(!bits).leading_zeros() as usize]
}

// bound[z] = (z + 1) ln 2, a hair more to cover the rounding of the variate itself.
const BOUNDS: [f64; 33] = {
    let mut table = [0.0; 33];
    let mut zeros = 0;
    while zeros < 33 {
        table[zeros] = (zeros as f64 + 1.0) * std::f64::consts::LN_2 + 1e-9;
        zeros += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rows "philox4x32 10" of Random123's kat_vectors.
    #[test]
    fn philox_gives_the_published_vectors() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32_10([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32_10([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn extreme_bits_stay_finite() {
        for bits in [0, 1, u32::MAX - 1, u32::MAX, 1 << 31, (1 << 31) - 1] {
            let value = gumbel(bits);
            assert!(value.is_finite() && value.abs() < 23.0, "{bits}: {value}");
            assert!(value <= gumbel_bound(bits));
        }
    }

    #[test]
    fn bits_in_bulk_are_the_bits_one_by_one() {
        let noise = Noise::new(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
        let mut bulk = vec![0; 1023];
        noise.fill_bits(77, &mut bulk);
        for (token, &bits) in bulk.iter().enumerate() {
            assert_eq!(bits, noise.bits(77, token as u32));
        }
    }

    /// Frequencies of 1e5 Gumbel-max draws against the softmax they must follow, over positions, streams and seeds.
    #[test]
    fn draws_follow_the_softmax() {
        let weights = [0.5_f64, 0.2, 0.15, 0.1, 0.04, 0.01];
        let draws = 100_000_u32;
        type KeyOf = fn(u32) -> (u64, u64, u32);
        let walks: [KeyOf; 3] = [|i| (7, 0, i), |i| (7, u64::from(i), 3), |i| (u64::from(i) << 20, 1, 5)];
        for walk in walks {
            let mut counts = [0_u32; 6];
            for draw in 0..draws {
                let (seed, stream, position) = walk(draw);
                let noise = Noise::new(seed, stream);
                let mut best = (f64::NEG_INFINITY, 0);
                for (token, weight) in weights.iter().enumerate() {
                    let score = weight.ln() + noise.gumbel(position, token as u32);
                    if score > best.0 {
                        best = (score, token);
                    }
                }
                counts[best.1] += 1;
            }
            let chi_square: f64 = counts
                .iter()
                .zip(weights)
                .map(|(&count, weight)| {
                    let expected = weight * f64::from(draws);
                    (f64::from(count) - expected).powi(2) / expected
                })
                .sum();
            // The 1e-6 quantile of chi-square with 5 degrees of freedom is 35.9.
            assert!(chi_square < 35.9, "{chi_square} {counts:?}");
        }
    }

    /// The high and the low byte of the noise are uniform over tokens of one position.
    #[test]
    fn bytes_are_uniform_over_tokens() {
        let mut bits = vec![0; 100_000];
        Noise::new(1, 2).fill_bits(3, &mut bits);
        for shift in [0, 8, 16, 24] {
            let mut counts = [0_u32; 256];
            bits.iter().for_each(|word| counts[(word >> shift) as usize & 255] += 1);
            let expected = 100_000.0 / 256.0;
            let chi_square: f64 = counts.iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
            // 255 degrees of freedom: mean 255, deviation 22.6; six deviations either side.
            assert!((120.0..390.0).contains(&chi_square), "{shift}: {chi_square}");
        }
    }

    proptest! {
        #[test]
        fn bound_holds(bits: u32) {
            prop_assert!(gumbel(bits) <= gumbel_bound(bits));
        }

        #[test]
        fn gumbel_agrees_with_libm(bits: u32) {
            let want = -(-uniform(bits).ln()).ln();
            prop_assert!((gumbel(bits) - want).abs() <= 1e-14 * want.abs().max(1.0));
        }
    }
}
