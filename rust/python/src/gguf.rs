//! GGUF files: metadata and tensors as views, writing, inspection.

use std::path::PathBuf;
use std::sync::Arc;

use draftgauge_core::gguf::{self, Array, GgufFile, Metadata, Strings, TensorInfo, TensorSpec, Text, Value, ValueType};
use draftgauge_core::{Error, Evidence, inspect};
use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArray1};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::errors::{Failure, Result};
use crate::quant::{dequantize_rows, quant_type};

/// A mapped file or set of shards, shared with every view of it.
#[pyclass(frozen, name = "GgufFile", module = "draftgauge._core")]
pub struct PyGgufFile(pub Arc<GgufFile>);

/// Metadata with the types of its file.
#[pyclass(frozen, name = "GgufMetadata", module = "draftgauge._core")]
pub struct PyGgufMetadata {
    source: Source,
    version: u32,
}

/// A vocabulary is large, so a file's metadata is looked at and not copied.
enum Source {
    File(Arc<GgufFile>),
    Own(Metadata),
}

impl PyGgufMetadata {
    fn own(metadata: Metadata, version: u32) -> Self {
        Self { source: Source::Own(metadata), version }
    }

    fn metadata(&self) -> &Metadata {
        match &self.source {
            Source::File(file) => file.metadata(),
            Source::Own(metadata) => metadata,
        }
    }
}

type TensorTuple = (String, String, Vec<u64>, u64, u64, usize);

fn describe(info: &TensorInfo) -> TensorTuple {
    (info.name.clone(), info.type_name(), info.shape.clone(), info.offset, info.nbytes, info.shard)
}

/// Opens a file, or the whole set when it is one shard of several.
#[pyfunction]
fn gguf_open(py: Python<'_>, path: PathBuf) -> Result<PyGgufFile> {
    Ok(PyGgufFile(Arc::new(py.detach(|| GgufFile::open(path))?)))
}

#[pymethods]
impl PyGgufFile {
    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path().to_path_buf()
    }

    #[getter]
    fn version(&self) -> u32 {
        self.0.version()
    }

    #[getter]
    fn alignment(&self) -> u32 {
        self.0.alignment()
    }

    #[getter]
    fn shards(&self) -> Vec<(PathBuf, u64)> {
        self.0.shards().iter().map(|shard| (shard.path.clone(), shard.bytes)).collect()
    }

    #[getter]
    fn problems(&self) -> Vec<String> {
        self.0.problems().to_vec()
    }

    #[getter]
    fn notices(&self) -> Vec<String> {
        self.0.notices().to_vec()
    }

    #[getter]
    fn metadata(&self) -> PyGgufMetadata {
        PyGgufMetadata { source: Source::File(Arc::clone(&self.0)), version: self.0.version() }
    }

    /// Name, type, shape, offset, bytes and shard of every tensor.
    fn tensors(&self) -> Vec<TensorTuple> {
        self.0.tensors().iter().map(describe).collect()
    }

    /// The bytes of a tensor where they lie in the file.
    fn raw<'py>(slf: &Bound<'py, Self>, name: &str) -> Result<Bound<'py, PyArray1<u8>>> {
        let file = &slf.get().0;
        let data = file.data(slf.get().info(name)?)?;
        let view = ArrayView1::from(data);
        // SAFETY: the array keeps this object alive, the object keeps the file mapped, and the mapping never moves. It
        // is mapped read-only, and the array is marked so before anyone else sees it.
        let array = unsafe { PyArray1::borrow_from_array(&view, slf.clone().into_any()) };
        array.readwrite().make_nonwriteable();
        Ok(array)
    }

    /// The values of a tensor in its shape.
    fn dequantize<'py>(&self, py: Python<'py>, name: &str) -> Result<Bound<'py, PyArrayDyn<f32>>> {
        let info = self.info(name)?;
        let data = self.0.data(info)?;
        let Some(ty) = info.ty else { return Err(unknown_type(info).into()) };
        let shape: Vec<usize> = info.shape.iter().map(|&extent| extent as usize).collect();
        let values = dequantize_rows(py, ty, data, &shape)?;
        Ok(PyArray1::from_vec(py, values).reshape(shape)?)
    }

    /// Refuses a file with problems.
    fn require_valid(&self) -> Result<()> {
        Ok(self.0.require_valid()?)
    }

    /// The problem of a tensor whose data is not finite.
    fn validate(&self, py: Python<'_>, name: &str) -> Result<Option<String>> {
        let info = self.info(name)?;
        Ok(py.detach(|| inspect::validate_tensor(&self.0, info))?.map(|evidence| evidence.to_string()))
    }

    /// The report of `inspect` as JSON.
    fn report(&self, py: Python<'_>) -> Result<String> {
        py.detach(|| to_json(&inspect::inspect(&self.0)))
    }

    /// Writes the same file again.
    fn write_to(&self, py: Python<'_>, path: PathBuf) -> Result<()> {
        Ok(py.detach(|| self.0.write_to(path))?)
    }
}

