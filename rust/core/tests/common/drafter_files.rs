//! Small targets and block drafters of random weights, written as GGUF files.
//!
//! The target's layers change its stream little, so that the next token depends mostly on the last one: a drafter that
//! borrows embedding and head, or whose Markov head holds them, is sometimes right.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use draftgauge_core::backend::Backend;
use draftgauge_core::drafters::block::{BlockDrafter, BlockOptions};
use draftgauge_core::gguf::{self, Array, GgufFile, Metadata, Strings, TensorSpec, Value};
use draftgauge_core::target::{Target, TargetOptions};
use draftgauge_kernels::quant::{self, QuantType};

use super::programs::Noise;

pub const HIDDEN: usize = 64;
pub const VOCAB: usize = 300;
pub const LAYERS: usize = 5;
const MASK: u32 = 299;

/// A file in the making.
#[derive(Default)]
struct File {
    metadata: Metadata,
    tensors: Vec<(TensorSpec, Vec<u8>)>,
}

impl File {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.set(key, value);
    }

    fn tensor(&mut self, name: &str, shape: &[usize], ty: QuantType, values: &[f32]) {
        let k = *shape.last().unwrap();
        let ty = if shape.len() == 1 || ty.row_bytes(k).is_none() { QuantType::F32 } else { ty };
        let mut bytes = vec![0; ty.row_bytes(k).unwrap() * (values.len() / k)];
        quant::quantize(ty, values, k, None, &mut bytes).unwrap();
        let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        self.tensors.push((TensorSpec::new(name, ty, &shape).unwrap(), bytes));
    }

    fn matrix(&mut self, noise: &mut Noise, name: &str, shape: [usize; 2], ty: QuantType, scale: f32) {
        let scale = scale * 1.7 / (shape[1] as f32).sqrt();
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(|_| scale * noise.unit()).collect();
        self.tensor(name, &shape, ty, &values);
    }

    fn norm(&mut self, noise: &mut Noise, name: &str, width: usize) {
        let values: Vec<f32> = (0..width).map(|_| 1.0 + 0.2 * noise.unit()).collect();
        self.tensor(name, &[width], QuantType::F32, &values);
    }

    fn write(self, path: &Path) {
        let tensors = self.tensors.iter().map(|(spec, bytes)| (spec.clone(), &bytes[..]));
        gguf::write(path, &self.metadata, tensors).unwrap();
    }
}

/// The tokens: a SentencePiece vocabulary of bytes and a few words.
fn tokenizer(file: &mut File) {
    let tokens: Vec<String> = (0..VOCAB)
        .map(|id| match id {
            0 => "<unk>".to_owned(),
            1 => "<s>".to_owned(),
            2 => "</s>".to_owned(),
            3..259 => format!("<0x{:02X}>", id - 3),
            id if id as u32 == MASK => "<mask>".to_owned(),
            id => format!("w{id}"),
        })
        .collect();
    let kinds: Vec<i32> = (0..VOCAB)
        .map(|id| match id {
            0 => 2,
            1 | 2 => 3,
            3..259 => 6,
            id if id as u32 == MASK => 3,
            _ => 1,
        })
        .collect();
    file.set("tokenizer.ggml.model", "llama");
    file.set("tokenizer.ggml.tokens", tokens.iter().collect::<Strings>());
    file.set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; VOCAB])));
    file.set("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    file.set("tokenizer.ggml.bos_token_id", 1_u32);
    file.set("tokenizer.ggml.eos_token_id", 2_u32);
}

/// Writes a target: five llama layers over matrices of `ty`, its head its own.
pub fn write_target(path: &Path, seed: u64, ty: QuantType) {
    let mut file = File::default();
    let mut noise = Noise::new(seed);
    for (key, value) in [
        ("block_count", LAYERS),
        ("context_length", 4096),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 16),
    ] {
        file.set(&format!("llama.{key}"), value as u32);
    }
    file.set("general.architecture", "llama");
    file.set("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
    file.set("llama.rope.freq_base", 10_000.0_f32);
    tokenizer(&mut file);
    file.matrix(&mut noise, "token_embd.weight", [VOCAB, HIDDEN], ty, 4.0);
    file.matrix(&mut noise, "output.weight", [VOCAB, HIDDEN], ty, 3.0);
    file.norm(&mut noise, "output_norm.weight", HIDDEN);
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        file.norm(&mut noise, &name("attn_norm"), HIDDEN);
        file.norm(&mut noise, &name("ffn_norm"), HIDDEN);
        for (part, shape, scale) in [
            ("attn_q", [64, HIDDEN], 1.0),
            ("attn_k", [32, HIDDEN], 1.0),
            ("attn_v", [32, HIDDEN], 1.0),
            ("attn_output", [HIDDEN, 64], 0.12),
            ("ffn_gate", [96, HIDDEN], 1.0),
            ("ffn_up", [96, HIDDEN], 1.0),
            ("ffn_down", [HIDDEN, 96], 0.12),
        ] {
            file.matrix(&mut noise, &name(part), shape, ty, scale);
        }
    }
    file.write(path);
}

