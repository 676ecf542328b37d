//! Quantizes a file: llama-quantize's types and rules, tensor by tensor, with as much memory as a few rows take.

mod file_type;
mod imatrix;
mod rules;

use std::path::{Path, PathBuf};

use draftgauge_kernels::quant::{self, QuantType};
use serde::Serialize;

pub use file_type::{FILE_TYPES, FileType};
pub use imatrix::Imatrix;
pub use rules::{Chooser, ModelFacts, fitting, is_quantized, layer};

use crate::error::{Error, Evidence, Result};
use crate::gguf::{GgufFile, Metadata, TensorInfo, TensorSpec, Value, Writer};
use crate::parallel::map_parts_on;

/// Values that are converted between two looks at the progress: what memory holds of a tensor.
const VALUES_AT_ONCE: usize = 8 << 20;

/// What a file is quantized to.
#[derive(Debug, Default)]
pub struct Options {
    /// Importance of columns.
    pub imatrix: Option<Imatrix>,
    /// Gives every tensor the default type.
    pub pure: bool,
    /// Type of `output.weight` in place of the rules'.
    pub output_type: Option<QuantType>,
    /// Type of `token_embd.weight` in place of the rules'.
    pub embedding_type: Option<QuantType>,
    /// Types of single tensors, by name, in place of the rules'.
    pub tensor_types: Vec<(String, QuantType)>,
    /// Takes weights that are quantized already.
    pub allow_requantize: bool,
    /// Leaves `output.weight` as it is.
    pub leave_output: bool,
    /// Most threads; every core where `None`.
    pub threads: Option<usize>,
}

/// What happens to one tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The tensor.
    pub name: String,
    /// Type in the input.
    pub from: String,
    /// Type in the output.
    pub to: String,
    /// Bytes in the output.
    pub bytes: u64,
    /// Whether its rows did not fit the type that the rules chose.
    pub fallback: bool,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The files.
    pub input: PathBuf,
    /// The file that was written.
    pub output: PathBuf,
    /// llama-quantize's name of the type.
    pub file_type: String,
    /// Bytes of all tensors of the input.
    pub bytes_before: u64,
    /// Bytes of all tensors of the output.
    pub bytes_after: u64,
    /// Every tensor, in the order of the output.
    pub tensors: Vec<Change>,
    /// Whether the output was there already: see [`quantize_file`].
    pub kept: bool,
}

/// A tensor on its way.
struct Job<'a> {
    info: &'a TensorInfo,
    from: QuantType,
    to: QuantType,
    fallback: bool,
    spec: TensorSpec,
}

/// Quantizes `input` to `output`. `progress` is told the share that is done; its error ends the work and leaves no file.
///
/// An output is kept that is younger than all that it is made of, has the header that would be written, and agrees in the
/// first, middle and last row of every tensor: a run over many files goes on where it stopped.
///
/// # Errors
/// `Error::Argument` when the two are one file, or weights are quantized already and that was not allowed;
/// `Error::Quant` for a type without a quantizer, a value that is not finite, or a type that needs an importance matrix;
/// whatever is wrong with the files.
pub fn quantize_file(
    input: &Path,
    output: &Path,
    file_type: FileType,
    options: &Options,
    progress: &mut dyn FnMut(f64) -> Result<()>,
) -> Result<Report> {
    let file = GgufFile::open(input)?;
    file.require_valid()?;
    refuse_same_file(&file, output)?;
    let jobs = plan(&file, file_type, options)?;
    let metadata = metadata(&file, file_type, options);
    let specs: Vec<TensorSpec> = jobs.iter().map(|job| job.spec.clone()).collect();
    let bytes_after = jobs.iter().map(|job| job.spec.nbytes()).sum();
    let report = |kept| Report {
        input: input.to_path_buf(),
        output: output.to_path_buf(),
        file_type: file_type.name.to_owned(),
        bytes_before: file.tensors().iter().map(|info| info.nbytes).sum(),
        bytes_after,
        tensors: jobs.iter().map(Job::change).collect(),
        kept,
    };
    if is_done(&file, output, &metadata, &jobs, options) {
        progress(1.0)?;
        return Ok(report(true));
    }
    let total: u64 = jobs.iter().map(|job| job.info.num_elements()).sum();
    let mut done = 0;
    let mut tick = |values: u64| {
        done += values;
        progress(done as f64 / total.max(1) as f64)
    };
    let mut writer = Writer::create(output, &metadata, &specs)?;
    for job in &jobs {
        job.write(&file, options, &mut writer, &mut tick)?;
    }
    writer.finish()?;
    Ok(report(false))
}

