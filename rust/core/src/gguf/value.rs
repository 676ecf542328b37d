//! Metadata values: the thirteen types of the format, arrays kept typed and strings kept packed.

use std::fmt;
use std::sync::Arc;

use crate::backend::Bytes;

/// The type of a metadata value, with the id it has in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ValueType {
    /// 8-bit unsigned integer.
    U8 = 0,
    /// 8-bit signed integer.
    I8 = 1,
    /// 16-bit unsigned integer.
    U16 = 2,
    /// 16-bit signed integer.
    I16 = 3,
    /// 32-bit unsigned integer.
    U32 = 4,
    /// 32-bit signed integer.
    I32 = 5,
    /// 32-bit float.
    F32 = 6,
    /// One byte, nonzero is true.
    Bool = 7,
    /// Length and bytes.
    String = 8,
    /// Element type, count and elements.
    Array = 9,
    /// 64-bit unsigned integer.
    U64 = 10,
    /// 64-bit signed integer.
    I64 = 11,
    /// 64-bit float.
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type of an id, if the format has it.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    /// The id in the file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Fewest bytes that a value of this type takes in a file.
    pub fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }

    /// The name that messages use.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A string as the file has it: meant to be UTF-8, kept as bytes so that a file can be written again unchanged.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Text(Box<[u8]>);

impl Text {
    /// Takes bytes over.
    pub fn from_bytes(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if the bytes are UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text, with U+FFFD for what is not UTF-8.
    pub fn to_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_lossy(), f)
    }
}

/// An array of strings in the file's own packing: length, bytes, length, bytes, and so on.
///
/// The bytes are shared with the mapped file, so that a vocabulary of 262,144 tokens costs one offset a token.
#[derive(Clone)]
pub struct Strings {
    data: Bytes,
    // Where each string's length field starts, and where the last string ends. [len + 1]
    starts: Arc<Vec<u64>>,
}

impl Strings {
    /// Joins packed bytes with the places of their length fields, which the reader has checked.
    pub(super) fn from_packed(data: Bytes, starts: Vec<u64>) -> Self {
        debug_assert_eq!(starts.last().copied(), Some(data.len() as u64));
        Self { data, starts: Arc::new(starts) }
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of string `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let (start, end) = (*self.starts.get(index)?, *self.starts.get(index + 1)?);
        self.data.get(start as usize + 8..end as usize)
    }

    /// String `index`, if it is there and UTF-8.
    pub fn str(&self, index: usize) -> Option<&str> {
        std::str::from_utf8(self.get(index)?).ok()
    }

    /// The strings in order, as bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }

    /// The packed bytes, as they stand in a file.
    pub fn packed(&self) -> &[u8] {
        &self.data
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let (mut data, mut starts) = (Vec::new(), vec![0]);
        for string in strings {
            let bytes = string.as_ref();
            data.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            data.extend_from_slice(bytes);
            starts.push(data.len() as u64);
        }
        Self::from_packed(Bytes::from_vec(data), starts)
    }
}

impl PartialEq for Strings {
    fn eq(&self, other: &Self) -> bool {
        self.packed() == other.packed()
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

/// An array of one element type.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is named after its element type")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    /// Arrays in an array, which llama.cpp refuses.
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Array {
    /// The type of the elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(a) => a.len(),
            Self::I8(a) => a.len(),
            Self::U16(a) => a.len(),
            Self::I16(a) => a.len(),
            Self::U32(a) => a.len(),
            Self::I32(a) => a.len(),
            Self::F32(a) => a.len(),
            Self::Bool(a) => a.len(),
            Self::String(a) => a.len(),
            Self::Array(a) => a.len(),
            Self::U64(a) => a.len(),
            Self::I64(a) => a.len(),
            Self::F64(a) => a.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index` as a value of its own.
    pub fn get(&self, index: usize) -> Option<Value> {
        Some(match self {
            Self::U8(a) => Value::U8(*a.get(index)?),
            Self::I8(a) => Value::I8(*a.get(index)?),
            Self::U16(a) => Value::U16(*a.get(index)?),
            Self::I16(a) => Value::I16(*a.get(index)?),
            Self::U32(a) => Value::U32(*a.get(index)?),
            Self::I32(a) => Value::I32(*a.get(index)?),
            Self::F32(a) => Value::F32(*a.get(index)?),
            Self::Bool(a) => Value::Bool(*a.get(index)?),
            Self::String(a) => Value::String(Text::from_bytes(a.get(index)?)),
            Self::Array(a) => Value::Array(a.get(index)?.clone()),
            Self::U64(a) => Value::U64(*a.get(index)?),
            Self::I64(a) => Value::I64(*a.get(index)?),
            Self::F64(a) => Value::F64(*a.get(index)?),
        })
    }
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is named after its type")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Text),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The type as messages name it: an array with its element type.
    pub fn type_name(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.element_type()),
            other => other.value_type().to_string(),
        }
    }

    /// The value as an integer, whichever integer type it has.
    pub fn to_int(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
}

macro_rules! from {
    ($($variant:ident $ty:ty),*) => {
        $(
            impl From<$ty> for Value {
                fn from(value: $ty) -> Self {
                    Self::$variant(value)
                }
            }
            impl From<Vec<$ty>> for Value {
                fn from(values: Vec<$ty>) -> Self {
                    Self::Array(Array::$variant(values))
                }
            }
        )*
    };
}
from!(U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, F32 f32, Bool bool, U64 u64, I64 i64, F64 f64);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<Strings> for Value {
    fn from(strings: Strings) -> Self {
        Self::Array(Array::String(strings))
    }
}
