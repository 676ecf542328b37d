//! A model in several files: names, agreement, and the one set they make.

use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Evidence, Result};
use crate::gguf::GgufFile;
use crate::gguf::metadata::Metadata;

/// Index of a shard, from 0.
pub(super) const SPLIT_NO: &str = "split.no";
/// Number of shards.
pub(super) const SPLIT_COUNT: &str = "split.count";
/// Number of tensors in all shards together.
pub(super) const SPLIT_TENSORS: &str = "split.tensors.count";

/// One file of a set.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Shard {
    /// The file.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// SHA-256 of the bytes of a file, its shards one after the other, in hexadecimal.
///
/// # Errors
/// `Error::Io` when a shard cannot be read.
pub fn sha256(file: &GgufFile) -> Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    for shard in file.shards() {
        let fail = |error| Error::io(&shard.path, error);
        let mut reader = std::fs::File::open(&shard.path).map_err(fail)?;
        loop {
            match reader.read(&mut buffer).map_err(fail)? {
                0 => break,
                read => hash.update(&buffer[..read]),
            }
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A path need not be text; a report must be.
fn lossy<S: serde::Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// `PREFIX-%05d-of-%05d.gguf`, taken apart; `number` counts from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShardName {
    pub(super) prefix: String,
    pub(super) number: u32,
    pub(super) count: u32,
}

impl ShardName {
    pub(super) fn parse(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
        };
        let (number, count) = (digits(number)?, digits(count)?);
        (1..=count).contains(&number).then(|| Self { prefix: prefix.to_string(), number, count })
    }

    /// The part of the name that tells shards apart: `00002-of-00003`.
    pub(super) fn label(number: u32, count: u32) -> String {
        format!("{number:05}-of-{count:05}")
    }

    /// The file of another shard of the set, beside `path`.
    pub(super) fn sibling(&self, path: &Path, number: u32) -> PathBuf {
        path.with_file_name(format!("{}-{}.gguf", self.prefix, Self::label(number, self.count)))
    }
}

/// The files that belong together, in order, judged by one of them.
pub(super) fn find(path: &Path, metadata: &Metadata, notices: &mut Vec<String>) -> Result<Vec<PathBuf>> {
    let name = ShardName::parse(path);
    let count = metadata.u16(SPLIT_COUNT)?.unwrap_or(0);
    if count <= 1 {
        if let Some(name) = name.filter(|name| name.count > 1) {
            notices.push(format!(
                "file name says shard {}, but the file has no {SPLIT_COUNT}: opened alone",
                ShardName::label(name.number, name.count)
            ));
        }
        return Ok(vec![path.to_path_buf()]);
    }
    let Some(name) = name else {
        return Err(Error::gguf(
            metadata
                .evidence("file is one of several but is not named like it", SPLIT_COUNT)
                .expected(format!("a name ending in -{}.gguf", ShardName::label(1, count.into())))
                .found(path.file_name().unwrap_or_default().to_string_lossy()),
        ));
    };
    if name.count != u32::from(count) {
        return Err(Error::gguf(
            metadata
                .evidence("number of shards differs from the file name", SPLIT_COUNT)
                .expected(name.count)
                .found(count),
        ));
    }
    let paths: Vec<PathBuf> = (1..=name.count).map(|number| name.sibling(path, number)).collect();
    let missing: Vec<String> = (1..=name.count)
        .zip(&paths)
        .filter(|(_, path)| !path.exists())
        .map(|(number, _)| ShardName::label(number, name.count))
        .collect();
    if !missing.is_empty() {
        // A name may claim 65,535 shards.
        let more = if missing.len() > 8 { format!(" and {} more", missing.len() - 8) } else { String::new() };
        let shown = missing[..missing.len().min(8)].join(", ");
        return Err(Error::gguf(
            Evidence::new(format!("missing {shown}{more}"))
                .path(path)
                .expected(format!("{} shards beside each other", name.count))
                .found(name.count as usize - missing.len()),
        ));
    }
    Ok(paths)
}

/// Checks that a shard says of itself what its place in the set says.
pub(super) fn check(metadata: &Metadata, index: usize, count: usize) -> Result<()> {
    if count == 1 {
        return Ok(());
    }
    let found = metadata.required_u16(SPLIT_COUNT)?;
    if usize::from(found) != count {
        return Err(Error::gguf(
            metadata.evidence("shards disagree about their number", SPLIT_COUNT).expected(count).found(found),
        ));
    }
    let found = metadata.required_u16(SPLIT_NO)?;
    if usize::from(found) != index {
        return Err(Error::gguf(
            metadata.evidence("shard has another index than its name", SPLIT_NO).expected(index).found(found),
        ));
    }
    Ok(())
}

/// Checks the number of tensors of the whole set against what the first shard says.
pub(super) fn check_total(metadata: &Metadata, found: usize) -> Result<()> {
    match metadata.i32(SPLIT_TENSORS)? {
        Some(expected) if usize::try_from(expected) != Ok(found) => Err(Error::gguf(
            metadata.evidence("shards hold another number of tensors", SPLIT_TENSORS).expected(expected).found(found),
        )),
        _ => Ok(()),
    }
}