/// Whether the output is there already: younger than all that it is made of, with the header that would be written, and
/// with the data that would be written in the first, middle and last row of every tensor.
fn is_done(input: &GgufFile, output: &Path, metadata: &Metadata, jobs: &[Job<'_>], options: &Options) -> bool {
    let age = |path: &Path| std::fs::metadata(path).and_then(|facts| facts.modified()).ok();
    let Ok(there) = GgufFile::open(output) else { return false };
    let mut sources = input.shards().iter().map(|shard| &shard.path).chain(options.imatrix.iter().map(|m| &m.path));
    // Clocks of file systems tick in milliseconds: of equal times nothing follows.
    let younger = sources.all(|source| age(output).is_some() && age(output) > age(source));
    let same_tensors = there.tensors().iter().map(TensorSpec::from).eq(jobs.iter().map(|job| job.spec.clone()));
    younger
        && there.problems().is_empty()
        && same_tensors
        && there.metadata().iter().eq(metadata.iter())
        && there.tensors().iter().zip(jobs).all(|(made, job)| job.agrees(input, options, &there, made).unwrap_or(false))
}

fn refuse_same_file(file: &GgufFile, output: &Path) -> Result<()> {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    match file.shards().iter().find(|shard| real(&shard.path).is_some_and(|path| Some(path) == real(output))) {
        Some(shard) => Err(Error::argument(
            Evidence::new("a file cannot be quantized onto itself")
                .path(&shard.path)
                .key("output")
                .expected("another file")
                .found(output.display()),
        )),
        None => Ok(()),
    }
}

/// Every tensor with its type, in the order in which llama-quantize visits and writes them: by layer, then by name.
fn plan<'a>(file: &'a GgufFile, file_type: FileType, options: &Options) -> Result<Vec<Job<'a>>> {
    let mut tensors: Vec<&TensorInfo> = file.tensors().iter().collect();
    let place = |info: &TensorInfo| layer(&info.name).map_or(-1, |layer| layer as i64);
    tensors.sort_by(|a, b| (place(a), &a.name).cmp(&(place(b), &b.name)));
    let mut chooser = Chooser::new(file_type, facts(file, options));
    tensors.into_iter().map(|info| job(file, info, file_type, options, &mut chooser)).collect()
}

