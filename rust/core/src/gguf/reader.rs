//! Reads the header of one file: counts, metadata, tensor infos. Tensor data stays where it is.
//!
//! The layout is that of llama.cpp's `ggml/src/gguf.cpp`, and so is what is refused. A lie that makes the rest of the
//! header unreadable or ambiguous is an error; one that leaves it readable is a problem, kept beside the result.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use draftgauge_kernels::quant::QuantType;

use crate::backend::Bytes;
use crate::error::{Error, Evidence, Result};
use crate::gguf::cursor::{Cursor, Parsed, preview};
use crate::gguf::mapping::Mapping;
use crate::gguf::metadata::Metadata;
use crate::gguf::tensor_info::{TensorInfo, align_up, checked_bytes, checked_elements};
use crate::gguf::value::{Array, Strings, Text, Value, ValueType};

/// The first bytes of every GGUF file.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// The key that sets the alignment.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of files that do not set it.
pub(super) const DEFAULT_ALIGNMENT: u32 = 32;
/// The largest alignment taken: beyond it, padding alone could outgrow a disk.
pub(super) const MAX_ALIGNMENT: u32 = 1 << 30;
/// Most bytes of a tensor's name.
pub(super) const MAX_NAME: usize = 63;
/// Most dimensions of a tensor.
pub(super) const MAX_DIMS: usize = 4;

const MAX_ARRAY: u64 = 1 << 30;
const MAX_DEPTH: usize = 4;
// Key length and one byte of key, value type, one byte of value.
const MIN_PAIR_BYTES: u64 = 8 + 1 + 4 + 1;
// Name length, number of dimensions, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// One parsed file.
pub(super) struct Parts {
    pub(super) version: u32,
    pub(super) alignment: u32,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
    /// First byte of the data section, which may lie past the end of the file.
    pub(super) data_start: u64,
    pub(super) problems: Findings,
    pub(super) notices: Vec<String>,
}

/// Problems in the order they were found, the first few in full: a hostile file can have millions.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) shown: Vec<Evidence>,
    pub(super) hidden: u64,
}

impl Findings {
    const SHOWN: usize = 64;

    pub(super) fn push(&mut self, evidence: impl FnOnce() -> Evidence) {
        if self.shown.len() < Self::SHOWN { self.shown.push(evidence()) } else { self.hidden += 1 }
    }
}

/// Parses the header of a mapped file.
pub(super) fn parse(mapping: &Arc<Mapping>, path: &Path) -> Result<Parts> {
    let locate = |evidence: Box<Evidence>| Error::gguf(evidence.path(path));
    let mut cursor = Cursor::new((**mapping).as_ref());
    let version = version(&mut cursor).map_err(locate)?;
    let (num_tensors, num_pairs) = counts(&mut cursor).map_err(locate)?;

    let mut problems = Findings::default();
    let mut notices = Vec::new();
    let mut metadata = Metadata::of_file(path);
    for _ in 0..num_pairs {
        let (key, value) = pair(&mut cursor, mapping, &metadata, &mut problems, &mut notices).map_err(locate)?;
        metadata.set(key, value);
    }
    let alignment = alignment(&metadata)?;

    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..num_tensors {
        let info = tensor(&mut cursor).map_err(locate)?;
        if !names.insert(info.name.clone()) {
            return Err(Error::gguf(Evidence::new("tensor name occurs twice").path(path).tensor(preview(&info.name))));
        }
        tensors.push(info);
    }
    // Without tensors there is no data section to align.
    let header_end = cursor.position() as u64;
    let data_start = if tensors.is_empty() { header_end } else { align_to(header_end, alignment) };
    let data_len = ((**mapping).as_ref().len() as u64).saturating_sub(data_start);
    place(&mut tensors, alignment, data_len, &mut problems);
    Ok(Parts { version, alignment, metadata, tensors, data_start, problems, notices })
}

/// Rounds up a position inside a file, which is far from overflowing.
fn align_to(position: u64, alignment: u32) -> u64 {
    align_up(position, alignment.into()).unwrap_or(u64::MAX)
}

