//! Reads a block drafter's configuration from its GGUF file.
//!
//! Keys and tensors as llama.cpp b11434 reads and writes its `dflash` architecture. `dflash-draft`, which earlier
//! converters wrote, keeps its keys one level deeper.

use super::config::{BlockConfig, FeatureControl, Field, Geometry, Source, activation};
use crate::error::{Error, Evidence, Result};
use crate::gguf::{GgufFile, Metadata};
use crate::program::{Activation, TapPoint};
use crate::targets::ModelFile;

/// Architecture names of block drafters.
pub const ARCHITECTURES: &[&str] = &["dflash", "dflash-draft"];

/// llama.cpp's block size where the file has no such key.
const DEFAULT_BLOCK_SIZE: usize = 16;

/// The architecture name of a drafter's file.
///
/// # Errors
/// `Error::Model` when it is no block drafter.
pub fn architecture(file: &GgufFile, metadata: &Metadata) -> Result<&'static str> {
    let name = metadata.required_str("general.architecture")?;
    ARCHITECTURES.iter().copied().find(|known| *known == name).ok_or_else(|| {
        Error::model(
            Evidence::new("file holds no drafter that runs here")
                .path(file.path())
                .key("general.architecture")
                .expected(ARCHITECTURES.join(", "))
                .found(name),
        )
    })
}

/// Whether the file has tensors of parts that do not run here, refused by name.
fn refuse_other_parts(model: &ModelFile<'_>) -> Result<()> {
    let parts = [
        ("selector_hidden.weight", "a DFlash 2 drafter (candidate selector), which a later release brings"),
        ("output_hc_fn.weight", "a DeepSeek-V4 drafter (hyper-connections), which a later release brings"),
    ];
    match parts.iter().find(|(tensor, _)| model.has(tensor)) {
        Some((tensor, what)) => Err(model.bad_tensor(tensor, "drafter does not run here", "dflash or dspark", what)),
        None => Ok(()),
    }
}