fn job<'a>(
    file: &GgufFile,
    info: &'a TensorInfo,
    file_type: FileType,
    options: &Options,
    chooser: &mut Chooser,
) -> Result<Job<'a>> {
    let problem = |what: &str| Evidence::new(what).path(file.path()).tensor(&info.name);
    let from = info
        .ty
        .ok_or_else(|| Error::gguf(problem("tensor has an unknown type").found(format!("type {}", info.type_id))))?;
    let columns = info.shape.last().map_or(1, |&columns| columns as usize);
    let untouched = !is_quantized(&info.name, &info.shape) || options.leave_output && info.name == "output.weight";
    let (mut to, mut fallback) = (from, false);
    if !untouched {
        let rules_run = !matches!(file_type.default, QuantType::F32 | QuantType::F16 | QuantType::BF16);
        let tied = file.tensor("output.weight").is_none();
        let special = match info.name.as_str() {
            "output.weight" => options.output_type,
            "token_embd.weight" if tied => options.embedding_type.or(options.output_type),
            "token_embd.weight" | "per_layer_token_embd.weight" => options.embedding_type,
            _ => None,
        };
        let named = options.tensor_types.iter().find(|(name, _)| rules_run && *name == info.name).map(|(_, ty)| *ty);
        // A tensor whose type is given does not count for the rules that count.
        let chosen = match special.or(named) {
            Some(given) => given,
            None if options.pure => file_type.default,
            None => chooser.choose(&info.name, columns),
        };
        to = fitting(chosen, columns);
        fallback = to != chosen;
    }
    if to != from {
        if !to.quantizes() {
            return Err(Error::quant(problem("there is no quantizer for the type").found(to)));
        }
        if !from.dequantizes() {
            return Err(Error::quant(problem("tensor cannot be read as numbers").found(from)));
        }
        let plain = matches!(from, QuantType::F32 | QuantType::F16 | QuantType::BF16 | QuantType::F64);
        if !plain && !options.allow_requantize {
            return Err(Error::argument(
                problem("weights are quantized already, and quantizing them again loses more")
                    .key("allow_requantize")
                    .expected("F32, F16 or BF16")
                    .found(from),
            ));
        }
        let spared = matches!(info.name.as_str(), "token_embd.weight" | "output.weight");
        let needs = file_type.name == "Q2_K_S" && to == QuantType::Q2K && !spared;
        let weighed = options.imatrix.as_ref().map(|m| m.weights(&info.name, columns, slices(info))).transpose()?;
        if needs && weighed.flatten().is_none() {
            return Err(Error::quant(
                problem("the type is useless without an importance matrix").key("imatrix").expected("its weights"),
            ));
        }
    }
    Ok(Job { info, from, to, fallback, spec: TensorSpec::new(&info.name, to, &info.shape)? })
}

/// Slices of a tensor that have importance weights of their own: experts.
fn slices(info: &TensorInfo) -> usize {
    match info.shape.len() {
        0..=2 => 1,
        dims => info.shape[..dims - 2].iter().product::<u64>() as usize,
    }
}

/// What the rules want to know of the model.
fn facts(file: &GgufFile, options: &Options) -> ModelFacts {
    let metadata = file.metadata();
    let architecture = metadata.str("general.architecture").ok().flatten().unwrap_or_default();
    let number = |key: &str| {
        let key = format!("{architecture}.{key}");
        let array = || metadata.u32_array(&key).ok().flatten().and_then(|values| values.first().copied());
        metadata.u32(&key).ok().flatten().or_else(array).unwrap_or(0) as usize
    };
    let heads = number("attention.head_count");
    let kv_heads = number("attention.head_count_kv");
    let value_like = ["attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight"];
    let num_layers = number("block_count");
    let gqa = heads.checked_div(kv_heads).unwrap_or(1);
    ModelFacts {
        num_layers,
        gqa,
        experts: number("expert_count"),
        has_output: file.tensor("output.weight").is_some(),
        value_like: file.tensors().iter().filter(|info| value_like.iter().any(|part| info.name.contains(part))).count(),
        imatrix: options.imatrix.is_some(),
        is_70b: num_layers == 80 && (architecture == "qwen2" || architecture == "llama" && gqa > 1),
    }
}

/// The input's keys in their order; the two that describe the quantization at the end, as llama-quantize puts them.
fn metadata(file: &GgufFile, file_type: FileType, options: &Options) -> Metadata {
    let mut metadata = file.metadata().clone();
    for key in ["split.no", "split.count", "split.tensors.count", "general.quantization_version", "general.file_type"] {
        metadata.remove(key);
    }
    metadata.set("general.quantization_version", 2_u32);
    metadata.set("general.file_type", file_type.id);
    if let Some(imatrix) = &options.imatrix {
        metadata.set("quantize.imatrix.file", Value::from(&*imatrix.path.to_string_lossy()));
        if let Some(dataset) = &imatrix.dataset {
            metadata.set("quantize.imatrix.dataset", Value::from(dataset.as_str()));
        }
        metadata.set("quantize.imatrix.entries_count", imatrix.len() as u32);
        if imatrix.chunks > 0 {
            metadata.set("quantize.imatrix.chunks_count", imatrix.chunks);
        }
    }
    metadata
}

