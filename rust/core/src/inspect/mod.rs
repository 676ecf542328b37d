//! What `inspect` tells of a file: structs that serialize to the JSON of the interface.

mod diff;
mod validate;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use crate::gguf::{GgufFile, Metadata, Shard, TensorInfo, Value};

pub use diff::{Changed, Difference, Form, Sides, TensorDifference, compare};
pub use validate::{validate, validate_tensor};

/// A file in full.
#[derive(Debug, Serialize)]
pub struct Inspection<'a> {
    /// The path that was opened.
    pub path: String,
    /// Version of the format.
    pub version: u32,
    /// Alignment of tensor data.
    pub alignment: u32,
    /// The files.
    pub shards: &'a [Shard],
    /// `general.architecture`, where it is text.
    pub architecture: Option<&'a str>,
    /// `general.name`, where it is text.
    pub name: Option<&'a str>,
    /// Number of elements of all tensors.
    pub parameters: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Tensors and bytes a type, most bytes first.
    #[serde(serialize_with = "as_map")]
    pub types: Vec<(String, TypeTotal)>,
    /// All keys and values.
    pub metadata: &'a Metadata,
    /// All tensors.
    pub tensors: Vec<TensorRow<'a>>,
    /// What llama.cpp would refuse or a model could not run with.
    pub problems: Vec<String>,
    /// What is worth knowing.
    pub notices: Vec<String>,
    /// How a drafter fits, where one was given.
    pub pairing: Option<Pairing>,
}

/// The share of one tensor type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TypeTotal {
    /// Number of tensors.
    pub tensors: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

/// One tensor of a report.
#[derive(Debug, Serialize)]
pub struct TensorRow<'a> {
    /// Name.
    pub name: &'a str,
    /// Type, such as `Q4_K`.
    #[serde(rename = "type")]
    pub ty: String,
    /// Row-major shape.
    pub shape: &'a [u64],
    /// First byte, from the start of the shard's data.
    pub offset: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Index of the shard, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<usize>,
}

/// How a drafter fits its target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pairing {
    /// One line a check.
    pub checks: Vec<Check>,
}

/// One check of a pairing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// How it came out.
    pub verdict: Verdict,
    /// The two sides.
    pub detail: String,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It fits.
    Ok,
    /// It fits, with something to know.
    Notice,
    /// It does not fit.
    Error,
}

/// Gathers the report on a file; data is not read.
pub fn inspect(file: &GgufFile) -> Inspection<'_> {
    let metadata = file.metadata();
    let text = |key: &str| match metadata.get(key) {
        Some(Value::String(text)) => text.as_str(),
        _ => None,
    };
    let several = file.shards().len() > 1;
    let mut notices = file.notices().to_vec();
    if text("general.architecture").is_none() {
        notices.push("general.architecture is missing: the file is no model by itself".into());
    }
    Inspection {
        path: file.path().to_string_lossy().into_owned(),
        version: file.version(),
        alignment: file.alignment(),
        shards: file.shards(),
        architecture: text("general.architecture"),
        name: text("general.name"),
        parameters: file.tensors().iter().map(TensorInfo::num_elements).fold(0, u64::saturating_add),
        bytes: file.shards().iter().map(|shard| shard.bytes).sum(),
        types: types(file.tensors()),
        metadata,
        tensors: file
            .tensors()
            .iter()
            .map(|info| TensorRow {
                name: &info.name,
                ty: info.type_name(),
                shape: &info.shape,
                offset: info.offset,
                bytes: info.nbytes,
                shard: several.then_some(info.shard),
            })
            .collect(),
        problems: file.problems().to_vec(),
        notices,
        pairing: None,
    }
}

fn types(tensors: &[TensorInfo]) -> Vec<(String, TypeTotal)> {
    let mut totals = std::collections::BTreeMap::<u32, (String, TypeTotal)>::new();
    for info in tensors {
        let (_, total) = totals.entry(info.type_id).or_insert_with(|| (info.type_name(), TypeTotal::default()));
        total.tensors += 1;
        total.bytes = total.bytes.saturating_add(info.nbytes);
    }
    let mut types: Vec<_> = totals.into_values().collect();
    types.sort_by_key(|(_, total)| std::cmp::Reverse(total.bytes));
    types
}

fn as_map<S: Serializer>(pairs: &[(String, TypeTotal)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(pairs.len()))?;
    for (key, value) in pairs {
        map.serialize_entry(key, value)?;
    }
    map.end()
}
