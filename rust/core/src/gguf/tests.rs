//! Reading: what is accepted, what is refused and in which words, and that no header can make the reader allocate.

use std::path::{Path, PathBuf};

use crate::gguf::{GgufFile, ValueType};

/// Builds a header byte by byte. The magic is written out so that a typing error in the reader's constant shows.
#[derive(Clone)]
pub(crate) struct Builder {
    version: u32,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
    alignment: usize,
}

pub(crate) fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self { version: 3, pairs: Vec::new(), tensors: Vec::new(), data: Vec::new(), alignment: 32 }
    }

    pub(crate) fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    pub(crate) fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.pair("general.alignment", ValueType::U32, &alignment.to_le_bytes())
    }

    pub(crate) fn pair(mut self, key: &str, ty: ValueType, value: &[u8]) -> Self {
        self.pairs.push([&text(key.as_bytes())[..], &ty.id().to_le_bytes(), value].concat());
        self
    }

    pub(crate) fn str(self, key: &str, value: &str) -> Self {
        self.pair(key, ValueType::String, &text(value.as_bytes()))
    }

    pub(crate) fn u16(self, key: &str, value: u16) -> Self {
        self.pair(key, ValueType::U16, &value.to_le_bytes())
    }

    pub(crate) fn array(self, key: &str, element: u32, count: u64, elements: &[u8]) -> Self {
        let value = [&element.to_le_bytes()[..], &count.to_le_bytes(), elements].concat();
        self.pair(key, ValueType::Array, &value)
    }

    /// A tensor info with dimensions in the order of the file and no data.
    pub(crate) fn info(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        let mut info = text(name.as_bytes());
        info.extend((dims.len() as u32).to_le_bytes());
        info.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        info.extend(type_id.to_le_bytes());
        info.extend(offset.to_le_bytes());
        self.tensors.push(info);
        self
    }

    /// A tensor with its data, placed where it belongs.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], type_id: u32, data: &[u8]) -> Self {
        let offset = self.data.len() as u64;
        let mut built = self.info(name, dims, type_id, offset);
        built.data.extend_from_slice(data);
        built.data.resize(built.data.len().next_multiple_of(built.alignment), 0);
        built
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
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

    pub(crate) fn write(&self, path: &Path) -> PathBuf {
        std::fs::write(path, self.bytes()).unwrap();
        path.to_path_buf()
    }
}

/// A folder that goes away, with a file of these bytes.
pub(crate) fn file_of(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn open(bytes: &[u8]) -> (tempfile::TempDir, crate::Result<GgufFile>) {
    let (folder, path) = file_of(bytes);
    let file = GgufFile::open(&path);
    (folder, file)
}

/// The message of the refusal, without the folder's name.
fn refusal(bytes: &[u8]) -> String {
    let (folder, file) = open(bytes);
    match file {
        Ok(_) => panic!("the file was accepted"),
        Err(error) => error.to_string().replace(&format!("{}/", folder.path().display()), ""),
    }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn small() -> Builder {
    Builder::new()
        .str("general.architecture", "llama")
        .pair("llama.block_count", ValueType::U32, &2u32.to_le_bytes())
        .tensor("a", &[3, 2], 0, &f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        .tensor("b", &[32], 8, &[7; 34])
}

#[test]
fn reads_metadata_tensors_and_data() {
    let (_folder, file) = open(&small().bytes());
    let file = file.unwrap();
    assert_eq!((file.version(), file.alignment()), (3, 32));
    assert_eq!(file.metadata().required_str("general.architecture").unwrap(), "llama");
    assert_eq!(file.metadata().required_u32("llama.block_count").unwrap(), 2);
    let a = file.tensor("a").unwrap();
    assert_eq!((a.shape.as_slice(), a.nbytes, a.type_name().as_str()), (&[2, 3][..], 24, "F32"));
    assert_eq!(file.data(a).unwrap(), f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let b = file.tensor("b").unwrap();
    assert_eq!((b.offset, &*file.bytes(b).unwrap()), (32, &[7u8; 34][..]));
    assert_eq!(file.problems(), &[] as &[String]);
    file.require_valid().unwrap();
}

#[test]
fn c01_huge_counts_in_a_tiny_file() {
    let mut bytes = vec![0x47, 0x47, 0x55, 0x46, 3, 0, 0, 0];
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(500_000_000u64.to_le_bytes());
    assert_eq!(bytes.len(), 24);
    assert_eq!(refusal(&bytes), "metadata count exceeds the file: a.gguf: expected at most 0, found 500000000");
}