impl Job<'_> {
    fn change(&self) -> Change {
        Change {
            name: self.info.name.clone(),
            from: self.from.to_string(),
            to: self.to.to_string(),
            bytes: self.spec.nbytes(),
            fallback: self.fallback,
        }
    }

    /// Whether the first, middle and last row of a tensor that is there are what would be written.
    fn agrees(&self, file: &GgufFile, options: &Options, there: &GgufFile, made: &TensorInfo) -> Result<bool> {
        let (data, made) = (file.data(self.info)?, there.data(made)?);
        let columns = self.info.shape.last().map_or(1, |&columns| columns as usize);
        let rows = (self.info.num_elements() as usize).checked_div(columns).unwrap_or(0);
        let (Some(from), Some(to)) = (data.len().checked_div(rows), made.len().checked_div(rows)) else {
            return Ok(data == made);
        };
        let weights = self.weights(options, columns)?;
        for row in [0, rows / 2, rows - 1] {
            let (source, made) = (&data[row * from..(row + 1) * from], &made[row * to..(row + 1) * to]);
            let same = match self.to == self.from {
                true => source == made,
                false => {
                    self.convert(source, row..row + 1, columns, |row| self.of_row(weights, row, rows, columns))? == made
                }
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Importance of the tensor's columns, slice by slice.
    fn weights<'w>(&self, options: &'w Options, columns: usize) -> Result<Option<&'w [f32]>> {
        match &options.imatrix {
            Some(imatrix) if self.to != self.from => imatrix.weights(&self.info.name, columns, slices(self.info)),
            _ => Ok(None),
        }
    }

    /// The part of the importance that one row of `rows` is weighed with.
    fn of_row<'w>(&self, weights: Option<&'w [f32]>, row: usize, rows: usize, columns: usize) -> Option<&'w [f32]> {
        let slice = row / (rows / slices(self.info)).max(1);
        weights.map(|weights| &weights[slice * columns..(slice + 1) * columns])
    }

    /// Writes the tensor's data, a few rows at a time.
    fn write(
        &self,
        file: &GgufFile,
        options: &Options,
        writer: &mut Writer,
        tick: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let data = file.data(self.info)?;
        let columns = self.info.shape.last().map_or(1, |&columns| columns as usize);
        let rows = (self.info.num_elements() as usize).checked_div(columns).unwrap_or(0);
        let row_bytes = data.len().checked_div(rows).unwrap_or(0);
        let weights = self.weights(options, columns)?;
        let at_once = (VALUES_AT_ONCE / columns.max(1)).max(1);
        let num_rows = rows;
        for start in (0..rows).step_by(at_once) {
            let part = start..(start + at_once).min(rows);
            let values = (part.len() * columns) as u64;
            if self.to == self.from {
                writer.write(&data[part.start * row_bytes..part.end * row_bytes])?;
                tick(values)?;
                continue;
            }
            let grain = (64 << 10) / columns.max(1) + 1;
            let pieces = map_parts_on(options.threads.unwrap_or(usize::MAX), part.len(), grain, |rows| {
                let rows = part.start + rows.start..part.start + rows.end;
                let data = &data[rows.start * row_bytes..rows.end * row_bytes];
                self.convert(data, rows, columns, |row| self.of_row(weights, row, num_rows, columns))
            });
            for piece in pieces {
                writer.write(&piece.map_err(|error| {
                    Error::quant(Evidence::new(error.to_string()).path(file.path()).tensor(&self.info.name))
                })?)?;
            }
            tick(values)?;
        }
        Ok(())
    }

    /// Some rows in their new type. `weights` gives the importance of a row's columns.
    fn convert<'w>(
        &self,
        data: &[u8],
        rows: std::ops::Range<usize>,
        columns: usize,
        weights: impl Fn(usize) -> Option<&'w [f32]>,
    ) -> std::result::Result<Vec<u8>, quant::QuantError> {
        let mut values = vec![0.0; rows.len() * columns];
        quant::dequantize(self.from, data, &mut values)?;
        let row_bytes = self.to.row_bytes(columns).unwrap_or(0);
        let mut out = vec![0; rows.len() * row_bytes];
        for ((row, x), out) in rows.zip(values.chunks_exact(columns)).zip(out.chunks_exact_mut(row_bytes.max(1))) {
            quant::quantize(self.to, x, columns, weights(row), out)?;
        }
        Ok(out)
    }
}