impl PyGgufFile {
    fn info(&self, name: &str) -> PyResult<&TensorInfo> {
        self.0.tensor(name).ok_or_else(|| PyKeyError::new_err(name.to_string()))
    }
}

fn unknown_type(info: &TensorInfo) -> Error {
    Error::gguf(Evidence::new("tensor has an unknown type").tensor(&info.name).found(format!("id {}", info.type_id)))
}

/// A report as JSON.
pub fn to_json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Failure::Python(PyValueError::new_err(error.to_string())))
}

/// The difference of two files as JSON.
#[pyfunction]
fn gguf_diff(py: Python<'_>, left: &PyGgufFile, right: &PyGgufFile, data: bool) -> Result<String> {
    py.detach(|| to_json(&inspect::compare(&left.0, &right.0, data)?))
}

#[pymethods]
impl PyGgufMetadata {
    /// Metadata of no file, with types chosen by the values.
    #[staticmethod]
    fn from_pairs(pairs: Vec<(String, Bound<'_, PyAny>)>) -> Result<Self> {
        let mut metadata = Metadata::new();
        for (key, value) in pairs {
            let value = from_python(&key, &value)?;
            metadata.set(key, value);
        }
        Ok(Self::own(metadata, 3))
    }

    fn keys(&self) -> Vec<String> {
        self.metadata().keys().map(str::to_string).collect()
    }

    fn __len__(&self) -> usize {
        self.metadata().len()
    }

    fn __contains__(&self, key: &str) -> bool {
        self.metadata().contains(key)
    }

    /// A value as Python has it.
    fn get<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        match self.metadata().get(key) {
            Some(value) => to_python(py, value),
            None => Err(PyKeyError::new_err(key.to_string())),
        }
    }

    /// Name of a value's type.
    fn type_name(&self, key: &str) -> PyResult<String> {
        self.metadata().get(key).map(Value::type_name).ok_or_else(|| PyKeyError::new_err(key.to_string()))
    }

    /// A copy with these values; a key that is there keeps its type.
    fn updated(&self, pairs: Vec<(String, Bound<'_, PyAny>)>) -> Result<Self> {
        let mut metadata = self.metadata().clone();
        for (key, value) in pairs {
            let value = match metadata.get(&key) {
                // Through f32 a double would lose its digits.
                Some(Value::F64(_)) if value.is_exact_instance_of::<PyFloat>() => Value::F64(value.extract()?),
                Some(present) => like(&key, present, from_python(&key, &value)?)?,
                None => from_python(&key, &value)?,
            };
            metadata.set(key, value);
        }
        Ok(Self::own(metadata, self.version))
    }

    /// A copy without these keys.
    fn without(&self, keys: Vec<String>) -> PyResult<Self> {
        let mut metadata = self.metadata().clone();
        for key in keys {
            if metadata.remove(&key).is_none() {
                return Err(PyKeyError::new_err(key));
            }
        }
        Ok(Self::own(metadata, self.version))
    }
}

/// Writes metadata and tensors (name, type, shape, bytes) as one file.
#[pyfunction]
fn gguf_write(
    py: Python<'_>,
    path: PathBuf,
    metadata: &PyGgufMetadata,
    tensors: Vec<(String, String, Vec<u64>, PyReadonlyArray1<'_, u8>)>,
) -> Result<()> {
    let mut specs = Vec::with_capacity(tensors.len());
    for (name, ty, shape, data) in &tensors {
        let data = data
            .as_slice()
            .map_err(|_| PyValueError::new_err(format!("tensor {name}: the bytes are not contiguous")))?;
        specs.push((TensorSpec::new(name.as_str(), quant_type(ty)?, shape)?, data));
    }
    Ok(py.detach(|| gguf::write_version(path, metadata.version, metadata.metadata(), specs))?)
}

fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::U8(v) => v.into_pyobject(py)?.into_any(),
        Value::I8(v) => v.into_pyobject(py)?.into_any(),
        Value::U16(v) => v.into_pyobject(py)?.into_any(),
        Value::I16(v) => v.into_pyobject(py)?.into_any(),
        Value::U32(v) => v.into_pyobject(py)?.into_any(),
        Value::I32(v) => v.into_pyobject(py)?.into_any(),
        Value::U64(v) => v.into_pyobject(py)?.into_any(),
        Value::I64(v) => v.into_pyobject(py)?.into_any(),
        Value::F32(v) => v.into_pyobject(py)?.into_any(),
        Value::F64(v) => v.into_pyobject(py)?.into_any(),
        Value::Bool(v) => PyBool::new(py, *v).to_owned().into_any(),
        Value::String(text) => string(py, text.as_bytes()),
        Value::Array(array) => array_to_python(py, array)?,
    })
}

