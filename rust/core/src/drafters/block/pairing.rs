//! Whether a drafter fits a target: one check a line, before any weight is loaded.
//!
//! What cannot work is an error that names both sides. What runs but is a known cause of low acceptance is a notice.

use std::path::Path;

use super::BlockFile;
use super::config::{BlockConfig, Source, layer_names};
use crate::error::{Error, Evidence, Result};
use crate::gguf::{GgufFile, Metadata};
pub use crate::inspect::{Check, Verdict};
use crate::program::{Op, Program, RopeSpec, TapPoint};

/// What a drafter is compared with.
pub struct TargetFacts<'a> {
    /// The target's file.
    pub file: &'a GgufFile,
    /// Its metadata with overrides applied.
    pub metadata: &'a Metadata,
    /// Size of its vocabulary.
    pub vocab_size: usize,
    /// Width of its residual stream.
    pub hidden_size: usize,
    /// Number of its layers.
    pub num_layers: usize,
    /// Context length it was trained for.
    pub train_ctx: usize,
    /// Whether its head is its embedding table.
    pub tied: bool,
    rope: Option<&'a RopeSpec>,
}

impl<'a> TargetFacts<'a> {
    /// The facts of a target's file and program.
    pub fn new(file: &'a GgufFile, metadata: &'a Metadata, program: &'a Program) -> Self {
        let tied = !program
            .ops
            .iter()
            .any(|op| matches!(op, Op::Head { weight, .. } if program.weight(*weight).name.starts_with("output.")));
        Self {
            file,
            metadata,
            vocab_size: program.vocab_size,
            hidden_size: program.hidden_size,
            num_layers: program.num_layers,
            train_ctx: program.train_ctx,
            tied,
            rope: program.ropes.first(),
        }
    }
}

fn check_line(name: &str, verdict: Verdict, detail: impl Into<String>) -> Check {
    Check { name: name.to_owned(), verdict, detail: detail.into() }
}

/// Compares a drafter's file and configuration with a target.
///
/// # Errors
/// `Error::Gguf` and `Error::Model` for values that cannot be read at all.
pub fn check(source: &BlockFile, config: &BlockConfig, target: &TargetFacts<'_>) -> Result<Vec<Check>> {
    let mut checks = vec![vocabulary(&source.metadata, target)?];
    checks.extend(weights(source, config, target)?);
    checks.extend(check_taps(config, target.num_layers));
    checks.push(mask_token(config, target));
    checks.extend(block(config));
    checks.extend(positions(config, target));
    checks.push(norms(source)?);
    checks.push(provenance(&source.metadata, target));
    Ok(checks)
}

/// Turns the first check that failed into an error.
///
/// # Errors
/// `Error::Pairing` with its detail.
pub fn require(checks: &[Check], drafter: &Path) -> Result<()> {
    match checks.iter().find(|check| check.verdict == Verdict::Error) {
        Some(check) => Err(Error::pairing(
            Evidence::new("the drafter does not fit the target").path(drafter).key(&check.name).found(&check.detail),
        )),
        None => Ok(()),
    }
}

