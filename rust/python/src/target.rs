//! Targets: loading on a device, logits and features.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use draftgauge_candle::Candle;
use draftgauge_core::backend::{Backend, CacheType};
use draftgauge_core::cpu::{Cpu, CpuOptions, Numerics, default_threads};
use draftgauge_core::gguf::Override;
use draftgauge_core::program::TapPoint;
use draftgauge_core::target::{Loading, Target, TargetOptions};
use draftgauge_core::text::ChatTemplate;
use draftgauge_core::{Error, Evidence};
use numpy::{PyArray1, PyArray2, PyArray3, PyArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::errors::{Failure, Result};
use crate::signals::Signals;
use crate::text::{PyChatTemplate, PyTokenizer};

/// A loaded model.
#[pyclass(frozen, name = "Target", module = "draftgauge._core")]
pub struct PyTarget {
    pub target: Arc<Target>,
    device: String,
    threads: usize,
    numerics: &'static str,
    template: Option<Arc<ChatTemplate>>,
    // Why the file's own template cannot be used: prompts of ids run all the same.
    template_error: Option<String>,
}

fn argument(key: &str, expected: &str, found: impl Display) -> Error {
    Error::argument(Evidence::new("invalid value").key(key).expected(expected).found(found))
}

fn cache_type(key: &str, name: &str) -> std::result::Result<CacheType, Error> {
    match name {
        "f16" => Ok(CacheType::F16),
        "f32" => Ok(CacheType::F32),
        other => Err(argument(key, "f16 or f32", other)),
    }
}

/// Name of a cache type, as the options spell it.
pub fn cache_name(ty: CacheType) -> &'static str {
    match ty {
        CacheType::F16 => "f16",
        CacheType::F32 => "f32",
    }
}

/// What [`target_load`] was asked for, checked.
struct Load {
    path: PathBuf,
    device: String,
    cpu: CpuOptions,
    options: TargetOptions,
}

impl Load {
    fn run(self, progress: &mut dyn FnMut(Loading) -> draftgauge_core::Result<()>) -> draftgauge_core::Result<Target> {
        let Self { path, device, cpu, options } = self;
        match device.as_str() {
            "cpu" => load_on(&path, Cpu::new(cpu)?, options, progress),
            other if is_accelerator(other) => {
                if cpu.numerics == Numerics::Reference {
                    return Err(argument(
                        "numerics",
                        "fast on a Candle device, whose products are its own",
                        "reference",
                    ));
                }
                // Candle has threads and layouts of its own: an option without effect is refused, not ignored.
                if let Some(threads) = cpu.threads {
                    return Err(argument(
                        "threads",
                        "no number on a Candle device, whose threads are its own",
                        threads,
                    ));
                }
                if cpu.no_pack {
                    return Err(argument("no_pack", "a CPU, since Candle devices pack nothing", other));
                }
                load_on(&path, Candle::new(other)?, options, progress)
            }
            other => Err(argument("device", "cpu, candle-cpu, cuda, cuda:N or metal", other)),
        }
    }
}

/// Whether a name is that of a Candle device, which a build may have.
fn is_accelerator(name: &str) -> bool {
    let number = name.strip_prefix("cuda:");
    matches!(name, "candle-cpu" | "cuda" | "metal") || number.is_some_and(|number| number.parse::<u16>().is_ok())
}

fn load_on<B: Backend>(
    path: &Path,
    backend: B,
    options: TargetOptions,
    progress: &mut dyn FnMut(Loading) -> draftgauge_core::Result<()>,
) -> draftgauge_core::Result<Target> {
    Target::load(path, backend, options, progress)
}

