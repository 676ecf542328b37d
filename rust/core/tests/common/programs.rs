//! Small models of random weights, for tests of backends.

use draftgauge_core::backend::{Backend, Bytes, CacheType, Engine, Loaded, StateOptions, WeightSource};
use draftgauge_core::program::{
    Activation, Buf, CacheSpec, Linear, Norm, Op, Program, ProgramBuilder, RopeLayout, RopeScaling, RopeSpec, TapPoint,
    WeightUse,
};
use draftgauge_kernels::quant::{self, QuantType};
use std::sync::Arc;

/// The shape of a small model.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub seed: u64,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ff: usize,
    pub vocab: usize,
    pub ty: QuantType,
    pub head_ty: QuantType,
    pub layout: RopeLayout,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    pub sinks: bool,
    pub biases: bool,
    pub head_norms: bool,
    pub tied: bool,
    pub activation: Activation,
}

impl Shape {
    /// Grouped-query attention over Q4_1 weights, as the real model has.
    pub fn plain() -> Self {
        Self {
            seed: 1,
            layers: 3,
            heads: 6,
            kv_heads: 2,
            head_dim: 32,
            ff: 160,
            vocab: 203,
            ty: QuantType::Q4_1,
            head_ty: QuantType::Q8_0,
            layout: RopeLayout::Adjacent,
            window: None,
            softcap: None,
            sinks: false,
            biases: false,
            head_norms: false,
            tied: true,
            activation: Activation::Silu,
        }
    }

    /// Models that together have every feature of a program.
    pub fn all() -> Vec<Self> {
        let plain = Self::plain();
        vec![
            plain,
            Self {
                seed: 2,
                heads: 3,
                kv_heads: 3,
                ty: QuantType::Q8_0,
                layout: RopeLayout::Half,
                biases: true,
                tied: false,
                ..plain
            },
            Self {
                seed: 3,
                heads: 4,
                kv_heads: 1,
                head_dim: 64,
                ty: QuantType::Q4K,
                head_ty: QuantType::Q6K,
                ff: 256,
                window: Some(5),
                head_norms: true,
                ..plain
            },
            Self {
                seed: 4,
                layers: 2,
                ty: QuantType::F16,
                head_ty: QuantType::F32,
                softcap: Some(20.0),
                sinks: true,
                head_dim: 24,
                ..plain
            },
            Self {
                seed: 5,
                ty: QuantType::Q5_0,
                head_ty: QuantType::Q4_0,
                activation: Activation::GeluTanh,
                window: Some(16),
                sinks: true,
                ..plain
            },
            Self { seed: 6, ty: QuantType::IQ4NL, head_ty: QuantType::BF16, tied: false, ..plain },
        ]
    }
}

/// Numbers that look random and are the same everywhere.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1_u32 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }
}

/// A program and its weights.
pub struct Model {
    pub program: Program,
    pub sources: Vec<WeightSource>,
}

impl Model {
    pub fn new(shape: Shape) -> Self {
        let program = program(&shape);
        let mut noise = Noise::new(shape.seed);
        let sources = program
            .weights
            .iter()
            .map(|spec| {
                let vector = spec.shape.len() == 1;
                let ty = match spec.usage {
                    _ if vector => QuantType::F32,
                    WeightUse::Matmul if spec.name != "head" => shape.ty,
                    _ => shape.head_ty,
                };
                let k = *spec.shape.last().unwrap();
                // Rows that the type's blocks do not divide stay in half precision, as in real files.
                let ty = if ty.row_bytes(k).is_none() { QuantType::F16 } else { ty };
                let scale = if vector { 0.2 } else { 1.7 / (k as f32).sqrt() };
                let center = if spec.name.ends_with("norm") { 1.0 } else { 0.0 };
                let values: Vec<f32> =
                    (0..spec.shape.iter().product()).map(|_| center + scale * noise.unit()).collect();
                WeightSource {
                    ty,
                    shape: spec.shape.clone(),
                    data: Bytes::from_vec(encode(ty, &values, k, &mut noise)),
                }
            })
            .collect();
        Self { program, sources }
    }

    pub fn load<B: Backend>(&self, backend: B) -> Arc<dyn Engine> {
        let weights = self
            .program
            .weights
            .iter()
            .zip(&self.sources)
            .map(|(spec, source)| Arc::new(backend.weight(spec, source.clone()).unwrap()))
            .collect();
        let backend = Arc::new(backend);
        let plan = backend.plan(self.program.clone(), weights).unwrap();
        Arc::new(Loaded::new(backend, plan))
    }
}

