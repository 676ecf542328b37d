//! A block drafter as a program: features to keys and values, and the block of anchor and mask tokens to drafts.
//!
//! Injection: `x = norm(fc f)`, then keys and values of every layer straight from x (a layer's own norm is for the block's
//! rows alone). Block: layers over the injected positions and the block itself, then the head.

use std::sync::Arc;

use super::config::BlockConfig;
use crate::error::Result;
use crate::program::{
    Buf, CacheSpec, Linear, Norm, Op, Program, ProgramBuilder, RopeLayout, RopeSpec, TapPoint, WeightId, WeightUse,
};
use crate::targets::ModelFile;

/// Prefix of weights that belong to the target.
pub const BORROWED: &str = "target:";

/// What a drafter may borrow of its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lender {
    /// Name of the embedding table.
    pub embedding: String,
    /// Name of the output head.
    pub head: String,
    /// Width of the target's residual stream.
    pub hidden_size: usize,
    /// Size of the target's vocabulary.
    pub vocab_size: usize,
    /// Number of the target's layers.
    pub num_layers: usize,
}

impl Lender {
    /// What a target's program lends.
    pub fn of(target: &Program) -> Self {
        let named = |id: WeightId| target.weight(id).name.clone();
        let find = |pick: fn(&Op) -> Option<WeightId>| target.ops.iter().find_map(pick).map(named).unwrap_or_default();
        Self {
            embedding: find(|op| if let Op::Embed { table, .. } = op { Some(*table) } else { None }),
            head: find(|op| if let Op::Head { weight, .. } = op { Some(*weight) } else { None }),
            hidden_size: target.hidden_size,
            vocab_size: target.vocab_size,
            num_layers: target.num_layers,
        }
    }
}

/// The buffers that layers share.
struct Buffers {
    stream: Buf,
    query: Buf,
    query_gate: Option<(Buf, Buf)>, // as projected, and the gate alone
    attended: Buf,
    branch: Buf,
    gate: Buf,
    up: Buf,
    key: Buf,
    value: Buf,
}

/// Builds the program; every tensor of the file must be part of it.
pub fn build(
    model: &mut ModelFile<'_>,
    config: &BlockConfig,
    lender: &Lender,
    ids: Option<Arc<[u32]>>,
) -> Result<Program> {
    let g = config.geometry;
    let mut builder = ProgramBuilder::new();
    let b = &mut builder;
    let (query_width, kv_width) = (g.num_heads * g.head_dim, g.num_kv_heads * g.head_dim);
    let gated = model.shape("blk.0.attn_q.weight")?.first() == Some(&(2 * query_width));

    let own_embedding = model.has("token_embd.weight");
    let table = match own_embedding {
        true => model.weight(b, "token_embd.weight", &[g.vocab_size, g.hidden_size], WeightUse::Table)?,
        false => b.weight(format!("{BORROWED}{}", lender.embedding), &[g.vocab_size, g.hidden_size], WeightUse::Table),
    };
    let head_shape = [g.draft_vocab_size, g.hidden_size];
    // Without a head of its own a drafter with its own embedding is tied to that.
    let head = match (model.has("output.weight"), own_embedding) {
        (true, _) => model.weight(b, "output.weight", &head_shape, WeightUse::Matmul)?,
        (false, true) => model.weight(b, "token_embd.weight", &head_shape, WeightUse::Matmul)?,
        (false, false) => b.weight(format!("{BORROWED}{}", lender.head), &head_shape, WeightUse::Matmul),
    };
    let spec = rope(model, config, b)?;
    let rope = b.rope(spec);
    let buffers = Buffers {
        stream: b.buffer(g.hidden_size),
        query: b.buffer(query_width),
        query_gate: gated.then(|| (b.buffer(2 * query_width), b.buffer(query_width))),
        attended: b.buffer(query_width),
        branch: b.buffer(g.hidden_size),
        gate: b.buffer(g.feed_forward),
        up: b.buffer(g.feed_forward),
        key: b.buffer(kv_width),
        value: b.buffer(kv_width),
    };

    // Features of one position side by side, in the order of the taps.
    let features = b.buffer(config.taps.value.len() * lender.hidden_size);
    let context = b.buffer(g.hidden_size);
    b.inject(Op::Input { out: features });
    let fc = matrix(model, b, "fc.weight", &[g.hidden_size, config.taps.value.len() * lender.hidden_size])?;
    b.inject(Op::Project {
        input: features,
        norm: None,
        parts: vec![Linear { weight: fc, bias: None, out: context, accumulate: false }],
    });
    if let Some(scale) = model.scalar("fc.scale")? {
        b.inject(Op::AddScale { buf: context, add: None, scale });
    }
    let context_norm = norm(model, b, "enc.output_norm.weight", g.hidden_size, config)?;

    b.op(Op::Embed { table, scale: config.embedding_scale.value, out: buffers.stream });
    let mut injected = Vec::new();
    for layer in 0..g.num_layers {
        injected.push(push_layer(model, b, config, &buffers, layer, rope)?);
    }
    let mut parts = Vec::new();
    for keys in &injected {
        parts.push(Linear { weight: keys.key_weight, bias: None, out: keys.key, accumulate: false });
        parts.push(Linear { weight: keys.value_weight, bias: None, out: keys.value, accumulate: false });
    }
    b.inject(Op::Project { input: context, norm: Some(context_norm), parts });
    for keys in &injected {
        if let Some(norm) = keys.value_norm {
            b.inject(heads(keys.value, g.num_kv_heads, g.head_dim, Some(norm), None));
        }
        b.inject(heads(keys.key, g.num_kv_heads, g.head_dim, Some(keys.key_norm), Some(rope)));
    }
    for keys in &injected {
        b.inject(Op::Append { cache: keys.cache, key: keys.key, value: keys.value });
    }

    let norm = norm(model, b, "output_norm.weight", g.hidden_size, config)?;
    b.op(Op::Head { input: buffers.stream, norm, weight: head, bias: None, scale: 1.0, softcap: None });
    b.head_rows(g.draft_vocab_size);
    push_markov(model, b, config, ids)?;
    Ok(builder.finish("dflash", g.num_layers, g.hidden_size, g.vocab_size, g.train_ctx))
}