/// Loads a target with the GIL released. `on_plan` is called with the memory plan, `on_progress` with shares of 1.
#[pyfunction]
#[pyo3(signature = (path, *, threads, device, numerics, ctx_size, cache_type_k, cache_type_v, pack, overrides, chat_template, on_plan=None, on_progress=None))]
#[expect(clippy::too_many_arguments, reason = "Python's keywords, each with its own check")]
fn target_load(
    py: Python<'_>,
    path: PathBuf,
    threads: Option<usize>,
    device: String,
    numerics: &str,
    ctx_size: Option<usize>,
    cache_type_k: Option<&str>,
    cache_type_v: Option<&str>,
    pack: bool,
    overrides: Vec<String>,
    chat_template: Option<String>,
    on_plan: Option<Py<PyAny>>,
    on_progress: Option<Py<PyAny>>,
) -> Result<PyTarget> {
    let (numerics, numerics_name, default_cache) = match numerics {
        "fast" => (Numerics::Fast, "fast", CacheType::F16),
        "reference" => (Numerics::Reference, "reference", CacheType::F32),
        other => return Err(argument("numerics", "fast or reference", other).into()),
    };
    let key = cache_type_k.map_or(Ok(default_cache), |name| cache_type("cache_type_k", name))?;
    let value = cache_type_v.map_or(Ok(default_cache), |name| cache_type("cache_type_v", name))?;
    let overrides = overrides.iter().map(|text| text.parse::<Override>()).collect::<draftgauge_core::Result<_>>()?;
    let load = Load {
        path,
        device: device.clone(),
        cpu: CpuOptions { threads, numerics, no_pack: !pack, isa: None },
        options: TargetOptions { ctx: ctx_size, key, value, overrides, chat_template },
    };
    let mut signals = Signals::new();
    let outcome = py.detach(|| {
        load.run(&mut |event| match (event, &on_plan) {
            (Loading::Plan(plan), Some(callback)) => {
                let told = Python::attach(|py| callback.call1(py, (plan.to_string(),)).map(drop));
                signals.keep(told)
            }
            (Loading::Plan(_), None) => Ok(()),
            (Loading::Share(share), _) => signals.tell(on_progress.as_ref(), f64::from(share)),
        })
    });
    let target = signals.finish(outcome)?;
    let (template, template_error) = match py.detach(|| compile_template(&target)) {
        Ok(template) => (template, None),
        Err(error) if has_own_template(&target) => (None, Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    Ok(PyTarget {
        target: Arc::new(target),
        template,
        template_error,
        device,
        threads: threads.unwrap_or_else(default_threads),
        numerics: numerics_name,
    })
}

/// The template that was asked for, or the file's own.
fn compile_template(target: &Target) -> draftgauge_core::Result<Option<Arc<ChatTemplate>>> {
    let tokenizer = target.tokenizer();
    let Some(source) = target.chat_template_source() else { return Ok(None) };
    if has_own_template(target) {
        return Ok(ChatTemplate::from_metadata(target.metadata(), tokenizer)?.map(Arc::new));
    }
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().into_owned();
    Ok(Some(Arc::new(ChatTemplate::new(source, &text(tokenizer.bos()), &text(tokenizer.eos()))?)))
}

/// Whether the template is the file's, not one that the user gave.
fn has_own_template(target: &Target) -> bool {
    matches!(target.metadata().str("tokenizer.chat_template"), Ok(own) if own == target.chat_template_source())
}

#[pymethods]
impl PyTarget {
    #[getter]
    fn path(&self) -> PathBuf {
        self.target.path()
    }

    #[getter]
    fn tokenizer(&self) -> PyTokenizer {
        PyTokenizer(Arc::clone(self.target.tokenizer()))
    }

    #[getter]
    fn chat_template(&self) -> Option<PyChatTemplate> {
        self.template.as_ref().map(|template| PyChatTemplate(Arc::clone(template)))
    }

    #[getter]
    fn architecture(&self) -> &str {
        &self.target.engine().program().architecture
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.target.engine().program().vocab_size
    }

    #[getter]
    fn num_layers(&self) -> usize {
        self.target.engine().program().num_layers
    }

    #[getter]
    fn hidden_size(&self) -> usize {
        self.target.engine().program().hidden_size
    }

    #[getter]
    fn ctx_size(&self) -> usize {
        self.target.state_options().ctx
    }

    #[getter]
    fn cache_types(&self) -> (&'static str, &'static str) {
        let options = self.target.state_options();
        (cache_name(options.key), cache_name(options.value))
    }

    #[getter]
    pub fn device(&self) -> &str {
        &self.device
    }

    #[getter]
    pub fn threads(&self) -> usize {
        self.threads
    }

    #[getter]
    fn numerics(&self) -> &'static str {
        self.numerics
    }

    #[getter]
    fn kernels(&self) -> String {
        self.target.engine().kernels()
    }

    #[getter]
    fn memory(&self) -> String {
        self.target.memory().to_string()
    }

    #[getter]
    fn template_error(&self) -> Option<&str> {
        self.template_error.as_deref()
    }

    #[getter]
    fn notices(&self) -> Vec<String> {
        let broken = self.template_error.as_ref().map(|error| format!("no chat template: {error}"));
        self.target.notices().iter().cloned().chain(broken).collect()
    }

    #[getter]
    fn load_seconds(&self) -> f64 {
        self.target.load_seconds()
    }

    /// Logits of the chosen rows, `[rows, vocab]`; of every row where none is chosen.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        rows: Option<Vec<usize>>,
    ) -> Result<Bound<'py, PyArray2<f32>>> {
        let rows = rows.unwrap_or_else(|| (0..tokens.len()).collect());
        let mut signals = Signals::new();
        let outcome = py.detach(|| self.target.logits(&tokens, &rows, &mut || signals.check()));
        let logits = signals.finish(outcome)?;
        Ok(PyArray1::from_vec(py, logits).reshape([rows.len(), self.vocab_size()])?)
    }

    /// Values at the chosen points, `[tokens, layers, hidden]`.
    fn features<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        layers: Vec<Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyArray3<f32>>> {
        let points = layers.iter().map(tap_point).collect::<Result<Vec<_>>>()?;
        let mut signals = Signals::new();
        let outcome = py.detach(|| self.target.features(&tokens, &points, &mut || signals.check()));
        let features = signals.finish(outcome)?;
        Ok(PyArray1::from_vec(py, features).reshape([tokens.len(), points.len(), self.hidden_size()])?)
    }
}

/// A layer as Python names it: a number, "embeddings" or "final".
fn tap_point(layer: &Bound<'_, PyAny>) -> Result<TapPoint> {
    if let Ok(name) = layer.extract::<&str>() {
        return match name {
            "embeddings" => Ok(TapPoint::Embeddings),
            "final" => Ok(TapPoint::Final),
            other => Err(argument("layers", "a layer's number, \"embeddings\" or \"final\"", other).into()),
        };
    }
    let number = layer
        .extract::<i64>()
        .map_err(|_| Failure::Python(PyTypeError::new_err("layers: expected numbers, \"embeddings\" or \"final\"")))?;
    // A negative number would mean different layers to different readers.
    usize::try_from(number).map(TapPoint::Layer).map_err(|_| {
        Failure::Python(PyValueError::new_err(format!(
            "invalid value: layers: expected 0 or more, \"embeddings\" or \"final\", found {number}"
        )))
    })
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyTarget>()?;
    m.add_function(wrap_pyfunction!(target_load, m)?)?;
    Ok(())
}