/// Bytes of some values in a type; types that cannot be encoded get random blocks with scales that are not wild.
fn encode(ty: QuantType, values: &[f32], k: usize, noise: &mut Noise) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..ty.row_bytes(values.len()).unwrap()).map(|_| noise.bits() as u8).collect();
    if quant::quantize(ty, values, k, None, &mut bytes).is_ok() {
        return bytes;
    }
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        // IQ4_NL begins with its scale: f16 between 2^-9 and 2^-8.
        block[1] = 0x18;
    }
    bytes
}

fn program(shape: &Shape) -> Program {
    let hidden = 64;
    let mut b = ProgramBuilder::new();
    let b = &mut b;
    let stream = b.buffer(hidden);
    let (query, key, value) = (
        b.buffer(shape.heads * shape.head_dim),
        b.buffer(shape.kv_heads * shape.head_dim),
        b.buffer(shape.kv_heads * shape.head_dim),
    );
    let attended = b.buffer(shape.heads * shape.head_dim);
    let (gate_out, up_out) = (b.buffer(shape.ff), b.buffer(shape.ff));
    let table = b.weight("embedding", &[shape.vocab, hidden], WeightUse::Table);
    let rope = b.rope(RopeSpec::new(shape.layout, shape.head_dim / 2, 1e4, RopeScaling::None, None));
    b.op(Op::Embed { table, scale: 1.0, out: stream });
    b.op(Op::Tap { point: TapPoint::Embeddings, input: stream });
    for layer in 0..shape.layers {
        let linear = |b: &mut ProgramBuilder, name: &str, n: usize, k: usize, out: Buf, accumulate: bool| Linear {
            weight: b.weight(format!("{layer}.{name}"), &[n, k], WeightUse::Matmul),
            bias: shape.biases.then(|| b.weight(format!("{layer}.{name}.bias"), &[n], WeightUse::Vector)),
            out,
            accumulate,
        };
        let norm = |b: &mut ProgramBuilder, name: &str, width: usize| Norm {
            weight: Some(b.weight(format!("{layer}.{name}_norm"), &[width], WeightUse::Vector)),
            eps: 1e-5,
        };
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let parts = vec![
            linear(b, "q", q, hidden, query, false),
            linear(b, "k", kv, hidden, key, false),
            linear(b, "v", kv, hidden, value, false),
        ];
        let attn_norm = norm(b, "attn", hidden);
        b.op(Op::Project { input: stream, norm: Some(attn_norm), parts });
        for (buf, num_heads) in [(query, shape.heads), (key, shape.kv_heads)] {
            let norm = shape.head_norms.then(|| norm(b, "head", shape.head_dim));
            b.op(Op::HeadNormRope { buf, num_heads, head_dim: shape.head_dim, norm, rope: Some(rope) });
        }
        let window = if layer % 2 == 0 { shape.window } else { None };
        let cache = b.cache(CacheSpec::Attention {
            num_kv_heads: shape.kv_heads,
            key_dim: shape.head_dim,
            value_dim: shape.head_dim,
            window,
        });
        let sinks = shape.sinks.then(|| b.weight(format!("{layer}.sinks"), &[shape.heads], WeightUse::Vector));
        b.op(Op::Append { cache, key, value });
        let scale = 1.0 / (shape.head_dim as f32).sqrt();
        b.op(Op::Attend { cache, query, out: attended, num_heads: shape.heads, scale, softcap: shape.softcap, sinks });
        let output = linear(b, "o", hidden, q, stream, true);
        b.op(Op::Project { input: attended, norm: None, parts: vec![output] });
        let gate = linear(b, "gate", shape.ff, hidden, gate_out, false);
        let up = linear(b, "up", shape.ff, hidden, up_out, false);
        let down = linear(b, "down", hidden, shape.ff, stream, true);
        let ffn_norm = norm(b, "ffn", hidden);
        b.op(Op::GatedMlp { stream, norm: ffn_norm, gate, up, down, activation: shape.activation });
        if layer == 1 {
            b.op(Op::AddScale { buf: stream, add: None, scale: 0.75 });
        }
        b.op(Op::Tap { point: TapPoint::Layer(layer), input: stream });
    }
    let name = if shape.tied { "embedding" } else { "head" };
    let weight = b.weight(name, &[shape.vocab, hidden], WeightUse::Matmul);
    let norm = Norm { weight: Some(b.weight("final_norm", &[hidden], WeightUse::Vector)), eps: 1e-5 };
    let softcap = shape.softcap;
    b.op(Op::Head { input: stream, norm, weight, bias: None, scale: 1.0, softcap });
    std::mem::take(b).finish("test", shape.layers, hidden, shape.vocab, 4096)
}

/// A state of f16 or f32 caches.
pub fn options(ty: CacheType, slots: usize) -> StateOptions {
    StateOptions { ctx: 2048, slots, key: ty, value: ty }
}