/// What the file says, and what is worth telling about it. `vocab_size` is the target's.
///
/// # Errors
/// `Error::Model` for keys that are missing or cannot be used.
pub fn read(model: &ModelFile<'_>, vocab_size: usize) -> Result<(BlockConfig, Vec<String>)> {
    refuse_other_parts(model)?;
    let mut notices = Vec::new();
    let metadata = model.metadata();
    let num_layers = model.num_layers()?;
    let hidden_size = model.count("embedding_length")?;
    let num_heads = model.count("attention.head_count")?;
    let num_kv_heads = model.optional_count("attention.head_count_kv")?.unwrap_or(num_heads);
    if num_heads % num_kv_heads != 0 {
        let key = model.key("attention.head_count_kv");
        return Err(model.bad_key(&key, format!("a divisor of {num_heads}"), num_kv_heads));
    }
    let head_dim = match model.optional_count("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let key = model.key("attention.head_count");
            return Err(model.bad_key(&key, format!("a divisor of {hidden_size}"), num_heads));
        }
    };
    if let Some(value_dim) = model.optional_count("attention.value_length")?
        && value_dim != head_dim
    {
        return Err(model.bad_key(&model.key("attention.value_length"), head_dim, value_dim));
    }
    let rows = |tensor: &str| if model.has(tensor) { model.shape(tensor).map(Some) } else { Ok(None) };
    let markov = rows("markov_w1.weight")?;
    let d2t = rows("d2t")?;
    let geometry = Geometry {
        num_layers,
        hidden_size,
        feed_forward: model.count("feed_forward_length")?,
        num_heads,
        num_kv_heads,
        head_dim,
        vocab_size,
        draft_vocab_size: d2t.as_ref().map_or(vocab_size, |shape| shape.iter().product()),
        markov_rank: markov.as_ref().and_then(|shape| shape.last().copied()).unwrap_or(0),
        train_ctx: model.count("context_length")?,
    };
    if d2t.is_some() && !model.has("output.weight") {
        return Err(model.bad_tensor("d2t", "reduced vocabulary without a head of its own", "output.weight", "none"));
    }

    let block_size = match model.optional_count("block_size")? {
        Some(size) => Field::key(model.key("block_size"), size),
        None => {
            notices.push(format!("the drafter names no block size: llama.cpp's default of {DEFAULT_BLOCK_SIZE}"));
            Field::default("llama.cpp's", DEFAULT_BLOCK_SIZE)
        }
    };
    let mask_token = mask_token(model, vocab_size)?;
    let sample_from_anchor = match metadata.bool(&model.key("sample_from_anchor"))? {
        Some(value) => Field::key(model.key("sample_from_anchor"), value),
        None if markov.is_some() => Field { value: true, source: Source::Tensor("markov_w1.weight".to_owned()) },
        None => Field::default("z-lab's slots: the anchor's row predicts nothing", false),
    };
    let rope_dims = model.optional_count("rope.dimension_count")?;
    if let Some(dims) = rope_dims.filter(|dims| dims % 2 != 0 || *dims > head_dim) {
        let key = model.key("rope.dimension_count");
        return Err(model.bad_key(&key, format!("an even number of at most {head_dim}"), dims));
    }
    let rope_base = model.float("rope.freq_base")?;
    if let Some(base) = rope_base.filter(|base| *base <= 1.0) {
        return Err(model.bad_key(&model.key("rope.freq_base"), "a number above 1", base));
    }
    if rope_base.is_none() {
        notices.push("the drafter names no rope.freq_base: llama.cpp's default of 10000".to_owned());
    }
    let nonzero = |key: &str| model.float(key).map(|value| value.filter(|value| *value != 0.0));
    let act_key = model.key("hidden_activation");
    let act = match metadata.str(&act_key)? {
        Some(name) => match activation(name) {
            Some(known) => Field::key(act_key, known),
            None => return Err(model.bad_key(&act_key, "silu, gelu or gelu_pytorch_tanh", name)),
        },
        None => Field::default("", Activation::Silu),
    };
    let has_confidence = markov.is_some() && model.has("conf_proj.weight");
    if metadata.bool(&model.key("has_confidence_head"))? == Some(true) && !has_confidence {
        notices.push("has_confidence_head is true, and the file has no confidence head".to_owned());
    }
    let gated = model.shape("blk.0.attn_q.weight")?.first() == Some(&(2 * num_heads * head_dim));
    if gated {
        notices.push(
            "query rows hold output gates too, as an older converter wrote them; llama.cpp no longer loads such files"
                .to_owned(),
        );
    }
    let config = BlockConfig {
        geometry,
        block_size,
        mask_token,
        taps: taps(model)?,
        sample_from_anchor,
        causal: Field::key_or(
            model.key("attention.causal"),
            metadata.bool(&model.key("attention.causal"))?,
            "a block sees itself whole",
            false,
        ),
        windows: windows(model, num_layers, &mut notices)?,
        rope_base: Field::key_or(model.key("rope.freq_base"), rope_base, "llama.cpp's", 10_000.0),
        rope_dims: Field::key_or(model.key("rope.dimension_count"), rope_dims, "the whole head", head_dim),
        rope_scaling: Field {
            value: model.rope_scaling(geometry.train_ctx)?,
            source: match metadata.contains(&model.key("rope.scaling.type")) {
                true => Source::Key(model.key("rope.scaling.type")),
                false => Source::Default(""),
            },
        },
        rope_sections: rope_sections(model, &mut notices)?,
        norm_eps: Field::key(
            model.key("attention.layer_norm_rms_epsilon"),
            model.required_float("attention.layer_norm_rms_epsilon")?,
        ),
        attention_scale: Field::key_or(
            model.key("attention.scale"),
            nonzero("attention.scale")?,
            "1 / sqrt(head_dim)",
            1.0 / (head_dim as f32).sqrt(),
        ),
        value_scale: Field::key_or(model.key("attention.value_scale"), nonzero("attention.value_scale")?, "", 1.0),
        embedding_scale: Field::key_or(model.key("embedding_scale"), nonzero("embedding_scale")?, "", 1.0),
        activation: act,
        markov: match markov {
            Some(_) => Field { value: true, source: Source::Tensor("markov_w1.weight".to_owned()) },
            None => Field::default("no such tensor", false),
        },
        confidence: match has_confidence {
            true => Field { value: true, source: Source::Tensor("conf_proj.weight".to_owned()) },
            false => Field::default("no such tensor", false),
        },
        features: Field::default("", FeatureControl::Real),
    };
    Ok((config, notices))
}