/// How a layer makes keys and values of the context.
struct Injected {
    cache: usize,
    key_weight: WeightId,
    value_weight: WeightId,
    key: Buf,
    value: Buf,
    key_norm: Norm,
    value_norm: Option<Norm>,
}

/// The operations of one layer over the block's rows.
fn push_layer(
    model: &mut ModelFile<'_>,
    b: &mut ProgramBuilder,
    config: &BlockConfig,
    buffers: &Buffers,
    layer: usize,
    rope: usize,
) -> Result<Injected> {
    let g = config.geometry;
    let (query_width, kv_width) = (g.num_heads * g.head_dim, g.num_kv_heads * g.head_dim);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let Buffers { stream, query, attended, branch, gate, up, key, value, query_gate } = *buffers;

    let attn_norm = norm(model, b, &name("attn_norm.weight"), g.hidden_size, config)?;
    let query_rows = if query_gate.is_some() { 2 * query_width } else { query_width };
    let query_weight = matrix(model, b, &name("attn_q.weight"), &[query_rows, g.hidden_size])?;
    let key_weight = matrix(model, b, &name("attn_k.weight"), &[kv_width, g.hidden_size])?;
    // Without values of their own, keys serve as values: normed without a weight, not rotated.
    let shares_keys = !model.has(&name("attn_v.weight"));
    let value_weight = match shares_keys {
        true => key_weight,
        false => matrix(model, b, &name("attn_v.weight"), &[kv_width, g.hidden_size])?,
    };
    let value_norm = shares_keys.then_some(Norm { weight: None, eps: config.norm_eps.value });
    let query_norm = norm(model, b, &name("attn_q_norm.weight"), g.head_dim, config)?;
    let key_norm = norm(model, b, &name("attn_k_norm.weight"), g.head_dim, config)?;
    let output = matrix(model, b, &name("attn_output.weight"), &[g.hidden_size, query_width])?;
    let sinks = model.optional_weight(b, &name("attn_sinks.weight"), &[g.num_heads], WeightUse::Vector)?;
    let cache = b.cache(CacheSpec::Attention {
        num_kv_heads: g.num_kv_heads,
        key_dim: g.head_dim,
        value_dim: g.head_dim,
        window: config.windows.value[layer],
    });

    let linear = |weight, out| Linear { weight, bias: None, out, accumulate: false };
    let projected = query_gate.map_or(query, |(both, _)| both);
    let parts = vec![linear(query_weight, projected), linear(key_weight, key), linear(value_weight, value)];
    b.op(Op::Project { input: stream, norm: Some(attn_norm), parts });
    if let Some((both, gate)) = query_gate {
        b.op(Op::Split { input: both, first: query, second: gate, head_dim: g.head_dim });
    }
    b.op(heads(query, g.num_heads, g.head_dim, Some(query_norm), Some(rope)));
    if let Some(norm) = value_norm {
        b.op(heads(value, g.num_kv_heads, g.head_dim, Some(norm), None));
    }
    b.op(heads(key, g.num_kv_heads, g.head_dim, Some(key_norm), Some(rope)));
    b.op(Op::Append { cache, key, value });
    let scale = config.attention_scale.value;
    b.op(Op::Attend { cache, query, out: attended, num_heads: g.num_heads, scale, softcap: None, sinks });
    if let Some((_, gate)) = query_gate {
        b.op(Op::Gate { buf: attended, gate });
    }

    let post = optional_norm(model, b, &name("post_attention_norm.weight"), config)?;
    let branched = post.is_some() || config.value_scale.value != 1.0;
    let out = if branched { branch } else { stream };
    let part = Linear { weight: output, bias: None, out, accumulate: !branched };
    b.op(Op::Project { input: attended, norm: None, parts: vec![part] });
    if config.value_scale.value != 1.0 {
        b.op(Op::AddScale { buf: branch, add: None, scale: config.value_scale.value });
    }
    push_branch(b, branched, post, g.hidden_size, stream, branch);

    let ffn_norm = norm(model, b, &name("ffn_norm.weight"), g.hidden_size, config)?;
    let gate_weight = matrix(model, b, &name("ffn_gate.weight"), &[g.feed_forward, g.hidden_size])?;
    let up_weight = matrix(model, b, &name("ffn_up.weight"), &[g.feed_forward, g.hidden_size])?;
    let down_weight = matrix(model, b, &name("ffn_down.weight"), &[g.hidden_size, g.feed_forward])?;
    let post = optional_norm(model, b, &name("post_ffw_norm.weight"), config)?;
    let out = if post.is_some() { branch } else { stream };
    b.op(Op::GatedMlp {
        stream,
        norm: ffn_norm,
        gate: linear(gate_weight, gate),
        up: linear(up_weight, up),
        down: Linear { weight: down_weight, bias: None, out, accumulate: post.is_none() },
        activation: config.activation.value,
    });
    push_branch(b, post.is_some(), post, g.hidden_size, stream, branch);
    if let Some(scale) = model.scalar(&name("layer_output_scale.weight"))? {
        b.op(Op::AddScale { buf: stream, add: None, scale });
    }
    b.op(Op::Tap { point: TapPoint::Layer(layer), input: stream });
    let (key, value) = (b.buffer(kv_width), b.buffer(kv_width));
    Ok(Injected { cache, key_weight, value_weight, key, value, key_norm, value_norm })
}

