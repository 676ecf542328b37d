//! Tiny files made byte by byte, so that a test can tell any lie.

use std::path::PathBuf;

use draftgauge_core::Result;
use draftgauge_core::gguf::{GgufFile, ValueType};

/// A header under construction, with its data.
#[derive(Clone)]
pub struct Builder {
    version: u32,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
    alignment: usize,
}

/// Length and bytes.
pub fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

impl Builder {
    pub fn new() -> Self {
        Self { version: 3, pairs: Vec::new(), tensors: Vec::new(), data: Vec::new(), alignment: 32 }
    }

    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.pair("general.alignment", ValueType::U32, &alignment.to_le_bytes())
    }

    pub fn pair(self, key: &str, ty: ValueType, value: &[u8]) -> Self {
        self.raw_pair(key.as_bytes(), ty.id(), value)
    }

    pub fn raw_pair(mut self, key: &[u8], type_id: u32, value: &[u8]) -> Self {
        self.pairs.push([&text(key)[..], &type_id.to_le_bytes(), value].concat());
        self
    }

    pub fn str(self, key: &str, value: &str) -> Self {
        self.pair(key, ValueType::String, &text(value.as_bytes()))
    }

    pub fn u16(self, key: &str, value: u16) -> Self {
        self.pair(key, ValueType::U16, &value.to_le_bytes())
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.pair(key, ValueType::U32, &value.to_le_bytes())
    }

    pub fn i32(self, key: &str, value: i32) -> Self {
        self.pair(key, ValueType::I32, &value.to_le_bytes())
    }

    pub fn array(self, key: &str, element: u32, count: u64, elements: &[u8]) -> Self {
        let value = [&element.to_le_bytes()[..], &count.to_le_bytes(), elements].concat();
        self.pair(key, ValueType::Array, &value)
    }

    /// A tensor info with dimensions in the order of the file, and no data.
    pub fn info(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        let mut info = text(name.as_bytes());
        info.extend((dims.len() as u32).to_le_bytes());
        info.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        info.extend(type_id.to_le_bytes());
        info.extend(offset.to_le_bytes());
        self.tensors.push(info);
        self
    }

    /// A tensor with its data, placed where it belongs.
    pub fn tensor(self, name: &str, dims: &[u64], type_id: u32, data: &[u8]) -> Self {
        let offset = self.data.len() as u64;
        let mut built = self.info(name, dims, type_id, offset);
        built.data.extend_from_slice(data);
        built.data.resize(built.data.len().next_multiple_of(built.alignment), 0);
        built
    }

    /// The file. The magic is spelled in numbers so that a typing error in the reader's constant shows.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0x47, 0x47, 0x55, 0x46];
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        out.extend(self.tensors.concat());
        if !self.tensors.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
        }
        out.extend(&self.data);
        out
    }
}

/// Floats as bytes.
pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A good file with two keys and two tensors.
pub fn small() -> Builder {
    Builder::new()
        .str("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .tensor("a", &[3, 2], 0, &f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        .tensor("b", &[32], 8, &[7; 34])
}

/// Opens bytes as `a.gguf` without a disk.
pub fn open(bytes: &[u8]) -> Result<GgufFile> {
    GgufFile::from_bytes("a.gguf", bytes.to_vec())
}

/// The message with which bytes are refused.
pub fn refusal(bytes: &[u8]) -> String {
    match open(bytes) {
        Ok(file) => panic!("the file was accepted, with problems {:?}", file.problems()),
        Err(error) => error.to_string(),
    }
}

/// A folder that goes away, with files of these bytes.
pub fn files(files: &[(&str, Vec<u8>)]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let paths = files
        .iter()
        .map(|(name, bytes)| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        })
        .collect();
    (folder, paths)
}