/// What a drafter's file has.
#[derive(Debug, Clone)]
pub struct Shape {
    pub seed: u64,
    pub ty: QuantType,
    pub block_size: u32,
    /// As the file counts them: inputs of layers.
    pub target_layers: Vec<u32>,
    pub markov: bool,
    pub confidence: bool,
    pub sample_from_anchor: Option<bool>,
    pub draft_vocab: Option<usize>,
    pub own_embedding: bool,
    pub own_head: bool,
    pub gated: bool,
    pub shares_keys: bool,
    pub post_norms: bool,
    pub window: Option<u32>,
    pub sinks: bool,
    pub causal: Option<bool>,
    pub gelu: bool,
    pub scales: bool,
    pub rope_dims: Option<u32>,
    pub sections: Option<Vec<i32>>,
}

impl Shape {
    /// z-lab's form: slots in place, everything borrowed.
    pub fn dflash() -> Self {
        Self {
            seed: 7,
            ty: QuantType::F32,
            block_size: 6,
            target_layers: vec![1, 3, 4],
            markov: false,
            confidence: false,
            sample_from_anchor: None,
            draft_vocab: None,
            own_embedding: false,
            own_head: false,
            gated: false,
            shares_keys: false,
            post_norms: false,
            window: None,
            sinks: false,
            causal: None,
            gelu: false,
            scales: false,
            rope_dims: None,
            sections: None,
        }
    }

    /// DSpark with a Markov head that knows the target's bigrams.
    pub fn dspark() -> Self {
        Self { seed: 8, markov: true, confidence: true, block_size: 5, ..Self::dflash() }
    }

    /// Files that together have everything that the format knows.
    pub fn all() -> Vec<(&'static str, Self)> {
        vec![
            ("dflash", Self::dflash()),
            ("dspark", Self::dspark()),
            ("quantized", Self { ty: QuantType::Q8_0, ..Self::dspark() }),
            ("half", Self { ty: QuantType::F16, target_layers: vec![0, 5], ..Self::dflash() }),
            ("bonus anchor", Self { sample_from_anchor: Some(false), ..Self::dspark() }),
            ("deepspec dflash", Self { sample_from_anchor: Some(true), ..Self::dflash() }),
            ("reduced", Self { draft_vocab: Some(120), own_head: true, ..Self::dspark() }),
            ("reduced dflash", Self { draft_vocab: Some(99), own_head: true, own_embedding: true, ..Self::dflash() }),
            ("tied", Self { own_embedding: true, ..Self::dflash() }),
            ("gated", Self { gated: true, rope_dims: Some(8), ..Self::dflash() }),
            ("gemma", Self { shares_keys: true, post_norms: true, gelu: true, scales: true, ..Self::dspark() }),
            ("windowed", Self { window: Some(7), sinks: true, ..Self::dflash() }),
            ("causal", Self { causal: Some(true), window: Some(4), ..Self::dspark() }),
            ("sections", Self { sections: Some(vec![3, 2, 2, 1]), ..Self::dflash() }),
        ]
    }
}

