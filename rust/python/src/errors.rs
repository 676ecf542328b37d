//! The one conversion of errors: closed enums of the core become the classes of `draftgauge.errors`.

use std::borrow::Cow;

use draftgauge_core::{Error, Evidence};
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// What a wrapped function may fail with: `?` takes both halves.
pub enum Failure {
    /// An error of the core, not yet converted.
    Core(Error),
    /// An exception that Python raised already.
    Python(PyErr),
}

/// The result of wrapped functions.
pub type Result<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Python(error) => error,
            Failure::Core(error) => Python::attach(|py| convert(py, &error)),
        }
    }
}

/// The exception that stands for `error`.
pub fn convert(py: Python<'_>, error: &Error) -> PyErr {
    let (class, evidence) = match error {
        Error::Io { path, source } => {
            // OSError picks its own subclass (FileNotFoundError, PermissionError, ...) from the number.
            return match source.raw_os_error() {
                Some(number) => PyOSError::new_err((number, os_message(source), path.clone())),
                None => PyOSError::new_err(error.to_string()),
            };
        }
        Error::Interrupted => return PyKeyboardInterrupt::new_err(()),
        Error::Argument(evidence) => {
            let exception = PyValueError::new_err(error.to_string());
            return attach_evidence(py, exception, evidence);
        }
        Error::Gguf(evidence) => ("GgufError", evidence),
        Error::Quant(evidence) => ("QuantError", evidence),
        Error::Model(evidence) => ("ModelError", evidence),
        Error::Pairing(evidence) => ("PairingError", evidence),
        Error::Tree(evidence) => ("TreeError", evidence),
        Error::Device(evidence) => ("DeviceError", evidence),
    };
    match exception_class(py, class) {
        Ok(class) => attach_evidence(py, PyErr::from_type(class, error.to_string()), evidence),
        Err(import_error) => import_error,
    }
}

fn exception_class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    Ok(py.import("draftgauge.errors")?.getattr(name)?.cast_into::<PyType>()?)
}

fn attach_evidence(py: Python<'_>, exception: PyErr, evidence: &Evidence) -> PyErr {
    let set = |name: &str, value: Option<Cow<'_, str>>| exception.value(py).setattr(name, value);
    let outcome = set("what", Some(evidence.what.as_str().into()))
        .and_then(|()| set("path", evidence.path.as_ref().map(|path| path.to_string_lossy())))
        .and_then(|()| set("tensor", evidence.tensor.as_deref().map(Cow::from)))
        .and_then(|()| set("key", evidence.key.as_deref().map(Cow::from)))
        .and_then(|()| set("expected", evidence.expected.as_deref().map(Cow::from)))
        .and_then(|()| set("found", evidence.found.as_deref().map(Cow::from)));
    match outcome {
        Ok(()) => exception,
        Err(error) => error,
    }
}

/// The system's words without the number that Rust appends: Python prints the number itself.
fn os_message(source: &std::io::Error) -> String {
    let text = source.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}
