//! The bytes of a header: the reader's mirror image.

use crate::gguf::metadata::Metadata;
use crate::gguf::reader::MAGIC;
use crate::gguf::tensor_info::TensorInfo;
use crate::gguf::value::{Array, Value};

/// Magic, version, counts, metadata and tensor infos, without the padding that follows.
pub(super) fn header(version: u32, metadata: &Metadata, tensors: &[TensorInfo]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(version.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        string(&mut out, key.as_bytes());
        out.extend(value.value_type().id().to_le_bytes());
        self::value(&mut out, value);
    }
    for info in tensors {
        string(&mut out, info.name.as_bytes());
        out.extend((info.shape.len() as u32).to_le_bytes());
        out.extend(info.shape.iter().rev().flat_map(|size| size.to_le_bytes()));
        out.extend(info.type_id.to_le_bytes());
        out.extend(info.offset.to_le_bytes());
    }
    out
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::String(text) => string(out, text.as_bytes()),
        Value::Array(values) => array(out, values),
    }
}

fn array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.element_type().id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(a) => out.extend(a),
        Array::I8(a) => out.extend(a.iter().flat_map(|v| v.to_le_bytes())),
        Array::U16(a) => out.extend(a.iter().flat_map(|v| v.to_le_bytes())),
        Array::I16(a) => out.extend(a.iter().flat_map(|v| v.to_le_bytes())),
        Array::U32(a) => out.extend(a.iter().flat_map(|v| v.to_le_bytes())),
        Array::I32(a) => out.extend(a.iter().flat_map(|v| v.to_le_bytes())),
        Array::F32(a) => out.extend(a.iter().flat_map(|v| v.to_le_bytes())),
        Array::U64(a) => out.extend(a.iter().flat_map(|v| v.to_le_bytes())),
        Array::I64(a) => out.extend(a.iter().flat_map(|v| v.to_le_bytes())),
        Array::F64(a) => out.extend(a.iter().flat_map(|v| v.to_le_bytes())),
        Array::Bool(a) => out.extend(a.iter().map(|&v| u8::from(v))),
        Array::String(strings) => out.extend(strings.packed()),
        Array::Array(arrays) => arrays.iter().for_each(|inner| self::array(out, inner)),
    }
}