/// The mask token: the drafter's own key, then the tokenizer's.
fn mask_token(model: &ModelFile<'_>, vocab_size: usize) -> Result<Field<u32>> {
    let keys = [
        model.key("mask_token_id"),
        model.key("dflash.mask_token_id"),
        model.key("dspark_noise_token_id"),
        "tokenizer.ggml.mask_token_id".to_owned(),
    ];
    for key in &keys {
        if let Some(token) = model.metadata().u32(key)? {
            if token as usize >= vocab_size {
                return Err(model.bad_key(key, format!("a token below {vocab_size}"), token));
            }
            return Ok(Field::key(key, token));
        }
    }
    Err(model.metadata().missing(&keys[3], "the token that fills the block"))
}

/// Tap layers. A file counts the inputs of layers, so that its number i is the output after layer i - 1.
fn taps(model: &ModelFile<'_>) -> Result<Field<Vec<TapPoint>>> {
    let key = model.key("target_layers");
    if let Some(inputs) = model.metadata().u32_array(&key)? {
        let point = |&input: &u32| match input {
            0 => TapPoint::Embeddings,
            input => TapPoint::Layer(input as usize - 1),
        };
        return Ok(Field::key(key, inputs.iter().map(point).collect()));
    }
    let key = model.key("dflash.target_layer_ids");
    if let Some(layers) = model.metadata().i32_array(&key)? {
        let point = |&layer: &i32| match usize::try_from(layer) {
            Ok(layer) => Ok(TapPoint::Layer(layer)),
            Err(_) if layer == -1 => Ok(TapPoint::Embeddings),
            Err(_) => Err(model.bad_key(&key, "layer ids from -1 on", layer)),
        };
        return Ok(Field::key(&key, layers.iter().map(point).collect::<Result<_>>()?));
    }
    Ok(Field::default("the file names none", Vec::new()))
}

/// Sliding window of each layer, from one width and a pattern.
fn windows(model: &ModelFile<'_>, num_layers: usize, notices: &mut Vec<String>) -> Result<Field<Vec<Option<usize>>>> {
    let key = model.key("attention.sliding_window");
    let Some(window) = model.optional_u32("attention.sliding_window")?.filter(|&window| window > 0) else {
        return Ok(Field::default("full attention", vec![None; num_layers]));
    };
    let pattern_key = model.key("attention.sliding_window_pattern");
    let pattern = match model.metadata().bool_or_array(&pattern_key, num_layers) {
        Ok(Some(pattern)) => pattern,
        // An older converter wrote one number: every n-th layer is full.
        Err(_) if model.metadata().u32(&pattern_key).is_ok_and(|n| n.is_some_and(|n| n > 0)) => {
            let every = model.metadata().required_u32(&pattern_key)? as usize;
            (0..num_layers).map(|layer| (layer + 1) % every != 0).collect()
        }
        Ok(None) => {
            notices.push(format!(
                "{key} is {window} and {pattern_key} is missing: every layer is windowed (llama.cpp refuses such a file)"
            ));
            vec![true; num_layers]
        }
        Err(error) => return Err(error),
    };
    if !pattern.contains(&true) {
        notices.push(format!(
            "{key} is {window} and no layer of {pattern_key} is windowed (llama.cpp aborts on such a file)"
        ));
    }
    Ok(Field::key(key, pattern.into_iter().map(|windowed| windowed.then_some(window as usize)).collect()))
}

/// Sections of a multimodal rotary embedding, of which text needs only to know what stays unrotated.
fn rope_sections(model: &ModelFile<'_>, notices: &mut Vec<String>) -> Result<Field<[usize; 4]>> {
    let key = model.key("rope.dimension_sections");
    let Some(found) = model.metadata().u32_array(&key)? else { return Ok(Field::default("", [0; 4])) };
    if found.len() > 4 {
        return Err(model.bad_key(&key, "at most 4 sections", found.len()));
    }
    let mut sections = [0; 4];
    for (section, &size) in sections.iter_mut().zip(&found) {
        *section = size as usize;
    }
    if sections[3] > 0 {
        notices.push(format!(
            "{key} leaves {} of each {} rotary pairs unrotated",
            sections[3],
            sections.iter().sum::<usize>()
        ));
    }
    Ok(Field::key(key, sections))
}
