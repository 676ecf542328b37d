//! The configuration of a block drafter as a value: each field with where it comes from, open to overrides.

use std::fmt;

use crate::error::{Error, Evidence, Result};
use crate::program::{Activation, RopeScaling, TapPoint};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A metadata key of the file.
    Key(String),
    /// A tensor of the file, by its presence or shape.
    Tensor(String),
    /// No key: the rule that decided instead.
    Default(&'static str),
    /// The user.
    Override,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => f.write_str(key),
            Self::Tensor(name) => write!(f, "tensor {name}"),
            Self::Default("") => f.write_str("default"),
            Self::Default(rule) => write!(f, "default ({rule})"),
            Self::Override => f.write_str("override"),
        }
    }
}

/// A value with its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Field<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub source: Source,
}

impl<T> Field<T> {
    /// A value of a metadata key.
    pub fn key(key: impl Into<String>, value: T) -> Self {
        Self { value, source: Source::Key(key.into()) }
    }

    /// A value that a rule gives.
    pub fn default(rule: &'static str, value: T) -> Self {
        Self { value, source: Source::Default(rule) }
    }

    /// A value of a key, or of a rule where the file has no such key.
    pub fn key_or(key: impl Into<String>, found: Option<T>, rule: &'static str, otherwise: T) -> Self {
        match found {
            Some(value) => Self::key(key, value),
            None => Self::default(rule, otherwise),
        }
    }

    fn set(&mut self, value: T) {
        *self = Self { value, source: Source::Override };
    }
}

/// What happens to the target's features before they are injected. All but the first are controls: a drafter that
/// proposes as well with them is not using its features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureControl {
    /// As the target gives them.
    Real,
    /// All zero.
    Zero,
    /// The channels of each tap in another order, the same for every position.
    Shuffle,
}

impl FeatureControl {
    const NAMES: [(&'static str, Self); 3] = [("real", Self::Real), ("zero", Self::Zero), ("shuffle", Self::Shuffle)];

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, control)| *control == self).map_or("", |(name, _)| name)
    }
}

/// Sizes that the weights fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of drafter layers.
    pub num_layers: usize,
    /// Width of its residual stream.
    pub hidden_size: usize,
    /// Width of its MLP.
    pub feed_forward: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Token ids that its Markov table and embedding know: the target's vocabulary.
    pub vocab_size: usize,
    /// Rows of its head: the vocabulary's size, or that of `d2t`.
    pub draft_vocab_size: usize,
    /// Rank of the Markov head; 0 without one.
    pub markov_rank: usize,
    /// Context length it was trained for.
    pub train_ctx: usize,
}

/// Everything about a block drafter that is not a weight.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockConfig {
    /// Sizes that the weights fix.
    pub geometry: Geometry,
    /// Width of the trained block, anchor included.
    pub block_size: Field<usize>,
    /// Token that fills the undrafted places of the block.
    pub mask_token: Field<u32>,
    /// Points of the target whose values are its features, in the order in which they are joined.
    pub taps: Field<Vec<TapPoint>>,
    /// Whether the anchor's own row predicts: `block_size` drafts, else one fewer.
    pub sample_from_anchor: Field<bool>,
    /// Whether a row of the block sees only the rows before it.
    pub causal: Field<bool>,
    /// Sliding window of each layer.
    pub windows: Field<Vec<Option<usize>>>,
    /// Base of the rotary frequencies.
    pub rope_base: Field<f32>,
    /// Rotated dimensions of a head.
    pub rope_dims: Field<usize>,
    /// How positions past the trained context are brought back.
    pub rope_scaling: Field<RopeScaling>,
    /// Sections of a multimodal rotary embedding; all zero for the ordinary one.
    pub rope_sections: Field<[usize; 4]>,
    /// Added to the mean square of every norm.
    pub norm_eps: Field<f32>,
    /// Factor of attention scores.
    pub attention_scale: Field<f32>,
    /// Factor of the attention's output.
    pub value_scale: Field<f32>,
    /// Factor of the embeddings of the block's tokens.
    pub embedding_scale: Field<f32>,
    /// Gate function of the MLP.
    pub activation: Field<Activation>,
    /// Whether the Markov head's bias is added, where there is one.
    pub markov: Field<bool>,
    /// Whether the confidence head is read, where there is one.
    pub confidence: Field<bool>,
    /// What happens to features before injection.
    pub features: Field<FeatureControl>,
}

