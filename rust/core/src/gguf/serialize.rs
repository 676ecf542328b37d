//! Metadata as JSON: numbers as they are, a float that is not finite as null, text that is not UTF-8 with U+FFFD.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::gguf::metadata::Metadata;
use crate::gguf::value::{Array, Strings, Text, Value};

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_lossy())
    }
}

impl Serialize for Strings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(String::from_utf8_lossy))
    }
}

impl Serialize for Array {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::U8(a) => a.serialize(serializer),
            Self::I8(a) => a.serialize(serializer),
            Self::U16(a) => a.serialize(serializer),
            Self::I16(a) => a.serialize(serializer),
            Self::U32(a) => a.serialize(serializer),
            Self::I32(a) => a.serialize(serializer),
            Self::F32(a) => a.serialize(serializer),
            Self::Bool(a) => a.serialize(serializer),
            Self::String(a) => a.serialize(serializer),
            Self::Array(a) => a.serialize(serializer),
            Self::U64(a) => a.serialize(serializer),
            Self::I64(a) => a.serialize(serializer),
            Self::F64(a) => a.serialize(serializer),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::U8(v) => v.serialize(serializer),
            Self::I8(v) => v.serialize(serializer),
            Self::U16(v) => v.serialize(serializer),
            Self::I16(v) => v.serialize(serializer),
            Self::U32(v) => v.serialize(serializer),
            Self::I32(v) => v.serialize(serializer),
            Self::F32(v) => v.serialize(serializer),
            Self::Bool(v) => v.serialize(serializer),
            Self::String(v) => v.serialize(serializer),
            Self::Array(v) => v.serialize(serializer),
            Self::U64(v) => v.serialize(serializer),
            Self::I64(v) => v.serialize(serializer),
            Self::F64(v) => v.serialize(serializer),
        }
    }
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}