/// Token for token, and what is done with the tokens.
fn vocabulary(drafter: &Metadata, target: &TargetFacts<'_>) -> Result<Check> {
    const NAME: &str = "vocabulary";
    let key = "tokenizer.ggml.tokens";
    let Some(own) = drafter.strings(key)? else {
        return Ok(check_line(NAME, Verdict::Notice, "the drafter carries no tokens to compare"));
    };
    let Some(theirs) = target.metadata.strings(key)? else {
        return Ok(check_line(NAME, Verdict::Notice, "the target carries no tokens to compare"));
    };
    let show = |bytes: &[u8]| format!("{:?}", String::from_utf8_lossy(bytes));
    let differing = own.iter().zip(theirs.iter()).position(|(own, theirs)| own != theirs);
    if let Some(id) = differing {
        let count = own.iter().zip(theirs.iter()).filter(|(own, theirs)| own != theirs).count();
        let sides = (own.get(id).unwrap_or_default(), theirs.get(id).unwrap_or_default());
        // Padding is named by each converter in its own way.
        let padding = |bytes: &[u8]| {
            bytes.starts_with(b"[PAD") || bytes.starts_with(b"<unused") || bytes.starts_with(b"<|unused")
        };
        let all_padding = own
            .iter()
            .zip(theirs.iter())
            .filter(|(own, theirs)| own != theirs)
            .all(|(own, theirs)| padding(own) || padding(theirs));
        let verdict = if all_padding { Verdict::Notice } else { Verdict::Error };
        return Ok(check_line(
            NAME,
            verdict,
            format!(
                "{count} tokens differ, the first is {id}: {} in the drafter, {} in the target",
                show(sides.0),
                show(sides.1)
            ),
        ));
    }
    if own.len() != theirs.len() {
        return Ok(check_line(
            NAME,
            Verdict::Notice,
            format!(
                "{} tokens in the drafter, {} in the target; the first {} are equal",
                own.len(),
                theirs.len(),
                own.len().min(theirs.len())
            ),
        ));
    }
    let special = ["bos_token_id", "eos_token_id"].into_iter().find(|id| {
        let key = format!("tokenizer.ggml.{id}");
        let pair = (drafter.get(&key), target.metadata.get(&key));
        matches!(pair, (Some(own), Some(theirs)) if own != theirs)
    });
    Ok(match special {
        Some(id) => check_line(NAME, Verdict::Notice, format!("{} tokens are equal, {id} differs", own.len())),
        None => check_line(NAME, Verdict::Ok, format!("{} tokens are equal", own.len())),
    })
}

/// Widths, and which matrices are borrowed.
fn weights(source: &BlockFile, config: &BlockConfig, target: &TargetFacts<'_>) -> Result<Vec<Check>> {
    let model = source.model();
    let g = config.geometry;
    let mut checks = Vec::new();
    let fc = model.shape("fc.weight")?;
    let columns = fc.last().copied().unwrap_or(0);
    let taps = config.taps.value.len();
    let wanted = taps * target.hidden_size;
    checks.push(if taps > 0 && columns != wanted {
        let of_drafter = if columns.is_multiple_of(taps) { columns / taps } else { 0 };
        check_line(
            "hidden size",
            Verdict::Error,
            format!(
                "fc.weight takes {columns} values: {taps} taps of {}, and the target's hidden size is {} ({wanted})",
                if of_drafter > 0 { of_drafter.to_string() } else { "no whole width".to_owned() },
                target.hidden_size
            ),
        )
    } else {
        check_line(
            "hidden size",
            Verdict::Ok,
            format!("{taps} taps of {} enter {} channels", target.hidden_size, g.hidden_size),
        )
    });
    let (own_embedding, own_head) = (model.has("token_embd.weight"), model.has("output.weight"));
    // A head that is missing is the drafter's own embedding table, where it has one.
    let borrows = !own_embedding;
    checks.push(if borrows && g.hidden_size != target.hidden_size {
        check_line(
            "embedding and head",
            Verdict::Error,
            format!(
                "the target's are borrowed, {} wide, and the drafter is {} wide",
                target.hidden_size, g.hidden_size
            ),
        )
    } else {
        match (own_embedding, own_head) {
            (true, false) if !target.tied => check_line(
                "embedding and head",
                Verdict::Notice,
                "the drafter's head is its own embedding and the target's is not tied: a converter that dropped the head leaves such a file, and its drafts come from the wrong matrix",
            ),
            (true, false) => check_line("embedding and head", Verdict::Ok, "own embedding, which is the head too"),
            (true, true) => check_line("embedding and head", Verdict::Ok, "both its own"),
            (false, true) => check_line("embedding and head", Verdict::Ok, "own head, borrowed embedding"),
            (false, false) => check_line("embedding and head", Verdict::Ok, "both borrowed from the target"),
        }
    });
    if g.draft_vocab_size != target.vocab_size {
        checks.push(check_line(
            "draft vocabulary",
            Verdict::Ok,
            format!("{} of {} tokens can be drafted", g.draft_vocab_size, target.vocab_size),
        ));
    }
    if g.markov_rank > 0 {
        let rows = model.shape("markov_w1.weight")?.first().copied().unwrap_or(0);
        if rows != target.vocab_size {
            checks.push(check_line(
                "Markov head",
                Verdict::Error,
                format!("markov_w1.weight has {rows} rows, the target {} tokens", target.vocab_size),
            ));
        }
    }
    Ok(checks)
}

