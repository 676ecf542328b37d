//! The operations of a program.

use std::sync::Arc;

use super::{Buf, WeightId};

/// A root-mean-square norm: `x * rsqrt(mean(x^2) + eps) * weight`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Per-channel weight; `None` leaves the channels unscaled.
    pub weight: Option<WeightId>,
    /// Added to the mean square.
    pub eps: f32,
}

/// One output of a projection: `out = W x (+ bias)`, or `out += W x (+ bias)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// Matrix `[n, k]`.
    pub weight: WeightId,
    /// Bias `[n]`, added to the product before anything else.
    pub bias: Option<WeightId>,
    /// Buffer of width n.
    pub out: Buf,
    /// Adds to `out` (the residual stream) instead of overwriting it.
    pub accumulate: bool,
}

/// The gate function of a gated MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
}

/// A point of the forward pass whose values can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TapPoint {
    /// The embedding output that enters layer 0.
    Embeddings,
    /// The residual stream after layer i, before any norm.
    Layer(usize),
    /// The residual stream after the final norm, as it enters the head.
    Final,
}

/// One coarse operation. Buffers are `[rows, width]`; every operation works row by row except `Attend`.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `out = scale * table[token]`.
    Embed {
        /// Matrix `[vocab, hidden]`.
        table: WeightId,
        /// Factor of the looked-up row (1 for llama).
        scale: f32,
        /// The residual stream.
        out: Buf,
    },
    /// Features enter: the first operation of `Program::inject`.
    Input {
        /// Receives one row of features a row.
        out: Buf,
    },
    /// A point that can be tapped; costs nothing unless asked for.
    Tap {
        /// Which point this is.
        point: TapPoint,
        /// The buffer that holds it.
        input: Buf,
    },
    /// One or several products of the same (normed) input: Q, K and V in one operation.
    Project {
        /// Input buffer of width k.
        input: Buf,
        /// Norm of the input; the input buffer itself stays unnormed.
        norm: Option<Norm>,
        /// The products.
        parts: Vec<Linear>,
    },
    /// Norm and rotary embedding of each head, in place.
    HeadNormRope {
        /// Buffer of width `num_heads * head_dim`.
        buf: Buf,
        /// Number of heads in the buffer.
        num_heads: usize,
        /// Width of a head.
        head_dim: usize,
        /// Norm over `head_dim`, before the rotation.
        norm: Option<Norm>,
        /// Index into `Program::ropes`.
        rope: Option<usize>,
    },
    /// Writes keys and values of the batch's rows to the cache, as pending rows until they are committed.
    Append {
        /// Index into `Program::caches`.
        cache: usize,
        /// Keys, `[rows, num_kv_heads * key_dim]`.
        key: Buf,
        /// Values, `[rows, num_kv_heads * value_dim]`.
        value: Buf,
    },
    /// Attention of each row over its slot's committed positions, its ancestors in the batch and itself.
    ///
    /// Keys and values are read as the cache stores them, for rows of the same batch too.
    /// `score = scale * q.k`, soft-capped where set; sums run in order of position.
    Attend {
        /// Index into `Program::caches`.
        cache: usize,
        /// Queries, `[rows, num_heads * key_dim]`; head h reads key and value head `h * num_kv_heads / num_heads`.
        query: Buf,
        /// Result, `[rows, num_heads * value_dim]`.
        out: Buf,
        /// Number of query heads.
        num_heads: usize,
        /// Factor of the score.
        scale: f32,
        /// `cap * tanh(score / cap)` where set.
        softcap: Option<f32>,
        /// Per-head extra logit in the denominator, `[num_heads]`.
        sinks: Option<WeightId>,
    },
    /// Parts the heads of a projection: each head of `input` holds a head of `first`, then one of `second`.
    Split {
        /// `[rows, num_heads * 2 * head_dim]`
        input: Buf,
        /// `[rows, num_heads * head_dim]`
        first: Buf,
        /// `[rows, num_heads * head_dim]`
        second: Buf,
        /// Width of a head of either part.
        head_dim: usize,
    },
    /// `buf *= sigmoid(gate)`: the output gate of attention.
    Gate {
        /// Buffer that changes.
        buf: Buf,
        /// Buffer of the same width.
        gate: Buf,
    },
    /// `out += down(act(gate x) * up x)` on the normed input.
    GatedMlp {
        /// The residual stream, input and output.
        stream: Buf,
        /// Norm of the input.
        norm: Norm,
        /// Matrix `[ff, hidden]` whose product goes through the activation.
        gate: Linear,
        /// Matrix `[ff, hidden]`; its `out` buffer receives `act(gate) * up`.
        up: Linear,
        /// Matrix `[hidden, ff]`.
        down: Linear,
        /// The gate function.
        activation: Activation,
    },
    /// `buf *= scale`, then `buf += add` where set.
    AddScale {
        /// Buffer that changes.
        buf: Buf,
        /// Buffer that is added.
        add: Option<Buf>,
        /// Factor.
        scale: f32,
    },
    /// Final norm and output head, for the rows that were asked for; serves [`TapPoint::Final`] for every row.
    Head {
        /// The residual stream.
        input: Buf,
        /// Final norm.
        norm: Norm,
        /// Matrix `[vocab, hidden]`.
        weight: WeightId,
        /// Bias `[vocab]`.
        bias: Option<WeightId>,
        /// Factor of the logits.
        scale: f32,
        /// `cap * tanh(logit / cap)` where set, after the factor.
        softcap: Option<f32>,
    },
    /// Adds to each requested row of logits a bias from the token before it (a vanilla Markov head, after [`Op::Head`]).
    ///
    /// The requested rows of a draft block form a chain in their order: before the first stands the block's first
    /// token, before each other the choice (the largest biased logit, lowest row on a tie) at the one before.
    Markov {
        /// Matrix `[vocab, rank]`, looked up by the previous token.
        table: WeightId,
        /// Matrix `[head_size, rank]`: `logits += scale * weight table[previous]`.
        weight: WeightId,
        /// Factor of the bias.
        scale: f32,
        /// Token of each row of the head, where the head's rows are not the vocabulary. `[head_size]`
        ids: Option<Arc<[u32]>>,
    },
}
