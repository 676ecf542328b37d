//! llama-quantize's names: each a default type, and a set of rules.

use draftgauge_kernels::quant::QuantType;

use crate::error::{Error, Evidence, Result};

/// One of llama-quantize's types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileType {
    /// Its name, in capitals.
    pub name: &'static str,
    /// `general.file_type` (llama.cpp's `llama_ftype`).
    pub id: u32,
    /// The type of tensors that no rule names.
    pub default: QuantType,
}

const fn file_type(name: &'static str, id: u32, default: QuantType) -> FileType {
    FileType { name, id, default }
}

/// Every type that files are quantized to here, by its own name.
pub const FILE_TYPES: &[FileType] = &[
    file_type("F32", 0, QuantType::F32),
    file_type("F16", 1, QuantType::F16),
    file_type("BF16", 32, QuantType::BF16),
    file_type("Q8_0", 7, QuantType::Q8_0),
    file_type("Q4_0", 2, QuantType::Q4_0),
    file_type("Q4_1", 3, QuantType::Q4_1),
    file_type("Q5_0", 8, QuantType::Q5_0),
    file_type("Q5_1", 9, QuantType::Q5_1),
    file_type("Q2_K", 10, QuantType::Q2K),
    file_type("Q2_K_S", 21, QuantType::Q2K),
    file_type("Q3_K_S", 11, QuantType::Q3K),
    file_type("Q3_K_M", 12, QuantType::Q3K),
    file_type("Q3_K_L", 13, QuantType::Q3K),
    file_type("Q4_K_S", 14, QuantType::Q4K),
    file_type("Q4_K_M", 15, QuantType::Q4K),
    file_type("Q5_K_S", 16, QuantType::Q5K),
    file_type("Q5_K_M", 17, QuantType::Q5K),
    file_type("Q6_K", 18, QuantType::Q6K),
];

/// Names that stand for others.
const ALIASES: &[(&str, &str)] = &[("Q3_K", "Q3_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M")];

/// llama-quantize's names whose quantizers are searches over grids, which a later release may bring.
const LATER: &[&str] = &[
    "IQ1_S",
    "IQ1_M",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ2_M",
    "IQ3_XXS",
    "IQ3_XS",
    "IQ3_S",
    "IQ3_M",
    "IQ4_NL",
    "IQ4_XS",
    "TQ1_0",
    "TQ2_0",
    "MXFP4_MOE",
    "NVFP4",
    "Q1_0",
    "Q2_0",
];

impl FileType {
    /// The type of a name, in any case of letters, or of llama.cpp's number for it.
    ///
    /// # Errors
    /// `Error::Argument` for an unknown name, which lists the known ones, or one that a later release brings.
    pub fn parse(name: &str) -> Result<Self> {
        let upper = name.to_ascii_uppercase();
        let own = ALIASES.iter().find(|(alias, _)| *alias == upper).map_or(upper.as_str(), |(_, own)| own);
        let number = own.parse().ok();
        if let Some(known) = FILE_TYPES.iter().find(|known| known.name == own || number == Some(known.id)) {
            return Ok(*known);
        }
        let names: Vec<_> = FILE_TYPES.iter().map(|known| known.name).collect();
        let what = if LATER.contains(&own) { "a later release quantizes to this type" } else { "unknown type" };
        Err(Error::argument(Evidence::new(what).key("type").expected(names.join(", ")).found(name)))
    }
}
