//! GGUF files: reading, checking, writing.
//!
//! A file (or a set of shards) is mapped and its header read once, with every count, length, offset and product checked
//! before use; tensor data is touched when it is asked for. Opening is lenient where that is safe: what llama.cpp would
//! refuse but leaves the rest readable is listed under [`GgufFile::problems`]. Loading a model asks for
//! [`GgufFile::require_valid`].

mod cursor;
mod encode;
mod mapping;
mod metadata;
mod overrides;
mod reader;
mod serialize;
mod shards;
mod tensor_info;
mod value;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::Bytes;
use crate::error::{Error, Evidence, Result};

pub use mapping::Mapping;
pub use metadata::Metadata;
pub use overrides::{Override, OverrideValue};
pub use shards::{Shard, sha256};
pub use tensor_info::TensorInfo;
pub use value::{Array, Strings, Text, Value, ValueType};
pub use writer::{TensorSpec, Writer, write, write_version};

/// An opened file or set of shards; wrap it in an `Arc` to share it between threads.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    version: u32,
    alignment: u32,
    shards: Vec<Shard>,
    sections: Vec<Section>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    findings: Vec<Evidence>,
    problems: Vec<String>,
    notices: Vec<String>,
}

/// The data section of one shard.
#[derive(Debug)]
struct Section {
    mapping: Arc<Mapping>,
    start: u64,
}

impl Section {
    fn bytes(&self) -> &[u8] {
        (*self.mapping).as_ref()
    }
}

