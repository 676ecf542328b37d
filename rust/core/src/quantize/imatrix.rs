//! Importance matrices: one weight a column, from llama-imatrix's GGUF files or its older binary ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Evidence, Result};
use crate::gguf::GgufFile;

/// Weights by tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Imatrix {
    /// The file.
    pub path: PathBuf,
    /// The text that it was made of, where the file tells.
    pub dataset: Option<String>,
    /// Chunks of that text.
    pub chunks: u32,
    entries: BTreeMap<String, Vec<f32>>,
}

/// More entries than any model has tensors.
const MAX_ENTRIES: i32 = 1 << 20;

impl Imatrix {
    /// Reads a file of either form.
    ///
    /// # Errors
    /// `Error::Io` when it cannot be read, `Error::Gguf` when it is no importance matrix or breaks off.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| Error::io(path, error))?;
        if bytes.starts_with(b"GGUF") { Self::from_gguf(path) } else { Self::from_legacy(path, &bytes) }
    }

    fn from_gguf(path: &Path) -> Result<Self> {
        let file = GgufFile::open(path)?;
        let metadata = file.metadata();
        let bad = |tensor: &str, expected: String, found: String| {
            Error::gguf(
                Evidence::new("importance matrix cannot be used")
                    .path(path)
                    .tensor(tensor)
                    .expected(expected)
                    .found(found),
            )
        };
        let floats = |name: &str| -> Result<Vec<f32>> {
            let info = file.required_tensor(name)?;
            match info.ty {
                Some(draftgauge_kernels::quant::QuantType::F32) => {
                    let (words, _) = file.data(info)?.as_chunks::<4>();
                    Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
                }
                _ => Err(bad(name, "F32".to_owned(), info.type_name())),
            }
        };
        let mut entries = BTreeMap::new();
        for info in file.tensors() {
            let Some(name) = info.name.strip_suffix(".in_sum2") else { continue };
            let (sums, counts) = (floats(&info.name)?, floats(&format!("{name}.counts"))?);
            if counts.is_empty() || sums.len() % counts.len() != 0 {
                return Err(bad(&info.name, format!("a multiple of {} values", counts.len()), sums.len().to_string()));
            }
            let columns = sums.len() / counts.len();
            let weights = sums.chunks(columns.max(1)).zip(&counts).flat_map(|(sums, &count)| {
                // An expert that saw nothing weighs all columns alike.
                sums.iter().map(move |sum| if count > 0.0 { sum / count } else { 1.0 })
            });
            entries.insert(name.to_owned(), weights.collect());
        }
        if entries.is_empty() {
            return Err(bad("NAME.in_sum2", "sums of squares".to_owned(), "none".to_owned()));
        }
        let dataset = metadata.strings("imatrix.datasets")?.and_then(|names| names.str(0).map(str::to_owned));
        let chunks = metadata.u32("imatrix.chunk_count")?.unwrap_or(0);
        Ok(Self { path: path.to_path_buf(), dataset, chunks, entries })
    }

    fn from_legacy(path: &Path, bytes: &[u8]) -> Result<Self> {
        let torn = |expected: &str| {
            Error::gguf(Evidence::new("file is no importance matrix").path(path).expected(expected).found("its end"))
        };
        let mut rest = bytes;
        let mut take = |count: usize, what: &str| -> Result<&[u8]> {
            let (head, tail) = rest.split_at_checked(count).ok_or_else(|| torn(what))?;
            rest = tail;
            Ok(head)
        };
        let int = |bytes: &[u8]| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let count = int(take(4, "a number of entries")?);
        if !(1..=MAX_ENTRIES).contains(&count) {
            return Err(torn(&format!("1 to {MAX_ENTRIES} entries instead of {count}")));
        }
        let size = |value: i32| usize::try_from(value).map_err(|_| torn("a length of 0 or more"));
        let mut entries = BTreeMap::new();
        for _ in 0..count {
            let length = size(int(take(4, "a name's length")?))?;
            let name = String::from_utf8_lossy(take(length, "a name")?).into_owned();
            let calls = int(take(4, "a number of calls")?);
            let length = size(int(take(4, "a number of values")?))?;
            let values = take(length.checked_mul(4).ok_or_else(|| torn("values"))?, "values")?;
            let divisor = if calls > 0 { calls as f32 } else { 1.0 };
            let (words, _) = values.as_chunks::<4>();
            entries.insert(name, words.iter().map(|word| f32::from_le_bytes(*word) / divisor).collect());
        }
        // Newer files of this form end with the number of chunks and the text's name.
        let chunks = take(4, "").map(int).unwrap_or(0);
        let dataset = take(4, "")
            .map(int)
            .ok()
            .and_then(|length| usize::try_from(length).ok())
            .and_then(|length| take(length, "").ok().map(|name| String::from_utf8_lossy(name).into_owned()));
        Ok(Self { path: path.to_path_buf(), dataset, chunks: chunks.max(0) as u32, entries })
    }

    /// Number of tensors that have weights.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Weights of a tensor with `columns` columns in `slices` slices; none where the file has none.
    ///
    /// # Errors
    /// `Error::Gguf` when the file has another number of weights for it; an embedding table's are ignored then.
    pub fn weights(&self, name: &str, columns: usize, slices: usize) -> Result<Option<&[f32]>> {
        match self.entries.get(name) {
            None => Ok(None),
            Some(weights) if weights.len() == columns * slices => Ok(Some(weights)),
            Some(_) if name == "token_embd.weight" => Ok(None),
            Some(weights) => Err(Error::gguf(
                Evidence::new("importance matrix is of another model")
                    .path(&self.path)
                    .tensor(name)
                    .expected(format!("{} weights", columns * slices))
                    .found(weights.len()),
            )),
        }
    }
}
