//! Which tensor gets which type: llama-quantize's rules (llama.cpp b11434, `src/llama-quant.cpp`), for the types here.

use draftgauge_kernels::quant::QuantType;

use super::file_type::FileType;

/// What the rules know of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Number of layers, MTP ones included.
    pub num_layers: usize,
    /// Query heads for each key and value head of layer 0.
    pub gqa: usize,
    /// Number of experts; 0 without.
    pub experts: usize,
    /// Whether the model has a head of its own.
    pub has_output: bool,
    /// Number of tensors that are like `attn_v`.
    pub value_like: usize,
    /// Whether an importance matrix is at hand.
    pub imatrix: bool,
    /// Whether the model counts as a 70B one.
    pub is_70b: bool,
}

/// The part of a model that a tensor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Category {
    Output,
    Embedding,
    ValueLike,
    Key,
    AttentionOutput,
    Down,
    Other,
}

/// Names that are never quantized, by what they contain.
const EXCLUDED: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
];

/// Whether a tensor is quantized at all. `shape` is row-major; leading extents of one do not count as dimensions.
pub fn is_quantized(name: &str, shape: &[u64]) -> bool {
    let dimensions = shape.iter().skip_while(|&&extent| extent == 1).count();
    let whole = ["position_embd.weight", "token_types.weight"];
    dimensions >= 2
        && name.ends_with("weight")
        && !whole.contains(&name)
        && !EXCLUDED.iter().any(|part| name.contains(part))
}

/// Whether layer `i` of `n` is one of those that get more bits: the first and last eighth, and every third between.
fn more(i: usize, n: usize) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// Chooses types in the order in which llama-quantize visits tensors: some rules count what came before.
#[derive(Debug, Clone)]
pub struct Chooser {
    file_type: FileType,
    facts: ModelFacts,
    values: usize,
    downs: usize,
}

impl Chooser {
    /// Begins with the first tensor.
    pub fn new(file_type: FileType, facts: ModelFacts) -> Self {
        Self { file_type, facts, values: 0, downs: 0 }
    }

    fn category(&self, name: &str) -> Category {
        let tied = matches!(name, "token_embd.weight" | "per_layer_token_embd.weight") && !self.facts.has_output;
        let value_like = ["attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight"];
        match name {
            "output.weight" => Category::Output,
            "token_embd.weight" if tied => Category::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Category::Embedding,
            _ if value_like.iter().any(|part| name.contains(part)) => Category::ValueLike,
            _ if name.contains("attn_k.weight") => Category::Key,
            _ if name.contains("attn_output.weight") => Category::AttentionOutput,
            _ if name.contains("ffn_down") => Category::Down,
            _ => Category::Other,
        }
    }

    /// The type of the next tensor by the rules, before anything about its row length is known to fit.
    pub fn choose(&mut self, name: &str, columns: usize) -> QuantType {
        let (default, facts) = (self.file_type.default, self.facts);
        let category = self.category(name);
        let (values, downs) = (self.values, self.downs);
        self.values += usize::from(category == Category::ValueLike);
        self.downs += usize::from(category == Category::Down);
        if matches!(default, QuantType::F32 | QuantType::F16 | QuantType::BF16) {
            return default;
        }
        // With experts, a layer has several such tensors: its number is in the name.
        let down = if facts.experts > 1 { layer(name).unwrap_or(downs) } else { downs };
        match category {
            Category::Output if default == QuantType::Q8_0 || !columns.is_multiple_of(default.block_len()) => {
                QuantType::Q8_0
            }
            Category::Output => QuantType::Q6K,
            Category::ValueLike => self.value_like(values),
            Category::Key if facts.experts == 8 => QuantType::Q8_0,
            Category::AttentionOutput => self.attention_output(),
            Category::Down => self.down(down),
            Category::Embedding | Category::Key | Category::Other => default,
        }
    }

    fn value_like(&self, i: usize) -> QuantType {
        let (default, facts) = (self.file_type.default, self.facts);
        let chosen = match self.file_type.name {
            "Q2_K" if facts.gqa >= 4 => QuantType::Q4K,
            "Q2_K" => QuantType::Q3K,
            "Q2_K_S" if facts.gqa >= 4 => QuantType::Q4K,
            "Q3_K_M" if i < 2 => QuantType::Q5K,
            "Q3_K_M" => QuantType::Q4K,
            "Q3_K_L" => QuantType::Q5K,
            "Q4_K_S" if i < 4 => QuantType::Q5K,
            "Q4_K_M" | "Q5_K_M" if more(i, facts.value_like) => QuantType::Q6K,
            _ => default,
        };
        if facts.experts == 8 {
            return QuantType::Q8_0;
        }
        if facts.is_70b && matches!(chosen, QuantType::Q3K | QuantType::Q4K) { QuantType::Q5K } else { chosen }
    }