/// Tap layers: there, and not shifted by the difference between a layer's input and its output.
pub fn check_taps(config: &BlockConfig, num_layers: usize) -> Vec<Check> {
    const NAME: &str = "tap layers";
    let taps = &config.taps.value;
    if taps.is_empty() {
        return vec![check_line(
            NAME,
            Verdict::Error,
            "the file names none (target_layers): an older converter wrote it; convert it again or give --target-layers",
        )];
    }
    let names = layer_names(taps);
    let convention = match &config.taps.source {
        Source::Key(key) if key.ends_with(".target_layers") => {
            format!("outputs of layers {names}; {key} holds each plus one")
        }
        source => format!("outputs of layers {names} ({source})"),
    };
    let layers: Vec<usize> =
        taps.iter().filter_map(|tap| if let TapPoint::Layer(layer) = tap { Some(*layer) } else { None }).collect();
    if let Some(layer) = layers.iter().find(|&&layer| layer >= num_layers) {
        return vec![check_line(
            NAME,
            Verdict::Error,
            format!("layer {layer} is tapped, the target has layers 0 to {} ({names})", num_layers - 1),
        )];
    }
    if layers.contains(&(num_layers - 1)) {
        return vec![check_line(
            NAME,
            Verdict::Notice,
            format!(
                "{convention}; the last layer is tapped: training stacks record it after the final norm, here it is raw"
            ),
        )];
    }
    if taps.windows(2).any(|pair| pair[0] >= pair[1]) {
        return vec![check_line(NAME, Verdict::Notice, format!("{convention}; they do not ascend"))];
    }
    let shift = (-1..=1).find(|shift| default_rule(num_layers, taps.len(), *shift).as_ref() == Some(&layers));
    vec![match shift {
        Some(shift) if shift != 0 => check_line(
            NAME,
            Verdict::Notice,
            format!(
                "{convention}; every one is z-lab's default layer {shift:+}: the difference between a layer's input and its output may have been applied once too often or not at all"
            ),
        ),
        _ => check_line(NAME, Verdict::Ok, convention),
    }]
}

/// z-lab's default layers, each moved by `shift`.
fn default_rule(num_layers: usize, taps: usize, shift: i64) -> Option<Vec<usize>> {
    if taps < 2 || num_layers < 8 {
        return None;
    }
    let layer = |i: usize| (1.0 + i as f64 * (num_layers as f64 - 4.0) / (taps as f64 - 1.0)).round_ties_even() as i64;
    (0..taps).map(|i| usize::try_from(layer(i) + shift).ok()).collect()
}

fn mask_token(config: &BlockConfig, target: &TargetFacts<'_>) -> Check {
    const NAME: &str = "mask token";
    let id = config.mask_token.value;
    let text = target
        .metadata
        .strings("tokenizer.ggml.tokens")
        .ok()
        .flatten()
        .and_then(|tokens| tokens.get(id as usize).map(|bytes| String::from_utf8_lossy(bytes).into_owned()));
    // ggml's token types: 1 is text.
    let kind = target.metadata.i32_array("tokenizer.ggml.token_type").ok().flatten();
    let ordinary = kind.and_then(|kinds| kinds.get(id as usize).copied()) == Some(1);
    let detail = format!("{id}, {:?} ({})", text.unwrap_or_default(), config.mask_token.source);
    match ordinary {
        true => check_line(
            NAME,
            Verdict::Notice,
            format!("{detail}: the target has ordinary text there, so the id may be another family's"),
        ),
        false => check_line(NAME, Verdict::Ok, detail),
    }
}

/// Width of the block, who predicts in it, and who sees whom.
fn block(config: &BlockConfig) -> Vec<Check> {
    let size = &config.block_size;
    let verdict = if matches!(size.source, Source::Default(_)) { Verdict::Notice } else { Verdict::Ok };
    let mut checks = vec![check_line("block size", verdict, format!("{} ({})", size.value, size.source))];
    let drafts = config.draft_len(size.value);
    let layout = match config.sample_from_anchor.value {
        true => format!("the anchor's row predicts too: {drafts} drafts ({})", config.sample_from_anchor.source),
        false => format!("the anchor's row predicts nothing: {drafts} drafts ({})", config.sample_from_anchor.source),
    };
    checks.push(check_line("slots", if drafts == 0 { Verdict::Notice } else { Verdict::Ok }, layout));
    let seen = if config.causal.value { "earlier rows only" } else { "whole" };
    checks.push(check_line("block attention", Verdict::Ok, format!("{seen} ({})", config.causal.source)));
    checks
}

