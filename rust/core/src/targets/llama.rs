//! `llama`: grouped-query attention, rotary embedding over adjacent pairs, gated MLP.
//!
//! Keys and tensors as llama.cpp's converter writes them; query and key rows are already permuted for adjacent pairs.

use std::collections::HashMap;

use super::{Architecture, ModelFile};
use crate::error::Result;
use crate::program::{
    Activation, Buf, CacheSpec, Linear, Norm, Op, Program, ProgramBuilder, RopeLayout, RopeSpec, TapPoint, WeightId,
    WeightUse,
};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "llama", build };

/// Buffers by role and width: layers of equal width share them.
#[derive(Default)]
struct Buffers(HashMap<(&'static str, usize), Buf>);

impl Buffers {
    fn of(&mut self, builder: &mut ProgramBuilder, role: &'static str, width: usize) -> Buf {
        *self.0.entry((role, width)).or_insert_with(|| builder.buffer(width))
    }
}

fn build(model: &mut ModelFile<'_>) -> Result<Program> {
    let experts = model.optional_u32("expert_count")?.unwrap_or(0);
    if experts > 0 {
        return Err(model.bad_key(&model.key("expert_count"), "0, since experts come in a later release", experts));
    }
    let num_layers = model.num_layers()?;
    let hidden = model.count("embedding_length")?;
    let train_ctx = model.count("context_length")?;
    let heads = model.required_layer_counts("attention.head_count", num_layers)?;
    let kv_heads = model.layer_counts("attention.head_count_kv", num_layers)?.unwrap_or_else(|| heads.clone());
    let ff = model.required_layer_counts("feed_forward_length", num_layers)?;
    let head_dim = match model.optional_count("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if hidden % heads[0] == 0 => hidden / heads[0],
        None => {
            return Err(model.bad_key(&model.key("attention.head_count"), format!("a divisor of {hidden}"), heads[0]));
        }
    };
    let value_dim = model.optional_count("attention.value_length")?.unwrap_or(head_dim);
    let eps = model.required_float("attention.layer_norm_rms_epsilon")?;
    let rope_dims = model.optional_count("rope.dimension_count")?.unwrap_or(head_dim);
    if rope_dims > head_dim || rope_dims % 2 == 1 {
        return Err(model.bad_key(
            &model.key("rope.dimension_count"),
            format!("an even number up to {head_dim}"),
            rope_dims,
        ));
    }
    let rope_base = f64::from(model.float("rope.freq_base")?.unwrap_or(10_000.0));
    if rope_base <= 1.0 {
        return Err(model.bad_key(&model.key("rope.freq_base"), "a number above 1", rope_base));
    }
    let scaling = model.rope_scaling(train_ctx)?;
    let scale = match model.float("attention.scale")? {
        Some(scale) if scale != 0.0 => scale,
        _ => 1.0 / (head_dim as f32).sqrt(),
    };

    let mut builder = ProgramBuilder::new();
    let mut buffers = Buffers::default();
    let b = &mut builder;
    let vocab = *model.shape("token_embd.weight")?.first().unwrap_or(&0);
    let table = model.weight(b, "token_embd.weight", &[vocab, hidden], WeightUse::Table)?;
    let factors = model.optional_weight(b, "rope_freqs.weight", &[rope_dims / 2], WeightUse::Vector)?;
    let rope = b.rope(RopeSpec::new(RopeLayout::Adjacent, rope_dims, rope_base, scaling, factors));
    let stream = b.buffer(hidden);

    b.op(Op::Embed { table, scale: 1.0, out: stream });
    b.op(Op::Tap { point: TapPoint::Embeddings, input: stream });
    for layer in 0..num_layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (heads, kv_heads, ff) = (heads[layer], kv_heads[layer], ff[layer]);
        if heads % kv_heads != 0 {
            return Err(model.bad_key(
                &model.key("attention.head_count_kv"),
                format!("a divisor of {heads} in layer {layer}"),
                kv_heads,
            ));
        }
        let sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * value_dim];
        let fused = fused_qkv(model, b, layer, &sizes, hidden)?;
        let mut linear =
            |b: &mut ProgramBuilder, part: &str, n: usize, k: usize, out: Buf, accumulate: bool| -> Result<Linear> {
                let weight = model.weight(b, &name(&format!("{part}.weight")), &[n, k], WeightUse::Matmul)?;
                let bias = model.optional_weight(b, &name(&format!("{part}.bias")), &[n], WeightUse::Vector)?;
                Ok(Linear { weight, bias, out, accumulate })
            };
        let query = buffers.of(b, "query", heads * head_dim);
        let key = buffers.of(b, "key", kv_heads * head_dim);
        let value = buffers.of(b, "value", kv_heads * value_dim);
        let attended = buffers.of(b, "attended", heads * value_dim);
        let gate_out = buffers.of(b, "gate", ff);
        let up_out = buffers.of(b, "up", ff);
        let parts = match fused {
            Some([q, k, v]) => [(q, query), (k, key), (v, value)]
                .map(|((weight, bias), out)| Linear { weight, bias, out, accumulate: false })
                .to_vec(),
            None => vec![
                linear(b, "attn_q", sizes[0], hidden, query, false)?,
                linear(b, "attn_k", sizes[1], hidden, key, false)?,
                linear(b, "attn_v", sizes[2], hidden, value, false)?,
            ],
        };
        let output = linear(b, "attn_output", hidden, heads * value_dim, stream, true)?;
        let gate = linear(b, "ffn_gate", ff, hidden, gate_out, false)?;
        let up = linear(b, "ffn_up", ff, hidden, up_out, false)?;
        let down = linear(b, "ffn_down", hidden, ff, stream, true)?;
        let mut norm = |b: &mut ProgramBuilder, part: &str| -> Result<Norm> {
            let weight = model.weight(b, &name(part), &[hidden], WeightUse::Vector)?;
            Ok(Norm { weight: Some(weight), eps })
        };
        let attn_norm = norm(b, "attn_norm.weight")?;
        let ffn_norm = norm(b, "ffn_norm.weight")?;
        let cache =
            b.cache(CacheSpec::Attention { num_kv_heads: kv_heads, key_dim: head_dim, value_dim, window: None });

        b.op(Op::Project { input: stream, norm: Some(attn_norm), parts });
        b.op(Op::HeadNormRope { buf: query, num_heads: heads, head_dim, norm: None, rope: Some(rope) });
        b.op(Op::HeadNormRope { buf: key, num_heads: kv_heads, head_dim, norm: None, rope: Some(rope) });
        b.op(Op::Append { cache, key, value });
        b.op(Op::Attend { cache, query, out: attended, num_heads: heads, scale, softcap: None, sinks: None });
        b.op(Op::Project { input: attended, norm: None, parts: vec![output] });
        b.op(Op::GatedMlp { stream, norm: ffn_norm, gate, up, down, activation: Activation::Silu });
        b.op(Op::Tap { point: TapPoint::Layer(layer), input: stream });
    }
    let norm = Norm { weight: Some(model.weight(b, "output_norm.weight", &[hidden], WeightUse::Vector)?), eps };
    // Without a head of its own the model multiplies by its embedding table.
    let head = if model.has("output.weight") { "output.weight" } else { "token_embd.weight" };
    let weight = model.weight(b, head, &[vocab, hidden], WeightUse::Matmul)?;
    b.op(Op::Head { input: stream, norm, weight, bias: None, scale: 1.0, softcap: None });
    Ok(builder.finish("llama", num_layers, hidden, vocab, train_ctx))
}

/// Query, key and value as rows of one matrix, and of one bias where it has one: how some converters write a layer.
#[expect(clippy::type_complexity, reason = "three weights with their biases")]
fn fused_qkv(
    model: &mut ModelFile<'_>,
    b: &mut ProgramBuilder,
    layer: usize,
    sizes: &[usize; 3],
    hidden: usize,
) -> Result<Option<[(WeightId, Option<WeightId>); 3]>> {
    let name = |part: &str| format!("blk.{layer}.attn_qkv.{part}");
    if !model.has(&name("weight")) {
        return Ok(None);
    }
    let weights = model.stacked(b, &name("weight"), sizes, &[hidden], WeightUse::Matmul)?;
    let biases = match model.has(&name("bias")) {
        true => Some(model.stacked(b, &name("bias"), sizes, &[], WeightUse::Vector)?),
        false => None,
    };
    Ok(Some(std::array::from_fn(|part| (weights[part], biases.as_ref().map(|biases| biases[part])))))
}