/// A value that a user gives a field.
pub type OverrideValue = serde_json::Value;

impl BlockConfig {
    /// Most drafts of a block of `width` rows.
    pub fn draft_len(&self, width: usize) -> usize {
        width - self.first_slot().min(width)
    }

    /// First row of the block that predicts.
    pub fn first_slot(&self) -> usize {
        usize::from(!self.sample_from_anchor.value)
    }

    /// The same configuration with some fields replaced.
    ///
    /// # Errors
    /// `Error::Argument` for a field that is not there or a value that it cannot have.
    pub fn with_overrides<'a>(
        mut self,
        overrides: impl IntoIterator<Item = (&'a str, &'a OverrideValue)>,
    ) -> Result<Self> {
        for (name, value) in overrides {
            let Some((_, _, set)) = FIELDS.iter().find(|(known, _, _)| *known == name) else {
                let names: Vec<_> = FIELDS.iter().map(|(name, _, _)| *name).collect();
                return Err(Error::argument(
                    Evidence::new("drafter has no such setting").key(name).expected(names.join(", ")).found(name),
                ));
            };
            set(&mut self, value).map_err(|expected| {
                Error::argument(
                    Evidence::new("value of a drafter's setting cannot be used")
                        .key(name)
                        .expected(expected)
                        .found(value),
                )
            })?;
        }
        Ok(self)
    }

    /// Every field: name, value and source, written out.
    pub fn fields(&self) -> Vec<(&'static str, String, String)> {
        let geometry = &self.geometry;
        let sizes = [
            ("num_layers", geometry.num_layers),
            ("hidden_size", geometry.hidden_size),
            ("intermediate_size", geometry.feed_forward),
            ("num_attention_heads", geometry.num_heads),
            ("num_key_value_heads", geometry.num_kv_heads),
            ("head_dim", geometry.head_dim),
            ("vocab_size", geometry.vocab_size),
            ("draft_vocab_size", geometry.draft_vocab_size),
            ("markov_rank", geometry.markov_rank),
            ("max_position_embeddings", geometry.train_ctx),
        ];
        sizes
            .into_iter()
            .map(|(name, size)| (name, size.to_string(), "weights".to_owned()))
            .chain(FIELDS.iter().filter_map(|(name, show, _)| {
                let (value, source) = show(self)?;
                Some((*name, value, source.to_string()))
            }))
            .collect()
    }
}

type Show = fn(&BlockConfig) -> Option<(String, &Source)>;
type Set = fn(&mut BlockConfig, &OverrideValue) -> std::result::Result<(), String>;