/// Adds a branch, normed where it has a norm, to the stream.
fn push_branch(b: &mut ProgramBuilder, branched: bool, post: Option<Norm>, width: usize, stream: Buf, branch: Buf) {
    if !branched {
        return;
    }
    if post.is_some() {
        b.op(heads(branch, 1, width, post, None));
    }
    b.op(Op::AddScale { buf: stream, add: Some(branch), scale: 1.0 });
}

/// The Markov head, where the file has one. Its tensors are part of the file even when the head is switched off.
fn push_markov(
    model: &mut ModelFile<'_>,
    b: &mut ProgramBuilder,
    config: &BlockConfig,
    ids: Option<Arc<[u32]>>,
) -> Result<()> {
    let g = config.geometry;
    if g.markov_rank == 0 {
        return Ok(());
    }
    let table = model.weight(b, "markov_w1.weight", &[g.vocab_size, g.markov_rank], WeightUse::Table)?;
    let weight = matrix(model, b, "markov_w2.weight", &[g.draft_vocab_size, g.markov_rank])?;
    let scale = model.scalar("markov_w2.scale")?.unwrap_or(1.0);
    if config.markov.value {
        b.op(Op::Markov { table, weight, scale, ids });
    }
    Ok(())
}

fn rope(model: &mut ModelFile<'_>, config: &BlockConfig, b: &mut ProgramBuilder) -> Result<RopeSpec> {
    let (dims, sections) = (config.rope_dims.value, config.rope_sections.value);
    let factors = model.optional_weight(b, "rope_freqs.weight", &[dims / 2], WeightUse::Vector)?;
    let total: usize = sections.iter().sum();
    // llama.cpp reads the factors only with the ordinary embedding.
    let factors = factors.filter(|_| total == 0);
    let base = f64::from(config.rope_base.value);
    let mut rope = RopeSpec::new(RopeLayout::Half, dims, base, config.rope_scaling.value, factors);
    if total > 0 {
        // The fourth stream of a text stands at position 0.
        let still = total - sections[3];
        for (_, frequency) in rope.frequencies.iter_mut().enumerate().filter(|(pair, _)| pair % total >= still) {
            *frequency = 0.0;
        }
    }
    Ok(rope)
}

fn heads(buf: Buf, num_heads: usize, head_dim: usize, norm: Option<Norm>, rope: Option<usize>) -> Op {
    Op::HeadNormRope { buf, num_heads, head_dim, norm, rope }
}

fn matrix(model: &mut ModelFile<'_>, b: &mut ProgramBuilder, name: &str, shape: &[usize]) -> Result<WeightId> {
    model.weight(b, name, shape, WeightUse::Matmul)
}

fn norm(
    model: &mut ModelFile<'_>,
    b: &mut ProgramBuilder,
    name: &str,
    width: usize,
    config: &BlockConfig,
) -> Result<Norm> {
    let weight = model.weight(b, name, &[width], WeightUse::Vector)?;
    Ok(Norm { weight: Some(weight), eps: config.norm_eps.value })
}

fn optional_norm(
    model: &mut ModelFile<'_>,
    b: &mut ProgramBuilder,
    name: &str,
    config: &BlockConfig,
) -> Result<Option<Norm>> {
    let weight = model.optional_weight(b, name, &[config.geometry.hidden_size], WeightUse::Vector)?;
    Ok(weight.map(|weight| Norm { weight: Some(weight), eps: config.norm_eps.value }))
}