/// Text where it is text, else the bytes as they are.
fn string<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyAny> {
    match std::str::from_utf8(bytes) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, bytes).into_any(),
    }
}

fn array_to_python<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! numbers {
        ($values:expr) => {
            PyArray1::from_slice(py, $values).into_any()
        };
    }
    Ok(match array {
        Array::U8(a) => numbers!(a),
        Array::I8(a) => numbers!(a),
        Array::U16(a) => numbers!(a),
        Array::I16(a) => numbers!(a),
        Array::U32(a) => numbers!(a),
        Array::I32(a) => numbers!(a),
        Array::U64(a) => numbers!(a),
        Array::I64(a) => numbers!(a),
        Array::F32(a) => numbers!(a),
        Array::F64(a) => numbers!(a),
        Array::Bool(a) => numbers!(a),
        Array::String(strings) => PyList::new(py, strings.iter().map(|bytes| string(py, bytes)))?.into_any(),
        Array::Array(arrays) => {
            let inner = arrays.iter().map(|inner| array_to_python(py, inner)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, inner)?.into_any()
        }
    })
}

fn refuse(key: &str, expected: &str, found: impl std::fmt::Display) -> Failure {
    Failure::Python(PyTypeError::new_err(format!("metadata value: {key}: expected {expected}, found {found}")))
}

/// The value that stands for a Python object: NumPy scalars and arrays keep their type.
fn from_python(key: &str, object: &Bound<'_, PyAny>) -> Result<Value> {
    if let Ok(flag) = object.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Value::from(text.to_str()?));
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Value::String(Text::from_bytes(bytes.as_bytes())));
    }
    // NumPy's double is a Python float too, and means f64.
    if object.hasattr("dtype")? {
        return from_numpy(key, object);
    }
    if object.is_instance_of::<PyInt>() {
        return integer(key, object);
    }
    if object.is_instance_of::<PyFloat>() {
        return Ok(Value::F32(object.extract::<f64>()? as f32));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return from_sequence(key, &object.try_iter()?.collect::<PyResult<Vec<_>>>()?);
    }
    Err(refuse(key, "bool, int, float, str, bytes, a list of one of them or a NumPy array", object.get_type()))
}

fn integer(key: &str, object: &Bound<'_, PyAny>) -> Result<Value> {
    if let Ok(value) = object.extract::<u32>() {
        return Ok(Value::U32(value));
    }
    if let Ok(value) = object.extract::<i64>() {
        return Ok(i32::try_from(value).map_or(Value::I64(value), Value::I32));
    }
    object.extract::<u64>().map(Value::U64).map_err(|_| refuse(key, "an integer of at most 64 bits", object))
}