/// One line a field that can be shown and overridden.
const FIELDS: &[(&str, Show, Set)] = &[
    ("block_size", |c| shown(&c.block_size), |c, v| whole(v, 1, 4096).map(|x| c.block_size.set(x))),
    (
        "mask_token_id",
        |c| shown(&c.mask_token),
        |c, v| whole(v, 0, c.geometry.vocab_size - 1).map(|x| c.mask_token.set(x as u32)),
    ),
    (
        "target_layer_ids",
        |c| Some((layer_names(&c.taps.value), &c.taps.source)),
        |c, v| layers(v).and_then(|taps| same_number(taps, c.taps.value.len())).map(|taps| c.taps.set(taps)),
    ),
    (
        "tap_offset",
        |_| None,
        |c, v| {
            let offset = v.as_i64().ok_or("a whole number")?;
            let moved = c.taps.value.iter().map(|tap| moved(*tap, offset)).collect::<Option<_>>();
            moved
                .map(|taps| c.taps.set(taps))
                .ok_or_else(|| "an offset that stays at or after the embeddings".to_owned())
        },
    ),
    ("sample_from_anchor", |c| shown(&c.sample_from_anchor), |c, v| flag(v).map(|x| c.sample_from_anchor.set(x))),
    ("causal", |c| shown(&c.causal), |c, v| flag(v).map(|x| c.causal.set(x))),
    (
        "sliding_window",
        |c| Some((window_names(&c.windows.value), &c.windows.source)),
        |c, v| windows(v, c.geometry.num_layers).map(|x| c.windows.set(x)),
    ),
    ("rope_theta", |c| shown(&c.rope_base), |c, v| number(v, 1.0).map(|x| c.rope_base.set(x))),
    (
        "rope_dimension_count",
        |c| shown(&c.rope_dims),
        |c, v| {
            let x = whole(v, 2, c.geometry.head_dim)?;
            if x % 2 == 1 {
                return Err("an even number".to_owned());
            }
            c.rope_dims.set(x);
            Ok(())
        },
    ),
    (
        "rope_scaling",
        |c| Some((scaling_name(&c.rope_scaling.value), &c.rope_scaling.source)),
        |c, v| match v.as_str() {
            Some("none") => {
                c.rope_scaling.set(RopeScaling::None);
                Ok(())
            }
            _ => Err("\"none\"; other scalings are set by the file's keys".to_owned()),
        },
    ),
    (
        "rope_sections",
        |c| Some((format!("{:?}", c.rope_sections.value), &c.rope_sections.source)),
        |_, _| Err("no value: sections are set by the file's key".to_owned()),
    ),
    ("rms_norm_eps", |c| shown(&c.norm_eps), |c, v| number(v, 0.0).map(|x| c.norm_eps.set(x))),
    ("attention_scale", |c| shown(&c.attention_scale), |c, v| number(v, 0.0).map(|x| c.attention_scale.set(x))),
    ("attention_value_scale", |c| shown(&c.value_scale), |c, v| number(v, 0.0).map(|x| c.value_scale.set(x))),
    ("embedding_scale", |c| shown(&c.embedding_scale), |c, v| number(v, 0.0).map(|x| c.embedding_scale.set(x))),
    (
        "hidden_act",
        |c| Some((activation_name(c.activation.value).to_owned(), &c.activation.source)),
        |c, v| {
            let named = v.as_str().and_then(activation);
            named.map(|x| c.activation.set(x)).ok_or_else(|| "silu, gelu or gelu_pytorch_tanh".to_owned())
        },
    ),
    (
        "markov",
        |c| shown(&c.markov),
        |c, v| {
            let wanted = flag(v)?;
            if wanted && c.geometry.markov_rank == 0 {
                return Err("false, since the file has no Markov head".to_owned());
            }
            c.markov.set(wanted);
            Ok(())
        },
    ),
    (
        "confidence_head",
        |c| shown(&c.confidence),
        |c, v| match (flag(v)?, &c.confidence.source) {
            (true, Source::Default(_)) => Err("false, since the file has no confidence head".to_owned()),
            (wanted, _) => {
                c.confidence.set(wanted);
                Ok(())
            }
        },
    ),
    (
        "features",
        |c| Some((c.features.value.name().to_owned(), &c.features.source)),
        |c, v| {
            let known = FeatureControl::NAMES.iter().find(|(name, _)| Some(*name) == v.as_str());
            known.map(|(_, x)| c.features.set(*x)).ok_or_else(|| "real, zero or shuffle".to_owned())
        },
    ),
];

fn shown<T: fmt::Display>(field: &Field<T>) -> Option<(String, &Source)> {
    Some((field.value.to_string(), &field.source))
}

fn whole(value: &OverrideValue, least: usize, most: usize) -> std::result::Result<usize, String> {
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number.filter(|number| (least..=most).contains(number)).ok_or_else(|| format!("a whole number, {least} to {most}"))
}

