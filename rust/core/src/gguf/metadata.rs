//! Key and value pairs in the order of the file, with getters as strict about types as llama.cpp's.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Evidence, Result};
use crate::gguf::value::{Array, Strings, Value};

/// Insertion-ordered metadata.
///
/// A getter gives `None` for an absent key and an error naming file, key and both types for one of another type;
/// its `required_*` twin makes absence an error too.
#[derive(Debug, Clone, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
    path: Option<Arc<PathBuf>>,
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Metadata {
    /// Empty metadata of no file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empty metadata whose errors name `path`.
    pub fn of_file(path: &Path) -> Self {
        Self { path: Some(Arc::new(path.to_path_buf())), ..Self::default() }
    }

    /// The file that errors name.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_ref().map(|path| path.as_path())
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + '_ {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> + '_ {
        self.entries.iter().map(|(key, _)| key.as_str())
    }

    /// The value of a key, of whatever type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.entries[at].1)
    }

    /// Whether the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Sets a key: in its place if it is there, else at the end. Gives back what was there.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        if let Some(&at) = self.index.get(&key) {
            return Some(std::mem::replace(&mut self.entries[at].1, value));
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        None
    }

    /// Removes a key and closes the gap.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.remove(key)?;
        let (_, value) = self.entries.remove(at);
        for place in self.index.values_mut().filter(|place| **place > at) {
            *place -= 1;
        }
        Some(value)
    }

    /// Evidence about a key of this file, for errors that callers raise themselves.
    pub fn evidence(&self, what: impl Into<String>, key: &str) -> Evidence {
        let evidence = Evidence::new(what).key(key);
        match &self.path {
            Some(path) => evidence.path(path.as_path()),
            None => evidence,
        }
    }

    fn wrong_type(&self, key: &str, expected: &str, found: &Value) -> Error {
        Error::gguf(self.evidence("metadata value has the wrong type", key).expected(expected).found(found.type_name()))
    }

    /// The error of a key that must be there and is not.
    pub fn missing(&self, key: &str, expected: &str) -> Error {
        Error::gguf(self.evidence("metadata key is missing", key).expected(expected).found("nothing"))
    }

    /// A string value.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => text.as_str().map(Some).ok_or_else(|| {
                Error::gguf(
                    self.evidence("metadata value is not text", key).expected("UTF-8").found(format!("{text:?}")),
                )
            }),
            Some(other) => Err(self.wrong_type(key, "string", other)),
        }
    }

    /// A string value that must be there.
    pub fn required_str(&self, key: &str) -> Result<&str> {
        self.str(key)?.ok_or_else(|| self.missing(key, "string"))
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::String(strings))) => Ok(Some(strings)),
            Some(other) => Err(self.wrong_type(key, "array of string", other)),
        }
    }

    /// An array of booleans.
    pub fn bool_array(&self, key: &str) -> Result<Option<&[bool]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Bool(values))) => Ok(Some(values)),
            Some(other) => Err(self.wrong_type(key, "array of bool", other)),
        }
    }

    /// An array of 32-bit floats.
    pub fn f32_array(&self, key: &str) -> Result<Option<&[f32]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::F32(values))) => Ok(Some(values)),
            Some(other) => Err(self.wrong_type(key, "array of f32", other)),
        }
    }

    /// An array of u32, or of i32 without negatives: writers use either for the same thing.
    pub fn u32_array(&self, key: &str) -> Result<Option<Vec<u32>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => match array {
                Array::U32(values) => Ok(Some(values.clone())),
                Array::I32(values) => values
                    .iter()
                    .map(|&value| {
                        u32::try_from(value).map_err(|_| {
                            Error::gguf(
                                self.evidence("metadata array has a negative element", key)
                                    .expected("0 or more")
                                    .found(value),
                            )
                        })
                    })
                    .collect::<Result<Vec<u32>>>()
                    .map(Some),
                _ => Err(self.wrong_type(key, "array of u32 or i32", &Value::Array(array.clone()))),
            },
            Some(other) => Err(self.wrong_type(key, "array of u32 or i32", other)),
        }
    }

    /// An array of i32, or of u32 below 2^31.
    pub fn i32_array(&self, key: &str) -> Result<Option<Vec<i32>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::I32(values))) => Ok(Some(values.clone())),
            Some(Value::Array(Array::U32(values))) => values
                .iter()
                .map(|&value| {
                    i32::try_from(value).map_err(|_| {
                        Error::gguf(
                            self.evidence("metadata array has an element out of range", key)
                                .expected("below 2^31")
                                .found(value),
                        )
                    })
                })
                .collect::<Result<Vec<i32>>>()
                .map(Some),
            Some(other) => Err(self.wrong_type(key, "array of i32 or u32", other)),
        }
    }

    /// A per-layer value: an array of exactly `n` elements, or a scalar that holds for all of them.
    pub fn u32_or_array(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>> {
        match self.get(key) {
            Some(Value::Array(_)) => self.exact_length(key, n, self.u32_array(key)?),
            _ => Ok(self.u32(key)?.map(|value| vec![value; n])),
        }
    }

    /// A per-layer value: an array of exactly `n` elements, or a scalar that holds for all of them.
    pub fn f32_or_array(&self, key: &str, n: usize) -> Result<Option<Vec<f32>>> {
        match self.get(key) {
            Some(Value::Array(_)) => self.exact_length(key, n, self.f32_array(key)?.map(<[f32]>::to_vec)),
            _ => Ok(self.f32(key)?.map(|value| vec![value; n])),
        }
    }

    /// A per-layer value: an array of exactly `n` elements, or a scalar that holds for all of them.
    pub fn bool_or_array(&self, key: &str, n: usize) -> Result<Option<Vec<bool>>> {
        match self.get(key) {
            Some(Value::Array(_)) => self.exact_length(key, n, self.bool_array(key)?.map(<[bool]>::to_vec)),
            _ => Ok(self.bool(key)?.map(|value| vec![value; n])),
        }
    }

    fn exact_length<T>(&self, key: &str, n: usize, values: Option<Vec<T>>) -> Result<Option<Vec<T>>> {
        match values {
            Some(values) if values.len() != n => Err(Error::gguf(
                self.evidence("metadata array has the wrong length", key).expected(n).found(values.len()),
            )),
            other => Ok(other),
        }
    }
}

macro_rules! scalar_getters {
    ($($name:ident $required:ident $variant:ident $ty:ty),*) => {
        impl Metadata {
            $(
                #[doc = concat!("A value of type ", stringify!($name), ".")]
                pub fn $name(&self, key: &str) -> Result<Option<$ty>> {
                    match self.get(key) {
                        None => Ok(None),
                        Some(Value::$variant(value)) => Ok(Some(*value)),
                        Some(other) => Err(self.wrong_type(key, stringify!($name), other)),
                    }
                }

                #[doc = concat!("A value of type ", stringify!($name), " that must be there.")]
                pub fn $required(&self, key: &str) -> Result<$ty> {
                    self.$name(key)?.ok_or_else(|| self.missing(key, stringify!($name)))
                }
            )*
        }
    };
}
scalar_getters!(
    u16 required_u16 U16 u16,
    u32 required_u32 U32 u32,
    i32 required_i32 I32 i32,
    u64 required_u64 U64 u64,
    f32 required_f32 F32 f32,
    bool required_bool Bool bool
);