fn from_numpy(key: &str, object: &Bound<'_, PyAny>) -> Result<Value> {
    let kind: String = object.getattr("dtype")?.getattr("name")?.extract()?;
    let ndim: usize = object.getattr("ndim")?.extract()?;
    macro_rules! typed {
        ($ty:ty, $variant:ident) => {
            match ndim {
                // A scalar of NumPy, or an array without dimensions.
                0 => Value::$variant(object.call_method0("item")?.extract::<$ty>()?),
                1 => Value::Array(Array::$variant(object.extract::<PyReadonlyArray1<'_, $ty>>()?.as_array().to_vec())),
                _ => return Err(refuse(key, "an array of one dimension", format!("{ndim} dimensions"))),
            }
        };
    }
    Ok(match kind.as_str() {
        "uint8" => typed!(u8, U8),
        "int8" => typed!(i8, I8),
        "uint16" => typed!(u16, U16),
        "int16" => typed!(i16, I16),
        "uint32" => typed!(u32, U32),
        "int32" => typed!(i32, I32),
        "uint64" => typed!(u64, U64),
        "int64" => typed!(i64, I64),
        "float32" => typed!(f32, F32),
        "float64" => typed!(f64, F64),
        "bool" => typed!(bool, Bool),
        other if other.starts_with("str") && ndim == 1 => {
            from_sequence(key, &object.try_iter()?.collect::<PyResult<Vec<_>>>()?)?
        }
        other => return Err(refuse(key, "a dtype of integers, floats, booleans or text", other)),
    })
}

/// As gguf-py does it: integers become i32 and floats f32, both wider where a value needs it.
fn from_sequence(key: &str, elements: &[Bound<'_, PyAny>]) -> Result<Value> {
    let Some(first) = elements.first() else {
        return Err(refuse(key, "an element to take the type from, or a NumPy array", "an empty list"));
    };
    let all = |test: &dyn Fn(&Bound<'_, PyAny>) -> bool| elements.iter().all(test);
    let is_bool = |object: &Bound<'_, PyAny>| object.is_instance_of::<PyBool>();
    let is_text = |object: &Bound<'_, PyAny>| object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>();
    if all(&is_text) {
        let mut strings: Vec<Vec<u8>> = Vec::with_capacity(elements.len());
        for element in elements {
            strings.push(match element.cast::<PyBytes>() {
                Ok(bytes) => bytes.as_bytes().to_vec(),
                Err(_) => element.extract::<String>()?.into_bytes(),
            });
        }
        return Ok(strings.into_iter().collect::<Strings>().into());
    }
    if all(&is_bool) {
        return Ok(elements.iter().map(|e| e.extract::<bool>()).collect::<PyResult<Vec<_>>>()?.into());
    }
    if elements.iter().any(is_bool) {
        return Err(refuse(key, "elements of one type", "booleans and others"));
    }
    if all(&|e| e.is_instance_of::<PyInt>()) {
        let Ok(wide) = elements.iter().map(|e| e.extract::<i64>()).collect::<PyResult<Vec<_>>>() else {
            let unsigned = elements.iter().map(|e| e.extract::<u64>()).collect::<PyResult<Vec<_>>>();
            return unsigned.map(Value::from).map_err(|_| refuse(key, "integers of at most 64 bits", "larger ones"));
        };
        let narrow: std::result::Result<Vec<i32>, _> = wide.iter().map(|&value| i32::try_from(value)).collect();
        return Ok(narrow.map_or_else(|_| Value::from(wide), Value::from));
    }
    if all(&|e| e.is_instance_of::<PyInt>() || e.is_instance_of::<PyFloat>()) {
        let values = elements.iter().map(|e| e.extract::<f64>().map(|v| v as f32)).collect::<PyResult<Vec<_>>>()?;
        return Ok(values.into());
    }
    Err(refuse(key, "a list of bool, int, float or str", format!("a list beginning with {}", first.get_type())))
}

/// `new` in the type that the file has for the key, where its value fits.
fn like(key: &str, present: &Value, new: Value) -> Result<Value> {
    if present.type_name() == new.type_name() {
        return Ok(new);
    }
    let fitted = match (present, &new) {
        (Value::F64(_), Value::F32(v)) => Some(Value::F64(f64::from(*v))),
        (Value::Array(present), Value::Array(new)) => integers_like(present, new),
        _ => new.to_int().and_then(|value| integer_like(present.value_type(), value)),
    };
    fitted.ok_or_else(|| refuse(key, &format!("{} as in the file", present.type_name()), new.type_name()))
}

fn integer_like(ty: ValueType, value: i128) -> Option<Value> {
    Some(match ty {
        ValueType::U8 => Value::U8(value.try_into().ok()?),
        ValueType::I8 => Value::I8(value.try_into().ok()?),
        ValueType::U16 => Value::U16(value.try_into().ok()?),
        ValueType::I16 => Value::I16(value.try_into().ok()?),
        ValueType::U32 => Value::U32(value.try_into().ok()?),
        ValueType::I32 => Value::I32(value.try_into().ok()?),
        ValueType::U64 => Value::U64(value.try_into().ok()?),
        ValueType::I64 => Value::I64(value.try_into().ok()?),
        ValueType::F32 => Value::F32(value as f32),
        ValueType::F64 => Value::F64(value as f64),
        _ => return None,
    })
}

fn integers_like(present: &Array, new: &Array) -> Option<Value> {
    let wide: Vec<i128> =
        (0..new.len()).map(|index| new.get(index).and_then(|value| value.to_int())).collect::<Option<_>>()?;
    macro_rules! fit {
        ($ty:ty) => {
            wide.iter().map(|&value| <$ty>::try_from(value).ok()).collect::<Option<Vec<$ty>>>()?.into()
        };
    }
    Some(match present.element_type() {
        ValueType::U8 => fit!(u8),
        ValueType::I8 => fit!(i8),
        ValueType::U16 => fit!(u16),
        ValueType::I16 => fit!(i16),
        ValueType::U32 => fit!(u32),
        ValueType::I32 => fit!(i32),
        ValueType::U64 => fit!(u64),
        ValueType::I64 => fit!(i64),
        ValueType::F32 => wide.iter().map(|&value| value as f32).collect::<Vec<_>>().into(),
        ValueType::F64 => wide.iter().map(|&value| value as f64).collect::<Vec<_>>().into(),
        _ => return None,
    })
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyGgufFile>()?;
    m.add_class::<PyGgufMetadata>()?;
    m.add_function(wrap_pyfunction!(gguf_open, m)?)?;
    m.add_function(wrap_pyfunction!(gguf_diff, m)?)?;
    m.add_function(wrap_pyfunction!(gguf_write, m)?)?;
    Ok(())
}
