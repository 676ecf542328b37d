//! A file mapped into memory, read-only.

use std::fs::File;
use std::path::Path;

use crate::error::{Error, Evidence, Result};

/// The bytes of one file, paged in by the system as they are touched, or held in memory.
#[derive(Debug)]
pub struct Mapping(Source);

#[derive(Debug)]
enum Source {
    Map(memmap2::Mmap),
    Memory(Vec<u8>),
}

impl Mapping {
    /// Maps a regular file.
    ///
    /// # Errors
    /// `Error::Io` when the system refuses, `Error::Gguf` when the path is no regular file (opening a pipe would block).
    pub fn open(path: &Path) -> Result<Self> {
        let kind = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
        if !kind.is_file() {
            let found = if kind.is_dir() { "a directory" } else { "a device or pipe" };
            return Err(Error::gguf(
                Evidence::new("cannot open as GGUF").path(path).expected("a regular file").found(found),
            ));
        }
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        if file.metadata().map_err(|e| Error::io(path, e))?.len() == 0 {
            // An empty file cannot be mapped everywhere, and has nothing to map.
            return Ok(Self::from_vec(Vec::new()));
        }
        // SAFETY: the mapping is private to this value and never written through. Its contents change only if another
        // process rewrites the file in place, which no reader of mapped weights can prevent; every length and offset
        // taken from it is copied out once and checked before use, so such a change can spoil values but not bounds.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        Ok(Self(Source::Map(map)))
    }

    /// Bytes that are in memory already.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self(Source::Memory(bytes))
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        match &self.0 {
            Source::Map(map) => map,
            Source::Memory(bytes) => bytes,
        }
    }
}
