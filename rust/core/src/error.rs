//! The one error hierarchy: every variant carries the evidence that its message shows.

use std::fmt;
use std::path::{Path, PathBuf};

use draftgauge_kernels::quant::QuantError;

/// Where something went wrong and what was found there.
///
/// The message reads `WHAT: WHERE: expected X, found Y`; parts that are not known are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// What could not be done, as a short phrase.
    pub what: String,
    /// The file concerned.
    pub path: Option<PathBuf>,
    /// The tensor concerned.
    pub tensor: Option<String>,
    /// The metadata key, option or argument concerned.
    pub key: Option<String>,
    /// What would have been right.
    pub expected: Option<String>,
    /// What was there instead.
    pub found: Option<String>,
}

impl Evidence {
    /// Starts the evidence with what could not be done.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    /// Names the file.
    #[must_use]
    pub fn path(mut self, path: impl AsRef<Path>) -> Self {
        self.path = Some(path.as_ref().to_path_buf());
        self
    }

    /// Names the tensor.
    #[must_use]
    pub fn tensor(mut self, tensor: impl Into<String>) -> Self {
        self.tensor = Some(tensor.into());
        self
    }

    /// Names the key, option or argument.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Says what would have been right.
    #[must_use]
    pub fn expected(mut self, expected: impl fmt::Display) -> Self {
        self.expected = Some(expected.to_string());
        self
    }

    /// Says what was there instead.
    #[must_use]
    pub fn found(mut self, found: impl fmt::Display) -> Self {
        self.found = Some(found.to_string());
        self
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let mut separator = ": ";
        if let Some(path) = &self.path {
            write!(f, "{separator}{}", path.display())?;
            separator = ", ";
        }
        if let Some(tensor) = &self.tensor {
            write!(f, "{separator}tensor {tensor}")?;
            separator = ", ";
        }
        if let Some(key) = &self.key {
            write!(f, "{separator}{key}")?;
        }
        match (&self.expected, &self.found) {
            (Some(expected), Some(found)) => write!(f, ": expected {expected}, found {found}"),
            (Some(expected), None) => write!(f, ": expected {expected}"),
            (None, Some(found)) => write!(f, ": found {found}"),
            (None, None) => Ok(()),
        }
    }
}

/// Everything that can fail, by the exception class it becomes in Python.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused: becomes `OSError` (`FileNotFoundError` where it applies).
    #[error("cannot read or write: {}: {}", path.display(), os_message(source))]
    Io {
        /// The file concerned.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// A GGUF file that lies or breaks off: `GgufError`.
    #[error("{0}")]
    Gguf(Box<Evidence>),
    /// Quantized data of the wrong size or type: `QuantError`.
    #[error("{0}")]
    Quant(Box<Evidence>),
    /// A model that cannot be loaded or run: `ModelError`.
    #[error("{0}")]
    Model(Box<Evidence>),
    /// A drafter that does not fit its target: `PairingError`.
    #[error("{0}")]
    Pairing(Box<Evidence>),
    /// A tree, draft or verification input that is not well formed: `TreeError`.
    #[error("{0}")]
    Tree(Box<Evidence>),
    /// A device, kernel path or memory that is not to be had: `DeviceError`.
    #[error("{0}")]
    Device(Box<Evidence>),
    /// A wrong argument: `ValueError`.
    #[error("{0}")]
    Argument(Box<Evidence>),
    /// The caller asked to stop: `KeyboardInterrupt`.
    #[error("interrupted")]
    Interrupted,
}

impl From<QuantError> for Error {
    fn from(error: QuantError) -> Self {
        let evidence = match error {
            QuantError::ByteCount { ty, expected, found } => Evidence::new(format!("{ty} data has the wrong size"))
                .expected(format!("{expected} bytes"))
                .found(format!("{found} bytes")),
            QuantError::RowLength { ty, expected, found } => Evidence::new(format!("{ty} rows are whole blocks"))
                .expected(format!("a multiple of {expected} values"))
                .found(found),
            other => Evidence::new(other.to_string()),
        };
        Self::quant(evidence)
    }
}

/// The system's words without the number that Rust appends.
fn os_message(source: &std::io::Error) -> String {
    let text = source.to_string();
    text.rfind(" (os error ").map_or(text.clone(), |end| text[..end].to_string())
}

/// The result of everything fallible in this crate.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! constructors {
    ($($name:ident $variant:ident),*) => {
        impl Error {
            $(
                #[doc = concat!("Wraps the evidence as `Error::", stringify!($variant), "`.")]
                pub fn $name(evidence: Evidence) -> Self {
                    Self::$variant(Box::new(evidence))
                }
            )*
        }
    };
}
constructors!(gguf Gguf, quant Quant, model Model, pairing Pairing, tree Tree, device Device, argument Argument);

impl Error {
    /// Wraps a system error with the file it concerns.
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io { path: path.as_ref().to_path_buf(), source }
    }

    /// The evidence, for errors that carry one.
    pub fn evidence(&self) -> Option<&Evidence> {
        match self {
            Self::Gguf(e)
            | Self::Quant(e)
            | Self::Model(e)
            | Self::Pairing(e)
            | Self::Tree(e)
            | Self::Device(e)
            | Self::Argument(e) => Some(e),
            Self::Io { .. } | Self::Interrupted => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_leaves_out_what_is_not_known() {
        let message = |evidence| Error::gguf(evidence).to_string();
        assert_eq!(message(Evidence::new("w")), "w");
        assert_eq!(message(Evidence::new("w").found(3)), "w: found 3");
        assert_eq!(message(Evidence::new("w").key("k").expected("x")), "w: k: expected x");
        assert_eq!(message(Evidence::new("w").path("p").key("k").expected(1).found(2)), "w: p, k: expected 1, found 2");
    }

    #[test]
    fn system_errors_name_the_file_and_no_number() {
        let source = std::io::Error::from_raw_os_error(2);
        assert_eq!(Error::io("a.gguf", source).to_string(), "cannot read or write: a.gguf: No such file or directory");
    }

    #[test]
    fn message_names_what_where_expected_and_found() {
        let evidence = Evidence::new("tensor has the wrong shape")
            .path("a.gguf")
            .tensor("blk.0.attn_q.weight")
            .expected("[576, 576]")
            .found("[576, 192]");
        assert_eq!(
            Error::model(evidence).to_string(),
            "tensor has the wrong shape: a.gguf, tensor blk.0.attn_q.weight: expected [576, 576], found [576, 192]"
        );
    }
}
