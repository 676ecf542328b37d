//! `inspect --diff`: what two files say differently, and with data how far their tensors lie apart.

use draftgauge_kernels::quant;
use serde::Serialize;

use crate::error::Result;
use crate::gguf::{GgufFile, TensorInfo, Value};
use crate::parallel::map_parts;

/// Elements that one thread compares at a time: whole blocks of every type.
const GRAIN: usize = 1 << 20;
/// Elements turned into f32 at once.
const CHUNK: usize = 1 << 14;

/// Two files side by side.
#[derive(Debug, Serialize)]
pub struct Difference {
    /// Whether nothing differs that was compared.
    pub equal: bool,
    /// Path of the first file.
    pub left: String,
    /// Path of the second file.
    pub right: String,
    /// Keys and values.
    pub metadata: Sides<String>,
    /// Names, types and shapes.
    pub tensors: Sides<Form>,
    /// Distances, where data was compared: one line a tensor of both files.
    pub data: Option<Vec<TensorDifference>>,
}

/// What only one side has, and what both have in different forms.
#[derive(Debug, Serialize)]
pub struct Sides<T> {
    /// Names that only the first file has.
    pub only_left: Vec<String>,
    /// Names that only the second file has.
    pub only_right: Vec<String>,
    /// Names of both with different contents.
    pub changed: Vec<Changed<T>>,
}

impl<T> Sides<T> {
    fn is_empty(&self) -> bool {
        self.only_left.is_empty() && self.only_right.is_empty() && self.changed.is_empty()
    }
}

/// One name with two contents.
#[derive(Debug, Serialize)]
pub struct Changed<T> {
    /// Key or tensor.
    pub name: String,
    /// In the first file.
    pub left: T,
    /// In the second file.
    pub right: T,
    /// First element that differs, for arrays of the same element type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<usize>,
}

/// Type and shape of a tensor.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Form {
    /// Type, such as `Q4_K`.
    #[serde(rename = "type")]
    pub ty: String,
    /// Row-major shape.
    pub shape: Vec<u64>,
}

/// How far the data of a tensor lies apart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorDifference {
    /// Name.
    pub name: String,
    /// Whether type and bytes are the same, or else all values.
    pub equal: bool,
    /// Norm of the difference over the norm of the first file's values; null where it cannot be computed.
    pub relative_error: Option<f64>,
    /// Largest difference of two values; null where it cannot be computed.
    pub max_abs_error: Option<f64>,
}

/// Compares two files; with `data`, also the values of every tensor that both have in one shape.
///
/// # Errors
/// With `data`: as [`GgufFile::data`].
pub fn compare(left: &GgufFile, right: &GgufFile, data: bool) -> Result<Difference> {
    let metadata = sides(
        left.metadata().iter(),
        right.metadata().keys(),
        |key| right.metadata().get(key),
        |key| left.metadata().contains(key),
        |key, a, b| {
            (a != b).then(|| Changed {
                name: key.to_string(),
                left: short(a),
                right: short(b),
                first_difference: first_difference(a, b),
            })
        },
    );
    let tensors = sides(
        left.tensors().iter().map(|info| (info.name.as_str(), info)),
        right.tensors().iter().map(|info| info.name.as_str()),
        |name| right.tensor(name),
        |name| left.tensor(name).is_some(),
        |name, a, b| {
            let (a, b) = (form(a), form(b));
            (a != b).then(|| Changed { name: name.to_string(), left: a, right: b, first_difference: None })
        },
    );
    let distances = if data {
        let pairs = left.tensors().iter().filter_map(|a| right.tensor(&a.name).map(|b| (a, b)));
        Some(
            pairs
                .filter(|(a, b)| a.shape == b.shape)
                .map(|(a, b)| distance(left, a, right, b))
                .collect::<Result<Vec<_>>>()?,
        )
    } else {
        None
    };
    let same_data = distances.iter().flatten().all(|distance| distance.equal);
    Ok(Difference {
        equal: metadata.is_empty() && tensors.is_empty() && same_data,
        left: left.path().to_string_lossy().into_owned(),
        right: right.path().to_string_lossy().into_owned(),
        metadata,
        tensors,
        data: distances,
    })
}

