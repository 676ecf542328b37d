//! Rotary position embeddings.

use super::WeightId;

/// Which dimensions of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayout {
    /// Dimensions 2i and 2i + 1 (llama in GGUF).
    Adjacent,
    /// Dimensions i and i + dims / 2 (NEOX).
    Half,
}

/// A rotary embedding: pair i of position p turns by `p * frequencies[i] / factor_i`, and the result is multiplied by `magnitude`.
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
