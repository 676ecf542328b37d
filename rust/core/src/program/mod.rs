//! A model as data: a list of coarse operations over numbered buffers.
//!
//! An architecture turns hyperparameters into a [`Program`] once, at load; every backend runs the same program.
//! Operations are as coarse as the widest fusion, so that the CPU can fuse and candle can compose.

mod op;
mod rope;

use std::ops::Range;

use draftgauge_kernels::quant::QuantType;

pub use op::{Activation, Linear, Norm, Op, TapPoint};
pub use rope::{RopeLayout, RopeScaling, RopeSpec};

/// An activation buffer, `[rows, width]` of f32 while a batch runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Buf(pub u16);

/// A weight of the program, by its index in [`Program::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// How a weight is read, which decides whether it is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightUse {
    /// Rows are looked up by token: stays as it is in the file.
    Table,
    /// Multiplied by activations: may be packed.
    Matmul,
    /// Both, as a tied embedding is: stays mapped and may be packed beside it.
    TableAndMatmul,
    /// A vector that is read as f32: norms, biases, rope factors, sinks.
    Vector,
}

/// A weight by the name it has in the file: the whole tensor, or some rows of one that holds several matrices stacked.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightSpec {
    /// Tensor name in the GGUF file.
    pub name: String,
    /// Row of the tensor at which the weight begins.
    pub first_row: usize,
    /// Row-major shape: `[n]` for vectors, `[n, k]` for matrices (y = W x takes k to n).
    pub shape: Vec<usize>,
    /// How it is read.
    pub usage: WeightUse,
    /// Factor of every product with the matrix, before a bias: what types with a narrow range of scales carry beside them.
    pub scale: f32,
}

impl WeightSpec {
    /// Place of the weight in its tensor's data, in bytes; `None` where rows are no whole blocks of the type.
    pub fn range(&self, ty: QuantType) -> Option<Range<usize>> {
        let (&rows, rest) = self.shape.split_first()?;
        let width = rest.iter().product::<usize>();
        let start = ty.row_bytes(self.first_row.checked_mul(width)?)?;
        let len = ty.row_bytes(rows.checked_mul(width)?)?;
        Some(start..start.checked_add(len)?)
    }
}

/// What one layer keeps between batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheSpec {
    /// Keys and values of every committed position.
    Attention {
        /// Number of key and value heads.
        num_kv_heads: usize,
        /// Width of a key head.
        key_dim: usize,
        /// Width of a value head.
        value_dim: usize,
        /// Sliding window: a key at distance `window` or more is never read. `None` is full attention.
        window: Option<usize>,
    },
}

/// A model as a list of operations.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Architecture name as in `general.architecture`.
    pub architecture: String,
    /// Width of each buffer.
    pub buffers: Vec<usize>,
    /// Weights in order of their ids.
    pub weights: Vec<WeightSpec>,
    /// Rotary embeddings in use, referred to by index.
    pub ropes: Vec<RopeSpec>,
    /// Caches by layer index, as `Append` and `Attend` name them.
    pub caches: Vec<CacheSpec>,
    /// Operations in the order they run.
    pub ops: Vec<Op>,
    /// Operations that run instead when features enter: a drafter's way from features to keys and values.
    pub inject: Vec<Op>,
    /// Number of transformer layers (MTP blocks excluded).
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of tokens that can enter.
    pub vocab_size: usize,
    /// Rows of the output head: the vocabulary's size, or fewer for a drafter with a reduced vocabulary.
    pub head_size: usize,
    /// Context length the model was trained for.
    pub train_ctx: usize,
}

impl Program {
    /// The width of a buffer.
    pub fn width(&self, buf: Buf) -> usize {
        self.buffers[usize::from(buf.0)]
    }

    /// Width of the features that `inject` takes; 0 without it.
    pub fn input_width(&self) -> usize {
        match self.inject.first() {
            Some(Op::Input { out }) => self.width(*out),
            _ => 0,
        }
    }

    /// The specification of a weight.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }
}

/// Collects a program; constructors validate so that backends can trust.
#[derive(Debug, Default)]
pub struct ProgramBuilder {
    buffers: Vec<usize>,
    weights: Vec<WeightSpec>,
    ropes: Vec<RopeSpec>,
    caches: Vec<CacheSpec>,
    ops: Vec<Op>,
    inject: Vec<Op>,
    head_size: Option<usize>,
}

impl ProgramBuilder {
    /// Starts with nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a buffer of the given width.
    pub fn buffer(&mut self, width: usize) -> Buf {
        self.buffers.push(width);
        Buf(u16::try_from(self.buffers.len() - 1).expect("a program has few buffers"))
    }

    /// Adds a weight, or finds it when it was added before (a tied head becomes `TableAndMatmul`).
    pub fn weight(&mut self, name: impl Into<String>, shape: &[usize], usage: WeightUse) -> WeightId {
        self.rows(name, 0, shape, usage)
    }

    /// As [`Self::weight`], for the rows of a tensor from `first_row` on.
    pub fn rows(&mut self, name: impl Into<String>, first_row: usize, shape: &[usize], usage: WeightUse) -> WeightId {
        let name = name.into();
        if let Some(index) = self.weights.iter().position(|w| w.name == name && w.first_row == first_row) {
            let known = &mut self.weights[index];
            assert_eq!(known.shape, shape, "weight {name} is used with two shapes");
            if known.usage != usage {
                known.usage = WeightUse::TableAndMatmul;
            }
            return WeightId(index as u32);
        }
        self.weights.push(WeightSpec { name, first_row, shape: shape.to_vec(), usage, scale: 1.0 });
        WeightId((self.weights.len() - 1) as u32)
    }

    /// Sets the factor of the products with a weight.
    pub fn scale(&mut self, weight: WeightId, scale: f32) {
        self.weights[weight.0 as usize].scale = scale;
    }

    /// Adds a rotary embedding; equal ones share an index.
    pub fn rope(&mut self, rope: RopeSpec) -> usize {
        if let Some(index) = self.ropes.iter().position(|r| *r == rope) {
            return index;
        }
        self.ropes.push(rope);
        self.ropes.len() - 1
    }

    /// Adds the cache of the next layer and returns its index.
    pub fn cache(&mut self, cache: CacheSpec) -> usize {
        self.caches.push(cache);
        self.caches.len() - 1
    }

    /// Adds an operation.
    pub fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    /// Adds an operation that runs when features enter.
    pub fn inject(&mut self, op: Op) {
        self.inject.push(op);
    }

    /// Sets the rows of the output head where they are not the vocabulary.
    pub fn head_rows(&mut self, rows: usize) {
        self.head_size = Some(rows);
    }

    /// Closes the program.
    pub fn finish(
        self,
        architecture: &str,
        num_layers: usize,
        hidden_size: usize,
        vocab_size: usize,
        train_ctx: usize,
    ) -> Program {
        Program {
            architecture: architecture.to_owned(),
            buffers: self.buffers,
            weights: self.weights,
            ropes: self.ropes,
            caches: self.caches,
            ops: self.ops,
            inject: self.inject,
            num_layers,
            hidden_size,
            vocab_size,
            head_size: self.head_size.unwrap_or(vocab_size),
            train_ctx,
        }
    }
}
