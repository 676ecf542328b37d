//! `--override-kv KEY=TYPE:VALUE`: metadata as the user wants it read.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Evidence, Result};
use crate::gguf::metadata::Metadata;
use crate::gguf::value::Value;

/// A value in place of what the file says.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    /// The key.
    pub key: String,
    /// The value.
    pub value: OverrideValue,
}

/// The four kinds that llama.cpp's option has.
#[derive(Debug, Clone, PartialEq)]
pub enum OverrideValue {
    /// `int:`, for every integer type.
    Int(i64),
    /// `float:`, for both float types.
    Float(f64),
    /// `bool:true` or `bool:false`.
    Bool(bool),
    /// `str:`, the rest of the argument.
    Str(String),
}

impl OverrideValue {
    fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Bool(_) => "bool",
            Self::Str(_) => "str",
        }
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:", self.key, self.value.kind())?;
        match &self.value {
            OverrideValue::Int(value) => write!(f, "{value}"),
            OverrideValue::Float(value) => write!(f, "{value}"),
            OverrideValue::Bool(value) => write!(f, "{value}"),
            OverrideValue::Str(value) => f.write_str(value),
        }
    }
}

impl FromStr for Override {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |expected: &str, found: &str| {
            Error::argument(Evidence::new("malformed override").key("--override-kv").expected(expected).found(found))
        };
        let (key, typed) = text.split_once('=').ok_or_else(|| wrong("KEY=TYPE:VALUE", text))?;
        let (kind, value) = typed.split_once(':').ok_or_else(|| wrong("KEY=TYPE:VALUE", text))?;
        if key.is_empty() {
            return Err(wrong("a key before the equals sign", text));
        }
        let value = match kind {
            "int" => OverrideValue::Int(value.parse().map_err(|_| wrong("a whole number after int:", text))?),
            "float" => match value.parse::<f64>() {
                Ok(number) if number.is_finite() => OverrideValue::Float(number),
                _ => return Err(wrong("a finite number after float:", text)),
            },
            "bool" => match value {
                "true" => OverrideValue::Bool(true),
                "false" => OverrideValue::Bool(false),
                _ => return Err(wrong("true or false after bool:", text)),
            },
            "str" => OverrideValue::Str(value.to_string()),
            _ => return Err(wrong("int, float, bool or str as the type", text)),
        };
        Ok(Self { key: key.to_string(), value })
    }
}

impl Override {
    /// Sets the key. A value that is there keeps its type within the kind; a new one becomes what getters ask for
    /// most: u32 where it fits, then i32, then i64; f32 for floats.
    ///
    /// # Errors
    /// `Error::Argument` when the file's value is of another kind, or the number does not fit its type: llama.cpp
    /// ignores the first with a warning, which hides a typing error.
    pub fn apply(&self, metadata: &mut Metadata) -> Result<()> {
        let value = match (metadata.get(&self.key), &self.value) {
            (Some(Value::Bool(_)) | None, OverrideValue::Bool(value)) => Some(Value::Bool(*value)),
            (Some(Value::String(_)) | None, OverrideValue::Str(value)) => Some(Value::from(value.as_str())),
            (Some(Value::F32(_)) | None, OverrideValue::Float(value)) => Some(Value::F32(*value as f32)),
            (Some(Value::F64(_)), OverrideValue::Float(value)) => Some(Value::F64(*value)),
            (Some(present), OverrideValue::Int(value)) if present.to_int().is_some() => {
                Some(integer_like(present, *value).ok_or_else(|| {
                    self.refused(metadata, "override does not fit the type of the key", &present.type_name())
                })?)
            }
            (None, OverrideValue::Int(value)) => Some(match (u32::try_from(*value), i32::try_from(*value)) {
                (Ok(value), _) => Value::U32(value),
                (_, Ok(value)) => Value::I32(value),
                _ => Value::I64(*value),
            }),
            _ => None,
        };
        let value = value.ok_or_else(|| {
            let found = metadata.get(&self.key).map(Value::type_name).unwrap_or_default();
            self.refused(metadata, "override is of another kind than the key", &found)
        })?;
        metadata.set(self.key.clone(), value);
        Ok(())
    }

    fn refused(&self, metadata: &Metadata, what: &str, expected: &str) -> Error {
        Error::argument(metadata.evidence(what, &self.key).expected(expected).found(self))
    }
}

fn integer_like(present: &Value, value: i64) -> Option<Value> {
    Some(match present {
        Value::U8(_) => Value::U8(value.try_into().ok()?),
        Value::I8(_) => Value::I8(value.try_into().ok()?),
        Value::U16(_) => Value::U16(value.try_into().ok()?),
        Value::I16(_) => Value::I16(value.try_into().ok()?),
        Value::U32(_) => Value::U32(value.try_into().ok()?),
        Value::I32(_) => Value::I32(value.try_into().ok()?),
        Value::U64(_) => Value::U64(value.try_into().ok()?),
        Value::I64(_) => Value::I64(value),
        _ => return None,
    })
}

impl Metadata {
    /// A copy with the overrides applied in order.
    pub fn with_overrides(&self, overrides: &[Override]) -> Result<Self> {
        let mut copy = self.clone();
        for change in overrides {
            change.apply(&mut copy)?;
        }
        Ok(copy)
    }
}