/// Writes a drafter of two layers for the target at `target`.
pub fn write_drafter(path: &Path, target: &Path, shape: &Shape) {
    let mut file = File::default();
    let noise = &mut Noise::new(shape.seed);
    let (heads, kv_heads, head_dim, ff, layers) = (4, 2, 16, 80, 2);
    for (key, value) in [
        ("block_count", layers),
        ("context_length", 4096),
        ("embedding_length", HIDDEN),
        ("feed_forward_length", ff),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
    ] {
        file.set(&format!("dflash.{key}"), value as u32);
    }
    file.set("general.architecture", "dflash");
    file.set("dflash.block_size", shape.block_size);
    file.set("dflash.attention.layer_norm_rms_epsilon", 1e-5_f32);
    file.set("dflash.rope.freq_base", 10_000.0_f32);
    let layers_read = shape.target_layers.iter().map(|&layer| layer as i32).collect();
    file.set("dflash.target_layers", Value::Array(Array::I32(layers_read)));
    tokenizer(&mut file);
    file.set("tokenizer.ggml.mask_token_id", MASK);
    for (key, value) in [("sample_from_anchor", shape.sample_from_anchor), ("attention.causal", shape.causal)] {
        if let Some(value) = value {
            file.set(&format!("dflash.{key}"), value);
        }
    }
    if let Some(window) = shape.window {
        file.set("dflash.attention.sliding_window", window);
        file.set("dflash.attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true, false])));
    }
    if let Some(dims) = shape.rope_dims {
        file.set("dflash.rope.dimension_count", dims);
    }
    if let Some(sections) = &shape.sections {
        file.set("dflash.rope.dimension_sections", Value::Array(Array::I32(sections.clone())));
    }
    if shape.gelu {
        file.set("dflash.hidden_activation", "gelu_pytorch_tanh");
    }
    if shape.scales {
        file.set("dflash.embedding_scale", 0.7_f32);
        file.set("dflash.attention.scale", 0.4_f32);
        file.set("dflash.attention.value_scale", 0.9_f32);
    }

    let ty = shape.ty;
    file.matrix(noise, "fc.weight", [HIDDEN, shape.target_layers.len() * HIDDEN], ty, 1.0);
    if shape.scales {
        file.tensor("fc.scale", &[1], QuantType::F32, &[1.3]);
    }
    file.norm(noise, "enc.output_norm.weight", HIDDEN);
    file.norm(noise, "output_norm.weight", HIDDEN);
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for part in ["attn_norm", "ffn_norm"] {
            file.norm(noise, &name(part), HIDDEN);
        }
        for part in ["attn_q_norm", "attn_k_norm"] {
            file.norm(noise, &name(part), head_dim);
        }
        if shape.post_norms {
            file.norm(noise, &name("post_attention_norm"), HIDDEN);
            file.norm(noise, &name("post_ffw_norm"), HIDDEN);
            file.tensor(&name("layer_output_scale"), &[1], QuantType::F32, &[0.8]);
        }
        if shape.sinks {
            let sinks: Vec<f32> = (0..heads).map(|_| noise.unit()).collect();
            file.tensor(&name("attn_sinks"), &[heads], QuantType::F32, &sinks);
        }
        let query = heads * head_dim * if shape.gated { 2 } else { 1 };
        file.matrix(noise, &name("attn_q"), [query, HIDDEN], ty, 1.0);
        file.matrix(noise, &name("attn_k"), [kv_heads * head_dim, HIDDEN], ty, 1.0);
        if !shape.shares_keys {
            file.matrix(noise, &name("attn_v"), [kv_heads * head_dim, HIDDEN], ty, 1.0);
        }
        file.matrix(noise, &name("attn_output"), [HIDDEN, heads * head_dim], ty, 0.8);
        file.matrix(noise, &name("ffn_gate"), [ff, HIDDEN], ty, 1.0);
        file.matrix(noise, &name("ffn_up"), [ff, HIDDEN], ty, 1.0);
        file.matrix(noise, &name("ffn_down"), [HIDDEN, ff], ty, 0.8);
    }

    // What the drafter knows of the target: rows of its embedding and of its head.
    let model = GgufFile::open(target).unwrap();
    let rows = |name: &str| {
        let info = model.tensor(name).unwrap();
        let mut values = vec![0.0; VOCAB * HIDDEN];
        quant::dequantize(info.ty.unwrap(), model.data(info).unwrap(), &mut values).unwrap();
        values
    };
    let (embedding, head) = (rows("token_embd.weight"), rows("output.weight"));
    let ids: Option<Vec<usize>> = shape.draft_vocab.map(|n| (0..n).map(|row| row * VOCAB / n).collect());
    let drafted = |values: &[f32]| -> Vec<f32> {
        match &ids {
            Some(ids) => ids.iter().flat_map(|&id| values[id * HIDDEN..(id + 1) * HIDDEN].to_vec()).collect(),
            None => values.to_vec(),
        }
    };
    let draft_rows = shape.draft_vocab.unwrap_or(VOCAB);
    if let Some(ids) = &ids {
        let bytes = ids.iter().flat_map(|&id| (id as i64).to_le_bytes()).collect();
        let spec = TensorSpec::new("d2t", QuantType::I64, &[ids.len() as u64]).unwrap();
        file.tensors.push((spec, bytes));
    }
    if shape.own_embedding {
        file.tensor("token_embd.weight", &[VOCAB, HIDDEN], ty, &embedding);
    }
    if shape.own_head {
        file.tensor("output.weight", &[draft_rows, HIDDEN], ty, &drafted(&head));
    }
    if shape.markov {
        file.tensor("markov_w1.weight", &[VOCAB, HIDDEN], ty, &embedding);
        let louder: Vec<f32> = drafted(&head).iter().map(|value| 6.0 * value).collect();
        file.tensor("markov_w2.weight", &[draft_rows, HIDDEN], ty, &louder);
        if shape.scales {
            file.tensor("markov_w2.scale", &[1], QuantType::F32, &[1.1]);
        }
        if shape.confidence {
            file.matrix(noise, "conf_proj.weight", [1, 2 * HIDDEN], QuantType::F32, 1.5);
            file.tensor("conf_proj.bias", &[1], QuantType::F32, &[0.3]);
        }
    }
    file.write(path);
}