fn version(cursor: &mut Cursor<'_>) -> Parsed<u32> {
    let magic = cursor.take(4, "the magic")?;
    if magic != MAGIC {
        return Err(Box::new(
            Evidence::new("not a GGUF file").expected("magic GGUF").found(format!("magic {}", hex(magic))),
        ));
    }
    let version = cursor.u32("the version")?;
    let refuse = |what: &str, found: String| Err(Box::new(Evidence::new(what).expected("version 2 or 3").found(found)));
    match version {
        2 | 3 => Ok(version),
        0 => refuse("bad GGUF version", "version 0".into()),
        1 => refuse("GGUF version 1 is no longer supported", "version 1".into()),
        // A small version number read with its bytes the wrong way round.
        v if v & 0xffff == 0 => {
            refuse("GGUF file is big-endian", format!("version {} in the other byte order", v.swap_bytes()))
        }
        v => refuse("GGUF version is newer than this reader", format!("version {v}")),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

fn counts(cursor: &mut Cursor<'_>) -> Parsed<(u64, u64)> {
    let num_tensors = cursor.u64("the tensor count")?;
    let num_pairs = cursor.count(MIN_PAIR_BYTES, "metadata count")?;
    let room = cursor.remaining() / MIN_TENSOR_BYTES;
    if num_tensors > room {
        return Err(Box::new(
            Evidence::new("tensor count exceeds the file").expected(format!("at most {room}")).found(num_tensors),
        ));
    }
    Ok((num_tensors, num_pairs))
}

fn pair(
    cursor: &mut Cursor<'_>,
    mapping: &Arc<Mapping>,
    metadata: &Metadata,
    problems: &mut Findings,
    notices: &mut Vec<String>,
) -> Parsed<(String, Value)> {
    let key = cursor.name("metadata key").map_err(|e| Box::new(e.key(format!("key {}", metadata.len()))))?;
    if key.is_empty() {
        return Err(Box::new(Evidence::new("metadata key is empty").key(format!("key {}", metadata.len()))));
    }
    if metadata.contains(key) {
        return Err(Box::new(Evidence::new("metadata key occurs twice").key(preview(key))));
    }
    let mut reader = ValueReader { cursor, mapping, odd_bools: 0 };
    let value = reader.value().map_err(|evidence| Box::new(evidence.key(preview(key))))?;
    if reader.odd_bools > 0 {
        notices.push(format!("{}: a boolean byte other than 0 and 1 is read as true", preview(key)));
    }
    if matches!(&value, Value::Array(Array::Array(_))) {
        problems.push(|| {
            Evidence::new("nested array, which llama.cpp refuses")
                .key(preview(key))
                .expected("an array of scalars or strings")
                .found("an array of arrays")
        });
    }
    if let Value::String(text) = &value
        && text.as_str().is_none()
    {
        problems.push(|| {
            Evidence::new("metadata value is not text").key(preview(key)).expected("UTF-8").found("other bytes")
        });
    }
    Ok((key.to_string(), value))
}

struct ValueReader<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    mapping: &'c Arc<Mapping>,
    odd_bools: u64,
}

impl ValueReader<'_, '_> {
    fn value_type(&mut self, what: &str) -> Parsed<ValueType> {
        let id = self.cursor.u32(what)?;
        ValueType::from_id(id)
            .ok_or_else(|| Box::new(Evidence::new(format!("{what} is unknown")).expected("0 to 12").found(id)))
    }

    fn value(&mut self) -> Parsed<Value> {
        const WHAT: &str = "metadata value";
        Ok(match self.value_type("metadata value type")? {
            ValueType::U8 => Value::U8(self.cursor.take(1, WHAT)?[0]),
            ValueType::I8 => Value::I8(self.cursor.take(1, WHAT)?[0] as i8),
            ValueType::Bool => Value::Bool(self.bools(1)?[0]),
            ValueType::U16 => Value::U16(numbers(self.cursor.take(2, WHAT)?, u16::from_le_bytes)[0]),
            ValueType::I16 => Value::I16(numbers(self.cursor.take(2, WHAT)?, i16::from_le_bytes)[0]),
            ValueType::U32 => Value::U32(numbers(self.cursor.take(4, WHAT)?, u32::from_le_bytes)[0]),
            ValueType::I32 => Value::I32(numbers(self.cursor.take(4, WHAT)?, i32::from_le_bytes)[0]),
            ValueType::F32 => Value::F32(numbers(self.cursor.take(4, WHAT)?, f32::from_le_bytes)[0]),
            ValueType::U64 => Value::U64(numbers(self.cursor.take(8, WHAT)?, u64::from_le_bytes)[0]),
            ValueType::I64 => Value::I64(numbers(self.cursor.take(8, WHAT)?, i64::from_le_bytes)[0]),
            ValueType::F64 => Value::F64(numbers(self.cursor.take(8, WHAT)?, f64::from_le_bytes)[0]),
            ValueType::String => Value::String(Text::from_bytes(self.cursor.string(WHAT)?)),
            ValueType::Array => Value::Array(self.array(1)?),
        })
    }

    fn array(&mut self, depth: usize) -> Parsed<Array> {
        if depth > MAX_DEPTH {
            return Err(Box::new(
                Evidence::new("arrays are nested too deeply")
                    .expected(format!("at most {MAX_DEPTH} levels"))
                    .found("more"),
            ));
        }
        let element = self.value_type("array element type")?;
        let count = self.cursor.count(element.min_bytes(), "array length")?;
        if count > MAX_ARRAY {
            return Err(Box::new(
                Evidence::new("array length is out of range").expected(format!("at most {MAX_ARRAY}")).found(count),
            ));
        }
        // The room for `count` elements has just been checked, so this cannot overflow.
        let bytes = count * element.min_bytes();
        const WHAT: &str = "metadata array";
        Ok(match element {
            ValueType::U8 => Array::U8(self.cursor.take(bytes, WHAT)?.to_vec()),
            ValueType::I8 => Array::I8(numbers(self.cursor.take(bytes, WHAT)?, i8::from_le_bytes)),
            ValueType::Bool => Array::Bool(self.bools(bytes)?),
            ValueType::U16 => Array::U16(numbers(self.cursor.take(bytes, WHAT)?, u16::from_le_bytes)),
            ValueType::I16 => Array::I16(numbers(self.cursor.take(bytes, WHAT)?, i16::from_le_bytes)),
            ValueType::U32 => Array::U32(numbers(self.cursor.take(bytes, WHAT)?, u32::from_le_bytes)),
            ValueType::I32 => Array::I32(numbers(self.cursor.take(bytes, WHAT)?, i32::from_le_bytes)),
            ValueType::F32 => Array::F32(numbers(self.cursor.take(bytes, WHAT)?, f32::from_le_bytes)),
            ValueType::U64 => Array::U64(numbers(self.cursor.take(bytes, WHAT)?, u64::from_le_bytes)),
            ValueType::I64 => Array::I64(numbers(self.cursor.take(bytes, WHAT)?, i64::from_le_bytes)),
            ValueType::F64 => Array::F64(numbers(self.cursor.take(bytes, WHAT)?, f64::from_le_bytes)),
            ValueType::String => Array::String(self.strings(count)?),
            ValueType::Array => {
                let mut arrays = Vec::new();
                for _ in 0..count {
                    arrays.push(self.array(depth + 1)?);
                }
                Array::Array(arrays)
            }
        })
    }

    fn bools(&mut self, count: u64) -> Parsed<Vec<bool>> {
        let bytes = self.cursor.take(count, "metadata value")?;
        self.odd_bools += bytes.iter().filter(|&&byte| byte > 1).count() as u64;
        Ok(bytes.iter().map(|&byte| byte != 0).collect())
    }

    fn strings(&mut self, count: u64) -> Parsed<Strings> {
        let start = self.cursor.position();
        let mut starts = Vec::with_capacity(count as usize + 1);
        for index in 0..count {
            starts.push((self.cursor.position() - start) as u64);
            self.cursor.string("metadata string").map_err(|evidence| {
                let what = format!("{} (element {index} of {count})", evidence.what);
                Box::new(Evidence { what, ..*evidence })
            })?;
        }
        let len = self.cursor.position() - start;
        starts.push(len as u64);
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::clone(self.mapping) as _;
        Ok(Strings::from_packed(Bytes::new(owner, start, len), starts))
    }
}

fn numbers<T, const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| from(chunk)).collect()
}

