//! Rotary position embeddings.

use super::WeightId;
use crate::exact;

/// Which dimensions of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// Dimensions 2i and 2i + 1 (llama in GGUF).
    Adjacent,
    /// Dimensions i and i + dims / 2 (NEOX).
    Half,
}

/// A rotary embedding: pair i of position p turns by `p * frequencies[i] / factors[i]`, times `magnitude`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Which dimensions pair up.
    pub layout: RopeLayout,
    /// Rotated dimensions at the start of each head (even); the rest stays.
    pub dims: usize,
    /// Frequency of each pair in radians a position, scaling (linear, YaRN) already applied. `[dims / 2]`
    pub frequencies: Vec<f64>,
    /// Per-pair divisors, `rope_freqs.weight` of Llama 3. `[dims / 2]`
    pub factors: Option<WeightId>,
    /// Factor of the rotated values (YaRN's attention factor; 1 otherwise).
    pub magnitude: f32,
}

/// How positions past the trained context are brought back into it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Positions as they are.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Extension of the context.
        factor: f64,
    },
    /// YaRN (arXiv 2309.00071): low frequencies divided by `factor`, high ones kept, a ramp between.
    Yarn {
        /// Extension of the context.
        factor: f64,
        /// Context length before the extension.
        original_ctx: f64,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Rotations over the original context below which a frequency is divided.
        beta_slow: f64,
        /// Multiplies the attention factor `0.1 ln(factor) + 1`.
        attention_factor: f64,
    },
}

impl RopeSpec {
    /// The embedding with frequencies `base^(-2i / dims)` and the given scaling.
    pub fn new(layout: RopeLayout, dims: usize, base: f64, scaling: RopeScaling, factors: Option<WeightId>) -> Self {
        let plain = (0..dims / 2).map(|i| exact::pow(base, -2.0 * i as f64 / dims as f64));
        let (frequencies, magnitude) = match scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|f| f / factor).collect(), 1.0),
            RopeScaling::Yarn { factor, original_ctx, beta_fast, beta_slow, attention_factor } => {
                // The pair that turns `rotations` times over the original context.
                let pair = |rotations: f64| {
                    dims as f64 * exact::ln(original_ctx / (rotations * std::f64::consts::TAU))
                        / (2.0 * exact::ln(base))
                };
                let low = pair(beta_fast).floor().max(0.0);
                let high = pair(beta_slow).ceil().min(dims as f64 - 1.0);
                let frequencies = plain
                    .enumerate()
                    .map(|(i, f)| {
                        let keep = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                        f / factor * (1.0 - keep) + f * keep
                    })
                    .collect();
                let magnitude = if factor > 1.0 { 0.1 * exact::ln(factor) + 1.0 } else { 1.0 };
                (frequencies, (attention_factor * magnitude) as f32)
            }
        };
        Self { layout, dims, frequencies, factors, magnitude }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let plain = RopeSpec::new(RopeLayout::Adjacent, 8, 1e4, RopeScaling::None, None);
        let scaled = RopeSpec::new(RopeLayout::Adjacent, 8, 1e4, RopeScaling::Linear { factor: 4.0 }, None);
        for (a, b) in plain.frequencies.iter().zip(&scaled.frequencies) {
            assert_eq!(a / 4.0, *b);
        }
        assert!((plain.frequencies[1] - 0.1).abs() < 1e-15);
    }

    #[test]
    fn a25_yarn_magnitude_of_factor_32_is_one_tenth_ln_32_plus_one() {
        let scaling = RopeScaling::Yarn {
            factor: 32.0,
            original_ctx: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0,
        };
        let rope = RopeSpec::new(RopeLayout::Half, 64, 1e6, scaling, None);
        assert!((rope.magnitude - (0.1 * 32f32.ln() + 1.0)).abs() < 1e-6);
        assert_eq!(rope.frequencies[0], 1.0);
        assert!((rope.frequencies[31] / exact::pow(1e6, -62.0 / 64.0) * 32.0 - 1.0).abs() < 1e-12);
    }
}