/// Rank of the Markov head of [`write_bigram_drafter`].
const BUCKETS: usize = 256;

/// Writes a drafter of random weights for any target with heads of 64. With `bigrams` it has a Markov head that knows
/// what followed what, by buckets of tokens: it is right now and then. Without, its drafts stay near `mask`, the token
/// that fills its block.
pub fn write_random_drafter(path: &Path, target: &Target, drafts: u32, mask: u32, bigrams: Option<&[(u32, u32)]>) {
    let program = target.engine().program();
    let (hidden, vocab) = (program.hidden_size, program.vocab_size);
    let (heads, head_dim, ff) = (hidden / 64, 64, 256);
    let mut file = File::default();
    let noise = &mut Noise::new(drafts.into());
    for (key, value) in [
        ("block_count", 2),
        ("context_length", program.train_ctx),
        ("embedding_length", hidden),
        ("feed_forward_length", ff),
        ("attention.head_count", heads),
        ("attention.key_length", head_dim),
        ("block_size", drafts as usize + usize::from(bigrams.is_none())),
    ] {
        file.set(&format!("dflash.{key}"), value as u32);
    }
    file.set("general.architecture", "dflash");
    file.set("dflash.attention.layer_norm_rms_epsilon", 1e-5_f32);
    file.set("dflash.rope.freq_base", 100_000.0_f32);
    file.set("dflash.target_layers", vec![2_i32, program.num_layers as i32 / 2, program.num_layers as i32 - 1]);
    file.set("tokenizer.ggml.mask_token_id", mask);
    let ty = QuantType::Q8_0;
    file.matrix(noise, "fc.weight", [hidden, 3 * hidden], ty, 1.0);
    for name in ["enc.output_norm.weight", "output_norm.weight"] {
        file.norm(noise, name, hidden);
    }
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for (part, width) in [("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", 64), ("attn_k_norm", 64)] {
            file.norm(noise, &name(part), width);
        }
        for part in ["attn_q", "attn_k", "attn_v"] {
            file.matrix(noise, &name(part), [hidden, hidden], ty, 1.0);
        }
        file.matrix(noise, &name("attn_output"), [hidden, hidden], ty, 0.05);
        file.matrix(noise, &name("ffn_gate"), [ff, hidden], ty, 1.0);
        file.matrix(noise, &name("ffn_up"), [ff, hidden], ty, 1.0);
        file.matrix(noise, &name("ffn_down"), [hidden, ff], ty, 0.05);
    }
    if let Some(bigrams) = bigrams {
        let bucket = |token: u32| (token.wrapping_mul(0x9e37_79b1) >> 24) as usize;
        let (mut from, mut to) = (vec![0.0; vocab * BUCKETS], vec![0.0; vocab * BUCKETS]);
        for token in 0..vocab as u32 {
            from[token as usize * BUCKETS + bucket(token)] = 1.0;
        }
        for &(first, second) in bigrams {
            to[second as usize * BUCKETS + bucket(first)] += 40.0;
        }
        file.tensor("markov_w1.weight", &[vocab, BUCKETS], ty, &from);
        file.tensor("markov_w2.weight", &[vocab, BUCKETS], ty, &to);
    }
    file.write(path);
}

/// A folder with a target and drafters for it.
pub struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    pub fn new(seed: u64, ty: QuantType) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_target(&folder.path().join("target.gguf"), seed, ty);
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn target<B: Backend>(&self, backend: B, options: TargetOptions) -> Target {
        Target::load(&self.path("target.gguf"), backend, options, &mut |_| Ok(())).unwrap()
    }

    /// Writes a drafter and gives its path.
    pub fn write(&self, name: &str, shape: &Shape) -> PathBuf {
        let path = self.path(&format!("{name}.gguf"));
        write_drafter(&path, &self.path("target.gguf"), shape);
        path
    }

    /// A drafter for a target that was loaded from here.
    pub fn drafter(&self, target: &Target, shape: &Shape) -> Arc<BlockDrafter> {
        let path = self.write("drafter", shape);
        Arc::new(BlockDrafter::load(&path, target, &BlockOptions::default()).unwrap())
    }
}