/// The alignment that metadata sets.
pub(super) fn alignment(metadata: &Metadata) -> Result<u32> {
    let alignment = metadata.u32(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return Err(Error::gguf(
            metadata
                .evidence("alignment is out of range", ALIGNMENT_KEY)
                .expected(format!("a power of two up to {MAX_ALIGNMENT}"))
                .found(alignment),
        ));
    }
    Ok(alignment)
}

fn tensor(cursor: &mut Cursor<'_>) -> Parsed<TensorInfo> {
    let name = cursor.name("tensor name")?;
    let tell = |evidence: Evidence| Box::new(evidence.tensor(preview(name)));
    if name.len() > MAX_NAME {
        return Err(tell(
            Evidence::new("tensor name is too long").expected(format!("at most {MAX_NAME} bytes")).found(name.len()),
        ));
    }
    let num_dims = cursor.u32("the number of dimensions").map_err(|e| tell(*e))?;
    if num_dims as usize > MAX_DIMS {
        return Err(tell(
            Evidence::new("tensor has too many dimensions").expected(format!("at most {MAX_DIMS}")).found(num_dims),
        ));
    }
    let mut shape = Vec::with_capacity(num_dims as usize);
    for _ in 0..num_dims {
        let size = cursor.u64("the dimensions").map_err(|e| tell(*e))?;
        if size > i64::MAX as u64 {
            return Err(tell(Evidence::new("tensor dimension is negative").expected("0 or more").found(size as i64)));
        }
        shape.push(size);
    }
    shape.reverse();
    let type_id = cursor.u32("the tensor type").map_err(|e| tell(*e))?;
    let offset = cursor.u64("the tensor offset").map_err(|e| tell(*e))?;

    if checked_elements(&shape).is_none() {
        return Err(tell(
            Evidence::new("tensor size overflows")
                .expected("fewer than 2^63 elements")
                .found(format!("shape {shape:?}")),
        ));
    }
    let ty = QuantType::from_id(type_id);
    let nbytes = match ty {
        None => 0,
        Some(ty) => {
            let row = shape.last().copied().unwrap_or(1);
            if row % ty.block_len() as u64 != 0 {
                return Err(tell(
                    Evidence::new("tensor row is no whole number of blocks")
                        .expected(format!("a multiple of {} for {}", ty.block_len(), ty.name()))
                        .found(row),
                ));
            }
            // Padding must not wrap either.
            match checked_bytes(ty, &shape).filter(|&n| n <= (i64::MAX as u64) - u64::from(MAX_ALIGNMENT)) {
                Some(nbytes) => nbytes,
                None => {
                    return Err(tell(
                        Evidence::new("tensor size overflows")
                            .expected("fewer than 2^63 bytes")
                            .found(format!("shape {shape:?} of {}", ty.name())),
                    ));
                }
            }
        }
    };
    Ok(TensorInfo { name: name.to_string(), type_id, ty, shape, offset, nbytes, shard: 0 })
}