/// Rotary embedding, windows and context length.
fn positions(config: &BlockConfig, target: &TargetFacts<'_>) -> Vec<Check> {
    let g = config.geometry;
    let mut checks = Vec::new();
    let base = &config.rope_base;
    let rotated =
        format!("base {} ({}), {} of {} dimensions turn", base.value, base.source, config.rope_dims.value, g.head_dim);
    let partial = config.rope_dims.value != g.head_dim;
    let target_base = target
        .metadata
        .str("general.architecture")
        .ok()
        .flatten()
        .and_then(|name| target.metadata.f32(&format!("{name}.rope.freq_base")).ok().flatten());
    checks.push(match target_base {
        Some(theirs) if theirs != base.value => check_line(
            "rotary embedding",
            Verdict::Notice,
            format!("{rotated}; the target's base is {theirs}: most drafters are trained with their target's"),
        ),
        _ if partial => check_line(
            "rotary embedding",
            Verdict::Notice,
            format!("{rotated}; a partial rotation is often inherited from the target's configuration by mistake"),
        ),
        _ if matches!(base.source, Source::Default(_)) => check_line("rotary embedding", Verdict::Notice, rotated),
        _ => check_line("rotary embedding", Verdict::Ok, rotated),
    });
    let scaled = config.rope_scaling.value != crate::program::RopeScaling::None;
    let target_scaled = target.rope.is_some_and(|rope| rope.magnitude != 1.0);
    if scaled && !target_scaled {
        checks.push(check_line(
            "rotary scaling",
            Verdict::Notice,
            format!("the drafter scales positions ({}), the target does not", config.rope_scaling.source),
        ));
    }
    let windowed = config.windows.value.iter().filter(|window| window.is_some()).count();
    let window = config.windows.value.iter().flatten().min();
    checks.push(match window {
        None => check_line("window", Verdict::Ok, format!("full attention in {} layers", g.num_layers)),
        Some(window) => check_line(
            "window",
            if *window <= config.block_size.value { Verdict::Notice } else { Verdict::Ok },
            format!("{window} positions in {windowed} of {} layers ({})", g.num_layers, config.windows.source),
        ),
    });
    checks.push(if g.train_ctx < target.train_ctx {
        check_line(
            "positions",
            Verdict::Notice,
            format!(
                "absolute; the drafter was trained to {}, the target to {}: beyond that acceptance may fall",
                g.train_ctx, target.train_ctx
            ),
        )
    } else {
        check_line("positions", Verdict::Ok, format!("absolute, trained to {}", g.train_ctx))
    });
    checks
}

/// A mean near two is what a norm looks like whose file stores it plus one and whose reader adds one, or the reverse.
fn norms(source: &BlockFile) -> Result<Check> {
    let mut model = source.model();
    for name in ["enc.output_norm.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"] {
        let Some(values) = model.values(name)? else { continue };
        let mean = values.iter().sum::<f32>() / values.len().max(1) as f32;
        if mean.abs() < 0.05 || (1.8..2.2).contains(&mean) {
            return Ok(check_line(
                "norms",
                Verdict::Notice,
                format!("{name} has a mean of {mean:.3}: it looks shifted by one"),
            ));
        }
    }
    Ok(check_line("norms", Verdict::Ok, "no weight looks shifted by one"))
}

/// The target that the drafter was trained for, where its file says.
fn provenance(drafter: &Metadata, target: &TargetFacts<'_>) -> Check {
    const NAME: &str = "provenance";
    let wanted = drafter.str("draftgauge.target.sha256").ok().flatten();
    let Some(wanted) = wanted else {
        return check_line(NAME, Verdict::Ok, "the file does not say which target it was trained for");
    };
    match crate::gguf::sha256(target.file) {
        Ok(found) if found == wanted => check_line(NAME, Verdict::Ok, "trained for this very target"),
        Ok(found) => check_line(
            NAME,
            Verdict::Notice,
            format!("trained for the target {}, this one is {}", short(wanted), short(&found)),
        ),
        Err(error) => check_line(NAME, Verdict::Notice, format!("the target cannot be read: {error}")),
    }
}

fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}