impl GgufFile {
    /// Opens a file, or the whole set when the file is one shard of several.
    ///
    /// # Errors
    /// `Error::Io` when a file cannot be read, `Error::Gguf` naming file, key or tensor, expected and found when the
    /// header cannot be read or is ambiguous.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mapping = Arc::new(Mapping::open(path)?);
        let opened = reader::parse(&mapping, path)?;
        let mut notices = Vec::new();
        let paths = shards::find(path, &opened.metadata, &mut notices)?;
        let count = paths.len();
        let mut parts = Vec::new();
        let mut opened = Some((mapping, opened));
        for shard_path in paths {
            let (mapping, part) = match opened.take_if(|_| shard_path == path) {
                Some(opened) => opened,
                None => {
                    let mapping = Arc::new(Mapping::open(&shard_path)?);
                    let part = reader::parse(&mapping, &shard_path)?;
                    (mapping, part)
                }
            };
            shards::check(&part.metadata, parts.len(), count)?;
            parts.push((shard_path, mapping, part));
        }
        Self::join(path, parts, notices)
    }

    /// Reads a file that is in memory; errors call it `name`. A single shard of several is refused, having no siblings.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn from_bytes(name: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self> {
        let name = name.as_ref();
        let mapping = Arc::new(Mapping::from_vec(bytes));
        let parts = reader::parse(&mapping, name)?;
        if let Some(count) = parts.metadata.u16(shards::SPLIT_COUNT)?.filter(|&count| count > 1) {
            return Err(Error::gguf(
                Evidence::new("bytes are one shard of several")
                    .path(name)
                    .key(shards::SPLIT_COUNT)
                    .expected(1)
                    .found(count),
            ));
        }
        Self::join(name, vec![(name.to_path_buf(), mapping, parts)], Vec::new())
    }

    fn join(path: &Path, parts: Vec<(PathBuf, Arc<Mapping>, reader::Parts)>, notices: Vec<String>) -> Result<Self> {
        let several = parts.len() > 1;
        let mut file = Self {
            path: path.to_path_buf(),
            version: 0,
            alignment: 0,
            shards: Vec::new(),
            sections: Vec::new(),
            metadata: Metadata::of_file(path),
            tensors: Vec::new(),
            index: HashMap::new(),
            findings: Vec::new(),
            problems: Vec::new(),
            notices,
        };
        for (number, (shard_path, mapping, part)) in parts.into_iter().enumerate() {
            for mut info in part.tensors {
                info.shard = number;
                if file.index.insert(info.name.clone(), file.tensors.len()).is_some() {
                    return Err(Error::gguf(
                        Evidence::new("tensor occurs in two shards").path(&shard_path).tensor(info.name),
                    ));
                }
                file.tensors.push(info);
            }
            for evidence in part.problems.shown {
                // The path is the same for every line unless there are several files.
                let located = evidence.clone().path(&shard_path);
                file.problems.push(if several { located.to_string() } else { evidence.to_string() });
                file.findings.push(located);
            }
            if part.problems.hidden > 0 {
                file.problems.push(format!("{} further problems", part.problems.hidden));
            }
            file.notices.extend(part.notices);
            if number == 0 {
                (file.version, file.alignment, file.metadata) = (part.version, part.alignment, part.metadata);
            }
            file.shards.push(Shard { path: shard_path, bytes: (*mapping).as_ref().len() as u64 });
            file.sections.push(Section { mapping, start: part.data_start });
        }
        if several {
            shards::check_total(&file.metadata, file.tensors.len())?;
        }
        Ok(file)
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Alignment of tensor data in the first shard.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// The files, in order.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The metadata: that of the first shard, where there are several.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors in the order of the file, shard after shard.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// A tensor by name, which must be there.
    pub fn required_tensor(&self, name: &str) -> Result<&TensorInfo> {
        self.tensor(name).ok_or_else(|| {
            Error::gguf(Evidence::new("tensor is missing").path(&self.path).tensor(cursor::preview(name)))
        })
    }

    /// What llama.cpp would refuse though the file could be opened; one line each.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// What was read in a way worth knowing; one line each.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Refuses a file with problems: what loading a model starts with.
    pub fn require_valid(&self) -> Result<()> {
        match self.findings.first() {
            Some(evidence) => Err(Error::gguf(evidence.clone())),
            None => Ok(()),
        }
    }

    /// The data of a tensor of this file.
    ///
    /// # Errors
    /// `Error::Gguf` when the type is unknown or the data does not lie in the file.
    pub fn data(&self, info: &TensorInfo) -> Result<&[u8]> {
        let (start, len) = self.range(info)?;
        Ok(&self.sections[info.shard].bytes()[start..start + len])
    }

    /// The data of a tensor as shared bytes that keep the file mapped.
    ///
    /// # Errors
    /// As [`GgufFile::data`].
    pub fn bytes(&self, info: &TensorInfo) -> Result<Bytes> {
        let (start, len) = self.range(info)?;
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::clone(&self.sections[info.shard].mapping) as _;
        Ok(Bytes::new(owner, start, len))
    }

    /// Place of a tensor's data in its shard's mapping, checked.
    fn range(&self, info: &TensorInfo) -> Result<(usize, usize)> {
        if info.ty.is_none() {
            let file_type = match self.metadata.get("general.file_type").and_then(Value::to_int) {
                Some(id) => format!("; general.file_type is {id}"),
                None => String::new(),
            };
            return Err(self.tensor_error(
                info,
                Evidence::new("tensor has an unknown type")
                    .expected("a type of ggml")
                    .found(format!("id {}{file_type}", info.type_id)),
            ));
        }
        self.extent(info)
    }

    /// Place of a tensor's data whatever its type, checked against the mapping.
    fn extent(&self, info: &TensorInfo) -> Result<(usize, usize)> {
        let Some(section) = self.sections.get(info.shard) else {
            return Err(self.tensor_error(
                info,
                Evidence::new("tensor names a shard that is not there")
                    .expected(format!("below {}", self.sections.len()))
                    .found(info.shard),
            ));
        };
        let available = section.bytes().len() as u64;
        let start = section.start.checked_add(info.offset);
        let end = start.and_then(|start| start.checked_add(info.nbytes));
        match (start, end) {
            // An empty tensor takes no byte, wherever its offset points.
            (Some(start), Some(end)) if end <= available => Ok((start as usize, info.nbytes as usize)),
            _ if info.nbytes == 0 => Ok((0, 0)),
            _ => Err(self.tensor_error(
                info,
                Evidence::new("tensor data lies past the end of the file")
                    .expected(format!("at most {} bytes of data", available.saturating_sub(section.start)))
                    .found(format!("offset {} and {} bytes", info.offset, info.nbytes)),
            )),
        }
    }

    /// The data of a tensor whatever its type.
    fn extent_bytes(&self, info: &TensorInfo) -> Result<&[u8]> {
        let (start, len) = self.extent(info)?;
        Ok(&self.sections[info.shard].bytes()[start..start + len])
    }

    fn tensor_error(&self, info: &TensorInfo, evidence: Evidence) -> Error {
        let path = self.shards.get(info.shard).map_or(&self.path, |shard| &shard.path);
        Error::gguf(evidence.path(path).tensor(cursor::preview(&info.name)))
    }
}