fn number(value: &OverrideValue, above: f32) -> std::result::Result<f32, String> {
    let number = value.as_f64().map(|number| number as f32);
    number
        .filter(|number| number.is_finite() && *number > above)
        .ok_or_else(|| format!("a finite number above {above}"))
}

fn flag(value: &OverrideValue) -> std::result::Result<bool, String> {
    value.as_bool().ok_or_else(|| "true or false".to_owned())
}

fn layers(value: &OverrideValue) -> std::result::Result<Vec<TapPoint>, String> {
    let point = |layer: &OverrideValue| match layer {
        OverrideValue::String(name) if name == "embeddings" => Some(TapPoint::Embeddings),
        layer if layer.as_i64() == Some(-1) => Some(TapPoint::Embeddings),
        layer => layer.as_u64().and_then(|layer| usize::try_from(layer).ok()).map(TapPoint::Layer),
    };
    let points = value.as_array().and_then(|layers| layers.iter().map(point).collect::<Option<Vec<_>>>());
    points.ok_or_else(|| "a list of layers, each a number or \"embeddings\"".to_owned())
}

/// The number of taps is fixed by the width of `fc`, unless the file never named them.
fn same_number(taps: Vec<TapPoint>, number: usize) -> std::result::Result<Vec<TapPoint>, String> {
    if number == 0 || taps.len() == number { Ok(taps) } else { Err(format!("{number} layers")) }
}

fn moved(tap: TapPoint, offset: i64) -> Option<TapPoint> {
    let layer = match tap {
        TapPoint::Embeddings => -1,
        TapPoint::Layer(layer) => i64::try_from(layer).ok()?,
        TapPoint::Final => return None,
    };
    match layer.checked_add(offset)? {
        -1 => Some(TapPoint::Embeddings),
        layer => usize::try_from(layer).ok().map(TapPoint::Layer),
    }
}

fn windows(value: &OverrideValue, num_layers: usize) -> std::result::Result<Vec<Option<usize>>, String> {
    let window = |value: &OverrideValue| match value {
        OverrideValue::Null => Some(None),
        value => value.as_u64().and_then(|n| usize::try_from(n).ok()).map(|n| (n > 0).then_some(n)),
    };
    let found = match value {
        OverrideValue::Array(values) if values.len() == num_layers => values.iter().map(window).collect(),
        OverrideValue::Array(_) => None,
        value => window(value).map(|window| vec![window; num_layers]),
    };
    found.ok_or_else(|| format!("a window, or a list of {num_layers}; 0 or null is full attention"))
}

/// The name of a tap: the id of the layer whose output it is.
pub fn layer_names(taps: &[TapPoint]) -> String {
    let names: Vec<String> = taps
        .iter()
        .map(|tap| match tap {
            TapPoint::Embeddings => "embeddings".to_owned(),
            TapPoint::Layer(layer) => layer.to_string(),
            TapPoint::Final => "final".to_owned(),
        })
        .collect();
    format!("[{}]", names.join(", "))
}

fn window_names(windows: &[Option<usize>]) -> String {
    let names: Vec<String> =
        windows.iter().map(|window| window.map_or("full".to_owned(), |window| window.to_string())).collect();
    format!("[{}]", names.join(", "))
}

fn scaling_name(scaling: &RopeScaling) -> String {
    match scaling {
        RopeScaling::None => "none".to_owned(),
        RopeScaling::Linear { factor } => format!("linear, factor {factor}"),
        RopeScaling::Yarn { factor, original_ctx, .. } => {
            format!("yarn, factor {factor}, original context {original_ctx}")
        }
    }
}

/// The gate function of a name that files use.
pub fn activation(name: &str) -> Option<Activation> {
    match name {
        "silu" => Some(Activation::Silu),
        "gelu" | "gelu_pytorch_tanh" => Some(Activation::GeluTanh),
        _ => None,
    }
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
    }
}