    fn attention_output(&self) -> QuantType {
        let low = ["Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M"];
        match self.file_type.name {
            name if self.facts.experts == 8 && low.contains(&name) => QuantType::Q5K,
            _ if self.facts.experts == 8 => self.file_type.default,
            "Q2_K" => QuantType::Q3K,
            "Q3_K_M" => QuantType::Q4K,
            "Q3_K_L" => QuantType::Q5K,
            _ => self.file_type.default,
        }
    }

    fn down(&self, i: usize) -> QuantType {
        let n = self.facts.num_layers;
        match self.file_type.name {
            "Q2_K" => QuantType::Q3K,
            "Q2_K_S" if i < n / 8 => QuantType::Q4K,
            "Q3_K_M" if i < n / 16 => QuantType::Q5K,
            "Q3_K_M" => QuantType::Q4K,
            "Q3_K_L" => QuantType::Q5K,
            "Q4_K_S" if i < n / 8 => QuantType::Q5K,
            "Q4_K_M" | "Q5_K_M" if more(i, n) => QuantType::Q6K,
            "Q4_0" if self.facts.imatrix && i < n / 8 => QuantType::Q4_1,
            "Q5_0" if self.facts.imatrix && i < n / 8 => QuantType::Q5_1,
            _ => self.file_type.default,
        }
    }
}

/// The layer that a name belongs to.
pub fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// The type whose blocks divide rows of `columns`: the chosen one, its stand-in, or F16.
pub fn fitting(chosen: QuantType, columns: usize) -> QuantType {
    let divides = |ty: QuantType| columns.is_multiple_of(ty.block_len());
    if divides(chosen) {
        return chosen;
    }
    let stand_in = match chosen {
        QuantType::Q2K | QuantType::Q3K => QuantType::Q4_0,
        QuantType::Q4K => QuantType::Q5_0,
        QuantType::Q5K => QuantType::Q5_1,
        QuantType::Q6K => QuantType::Q8_0,
        _ => QuantType::F16,
    };
    if divides(stand_in) { stand_in } else { QuantType::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bits_go_to_both_ends_and_every_third_between() {
        let chosen: Vec<usize> = (0..30).filter(|&i| more(i, 30)).collect();
        assert_eq!(chosen, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]);
        assert_eq!((0..5).filter(|&i| more(i, 5)).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn a_mixed_type_counts_its_tensors() {
        let facts = ModelFacts { num_layers: 16, gqa: 4, has_output: true, value_like: 16, ..ModelFacts::default() };
        let mut chooser = Chooser::new(FileType::parse("q4_k_m").unwrap(), facts);
        assert_eq!(chooser.choose("output.weight", 256), QuantType::Q6K);
        assert_eq!(chooser.choose("token_embd.weight", 256), QuantType::Q4K);
        let values: Vec<_> = (0..16).map(|l| chooser.choose(&format!("blk.{l}.attn_v.weight"), 256)).collect();
        for (layer, &ty) in values.iter().enumerate() {
            assert_eq!(ty, if more(layer, 16) { QuantType::Q6K } else { QuantType::Q4K }, "{layer}");
        }
        assert_eq!(chooser.choose("blk.0.attn_q.weight", 256), QuantType::Q4K);
    }

    #[test]
    fn rows_that_do_not_divide_fall_back() {
        assert_eq!(fitting(QuantType::Q4K, 576), QuantType::Q5_0);
        assert_eq!(fitting(QuantType::Q6K, 576), QuantType::Q8_0);
        assert_eq!(fitting(QuantType::Q2K, 512), QuantType::Q2K);
        assert_eq!(fitting(QuantType::Q4_0, 48), QuantType::F16);
    }

    #[test]
    fn vectors_norms_and_one_column_matrices_stay() {
        assert!(is_quantized("blk.0.attn_q.weight", &[64, 64]));
        assert!(is_quantized("markov_w1.weight", &[300, 8]));
        for (name, shape) in [
            ("blk.0.attn_norm.weight", &[1, 64][..]),
            ("output_norm.weight", &[64, 64]),
            ("conf_proj.weight", &[1, 72]),
            ("d2t", &[64, 64]),
            ("blk.0.ffn_gate_inp.weight", &[8, 64]),
        ] {
            assert!(!is_quantized(name, shape), "{name}");
        }
    }
}