fn sides<'a, V: 'a, T>(
    left: impl Iterator<Item = (&'a str, V)>,
    right_names: impl Iterator<Item = &'a str>,
    in_right: impl Fn(&str) -> Option<V>,
    in_left: impl Fn(&str) -> bool,
    differs: impl Fn(&str, V, V) -> Option<Changed<T>>,
) -> Sides<T> {
    let (mut only_left, mut changed) = (Vec::new(), Vec::new());
    for (name, a) in left {
        match in_right(name) {
            None => only_left.push(name.to_string()),
            Some(b) => changed.extend(differs(name, a, b)),
        }
    }
    let only_right = right_names.filter(|name| !in_left(name)).map(str::to_string).collect();
    Sides { only_left, only_right, changed }
}

fn form(info: &TensorInfo) -> Form {
    Form { ty: info.type_name(), shape: info.shape.clone() }
}

/// A value with its type, on one line of moderate length.
fn short(value: &Value) -> String {
    const ELEMENTS: usize = 8;
    const CHARACTERS: usize = 200;
    let plain = |value: &Value| serde_json::to_string(value).unwrap_or_default();
    let text = match value {
        Value::Array(array) => {
            let head: Vec<String> =
                (0..ELEMENTS).map_while(|index| array.get(index)).map(|value| plain(&value)).collect();
            let more = if array.len() > ELEMENTS { ", …" } else { "" };
            format!("[{}{more}] ({} elements)", head.join(", "), array.len())
        }
        other => plain(other),
    };
    let cut = text.char_indices().nth(CHARACTERS).map_or(text.clone(), |(end, _)| format!("{}…", &text[..end]));
    format!("{} {cut}", value.type_name())
}

fn first_difference(left: &Value, right: &Value) -> Option<usize> {
    match (left, right) {
        (Value::Array(a), Value::Array(b)) if a.element_type() == b.element_type() => {
            (0..a.len().max(b.len())).find(|&index| a.get(index) != b.get(index))
        }
        _ => None,
    }
}

/// Sums over a part of a tensor.
#[derive(Clone, Copy, Default)]
struct Sums {
    difference: f64,
    reference: f64,
    largest: f64,
}

fn distance(left: &GgufFile, a: &TensorInfo, right: &GgufFile, b: &TensorInfo) -> Result<TensorDifference> {
    let (data_a, data_b) = (left.data(a)?, right.data(b)?);
    let line = |equal, relative_error: Option<f64>, max_abs_error: Option<f64>| TensorDifference {
        name: a.name.clone(),
        equal,
        relative_error: relative_error.filter(|error| error.is_finite()),
        max_abs_error: max_abs_error.filter(|error| error.is_finite()),
    };
    if a.type_id == b.type_id && data_a == data_b {
        return Ok(line(true, Some(0.0), Some(0.0)));
    }
    let (Some(ty_a), Some(ty_b)) = (a.ty.filter(|ty| ty.dequantizes()), b.ty.filter(|ty| ty.dequantizes())) else {
        return Ok(line(false, None, None));
    };
    let part = |ty: quant::QuantType, data: &[u8], start: usize, out: &mut [f32]| {
        let (len, bytes) = (ty.block_len(), ty.block_bytes());
        quant::dequantize(ty, &data[start / len * bytes..(start + out.len()) / len * bytes], out)
    };
    // Parts are added in order, so that the result does not depend on the number of threads.
    let parts = map_parts(a.num_elements() as usize, GRAIN, |range| {
        let mut sums = Sums::default();
        let (mut values_a, mut values_b) = (vec![0.0; CHUNK], vec![0.0; CHUNK]);
        for start in range.clone().step_by(CHUNK) {
            let len = CHUNK.min(range.end - start);
            part(ty_a, data_a, start, &mut values_a[..len])?;
            part(ty_b, data_b, start, &mut values_b[..len])?;
            for (&x, &y) in values_a[..len].iter().zip(&values_b[..len]) {
                let (x, y) = (f64::from(x), f64::from(y));
                sums.difference += (x - y) * (x - y);
                sums.reference += x * x;
                sums.largest = sums.largest.max((x - y).abs());
            }
        }
        Ok::<_, quant::QuantError>(sums)
    });
    let mut total = Sums::default();
    for sums in parts {
        let sums = sums?;
        total.difference += sums.difference;
        total.reference += sums.reference;
        total.largest = total.largest.max(sums.largest);
    }
    let relative = if total.difference == 0.0 { 0.0 } else { (total.difference / total.reference).sqrt() };
    // `max` passes over NaN, the sum does not.
    let largest = if total.difference.is_nan() { f64::NAN } else { total.largest };
    Ok(line(total.difference == 0.0, Some(relative), Some(largest)))
}