/// Checks that the data of each tensor follows that of the one before it and lies in the file.
fn place(tensors: &mut [TensorInfo], alignment: u32, data_len: u64, problems: &mut Findings) {
    size_unknown(tensors, data_len);
    let mut expected = Some(0u64);
    for info in tensors {
        if info.ty.is_none() {
            problems.push(|| {
                Evidence::new("unknown tensor type")
                    .tensor(preview(&info.name))
                    .expected("a type of ggml")
                    .found(format!("id {}", info.type_id))
            });
        }
        if let Some(expected) = expected.filter(|&expected| expected != info.offset) {
            problems.push(|| {
                Evidence::new("tensor offset leaves a gap or an overlap")
                    .tensor(preview(&info.name))
                    .expected(format!("offset {expected}"))
                    .found(format!("offset {}", info.offset))
            });
        }
        let end = info.offset.checked_add(info.nbytes);
        if end.is_none_or(|end| end > data_len) {
            problems.push(|| {
                Evidence::new("tensor data lies past the end of the file")
                    .tensor(preview(&info.name))
                    .expected(format!("at most {data_len} bytes of data"))
                    .found(format!("offset {} and {} bytes", info.offset, info.nbytes))
            });
        }
        // After an unknown size, and after a misplaced tensor, the next check starts from what the file says.
        expected = info.ty.and(end).and_then(|end| align_up(end, alignment.into()));
    }
}

/// Gives tensors of unknown type the room up to the next tensor, so that a copy of the file keeps their data.
fn size_unknown(tensors: &mut [TensorInfo], data_len: u64) {
    if tensors.iter().all(|info| info.ty.is_some()) {
        return;
    }
    let mut offsets: Vec<u64> = tensors.iter().map(|info| info.offset).collect();
    offsets.sort_unstable();
    for info in tensors.iter_mut().filter(|info| info.ty.is_none()) {
        let next = offsets.partition_point(|&offset| offset <= info.offset);
        let end = offsets.get(next).copied().unwrap_or(data_len).min(data_len);
        info.nbytes = end.saturating_sub(info.offset);
    }
}
