//! What an architecture sees of its file: prefixed keys, and tensors checked for shape and type as they are named.

use std::collections::HashSet;
use std::fmt::Display;

use draftgauge_kernels::quant::QuantType;

use crate::error::{Error, Evidence, Result};
use crate::gguf::{GgufFile, Metadata};
use crate::program::{ProgramBuilder, RopeScaling, WeightId, WeightUse};

/// More layers than any model has; llama.cpp refuses from here on as well.
const MAX_LAYERS: u32 = 512;

/// Words in the keys of files whose weights or caches were transformed.
const TRANSFORMS: [&str; 3] = ["hadamard", "rotation", "transform"];

/// A file seen through one architecture's prefix.
pub struct ModelFile<'a> {
    file: &'a GgufFile,
    metadata: &'a Metadata,
    prefix: &'static str,
    used: HashSet<String>,
}

impl<'a> ModelFile<'a> {
    /// Looks at `file` through `prefix`. `metadata` is the file's own, with overrides applied.
    pub fn new(file: &'a GgufFile, metadata: &'a Metadata, prefix: &'static str) -> Self {
        Self { file, metadata, prefix, used: HashSet::new() }
    }

    /// The full name of an architecture's key.
    pub fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A required positive count.
    pub fn count(&self, key: &str) -> Result<usize> {
        let key = self.key(key);
        let value = self.metadata.required_u32(&key)?;
        self.positive(&key, value)
    }

    /// An optional positive count.
    pub fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        let key = self.key(key);
        self.metadata.u32(&key)?.map(|value| self.positive(&key, value)).transpose()
    }

    /// An optional number, zero included.
    pub fn optional_u32(&self, key: &str) -> Result<Option<u32>> {
        self.metadata.u32(&self.key(key))
    }

    /// A positive count for each of `num_layers` layers: an array of that length, or one value for all.
    pub fn layer_counts(&self, key: &str, num_layers: usize) -> Result<Option<Vec<usize>>> {
        let key = self.key(key);
        let Some(values) = self.metadata.u32_or_array(&key, num_layers)? else { return Ok(None) };
        values.into_iter().map(|value| self.positive(&key, value)).collect::<Result<_>>().map(Some)
    }

    /// As [`Self::layer_counts`], for a key that must be there.
    pub fn required_layer_counts(&self, key: &str, num_layers: usize) -> Result<Vec<usize>> {
        self.layer_counts(key, num_layers)?.ok_or_else(|| self.missing(key))
    }

    /// The number of layers.
    pub fn num_layers(&self) -> Result<usize> {
        let key = self.key("block_count");
        let value = self.metadata.required_u32(&key)?;
        if value > MAX_LAYERS {
            return Err(self.bad_key(&key, format!("at most {MAX_LAYERS}"), value));
        }
        self.positive(&key, value)
    }

    /// An optional finite number.
    pub fn float(&self, key: &str) -> Result<Option<f32>> {
        let key = self.key(key);
        match self.metadata.f32(&key)? {
            Some(value) if !value.is_finite() => Err(self.bad_key(&key, "a finite number", value)),
            value => Ok(value),
        }
    }

    /// A required finite number.
    pub fn required_float(&self, key: &str) -> Result<f32> {
        self.float(key)?.ok_or_else(|| self.missing(key))
    }

    /// Whether the file has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Row-major shape of a tensor in the file.
    pub fn shape(&self, name: &str) -> Result<Vec<usize>> {
        let Some(info) = self.file.tensor(name) else {
            return Err(Error::model(Evidence::new("tensor is missing").path(self.file.path()).tensor(name)));
        };
        info.shape.iter().map(|&dim| usize::try_from(dim)).collect::<std::result::Result<_, _>>().map_err(|_| {
            self.bad_tensor(
                name,
                "tensor is too large",
                "dimensions that fit this machine",
                format!("{:?}", info.shape),
            )
        })
    }

    /// Names a required weight: it must be there, with this shape and a type that can be read.
    pub fn weight(
        &mut self,
        builder: &mut ProgramBuilder,
        name: &str,
        shape: &[usize],
        usage: WeightUse,
    ) -> Result<WeightId> {
        let found = self.shape(name)?;
        // Trailing dimensions of one are not written: in row-major order they lead.
        let trimmed = |dims: &[usize]| dims.iter().copied().skip_while(|&dim| dim == 1).collect::<Vec<_>>();
        if trimmed(&found) != trimmed(shape) {
            return Err(self.bad_tensor(
                name,
                "tensor has the wrong shape",
                format!("{shape:?}"),
                format!("{found:?}"),
            ));
        }
        let info = self.file.tensor(name).expect("its shape was read");
        match info.ty {
            Some(ty) if ty.dequantizes() => {}
            Some(ty) => {
                return Err(self.bad_tensor(
                    name,
                    "tensor cannot be read as numbers",
                    "a floating or quantized type",
                    ty,
                ));
            }
            None => {
                return Err(self.bad_tensor(
                    name,
                    "tensor has an unknown type",
                    "a ggml type of this release",
                    format!("type {}", info.type_id),
                ));
            }
        }
        let ty = info.ty;
        self.used.insert(name.to_owned());
        let weight = builder.weight(name, shape, usage);
        if let Some(scale) = self.product_scale(name, ty, usage)? {
            builder.scale(weight, scale);
        }
        Ok(weight)
    }

    /// Names the matrices (or biases) that lie one below another in one tensor, with `rows` rows each and further
    /// dimensions `width`.
    pub fn stacked(
        &mut self,
        builder: &mut ProgramBuilder,
        name: &str,
        rows: &[usize],
        width: &[usize],
        usage: WeightUse,
    ) -> Result<Vec<WeightId>> {
        // Checked as a whole first; a builder of its own keeps the whole out of the program.
        let shape = |rows: usize| [&[rows], width].concat();
        self.weight(&mut ProgramBuilder::new(), name, &shape(rows.iter().sum()), usage)?;
        let scale = self.product_scale(name, self.file.tensor(name).and_then(|info| info.ty), usage)?;
        let mut first = 0;
        let part = |&rows: &usize| {
            let weight = builder.rows(name, first, &shape(rows), usage);
            builder.scale(weight, scale.unwrap_or(1.0));
            first += rows;
            weight
        };
        Ok(rows.iter().map(part).collect())
    }

    /// The factor that llama.cpp takes from `NAME.scale` beside `NAME.weight`: of the matrices of a layer, and of a head
    /// in NVFP4. `NAME.input_scale` is for activations of four bits, which its CPU path does not have either.
    fn product_scale(&mut self, name: &str, ty: Option<QuantType>, usage: WeightUse) -> Result<Option<f32>> {
        let Some(stem) = name.strip_suffix(".weight").filter(|_| usage == WeightUse::Matmul) else { return Ok(None) };
        if !(stem.starts_with("blk.") || stem == "output" && ty == Some(QuantType::NVFP4)) {
            return Ok(None);
        }
        let input = format!("{stem}.input_scale");
        if self.has(&input) {
            self.used.insert(input);
        }
        self.scalar(&format!("{stem}.scale"))
    }

    /// Names a weight that may be absent.
    pub fn optional_weight(
        &mut self,
        builder: &mut ProgramBuilder,
        name: &str,
        shape: &[usize],
        usage: WeightUse,
    ) -> Result<Option<WeightId>> {
        if self.has(name) { self.weight(builder, name, shape, usage).map(Some) } else { Ok(None) }
    }

    /// The keys and values that are read.
    pub fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    /// The numbers of a small tensor, where the file has it.
    pub fn values(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        let Some(ty) = info.ty.filter(|ty| ty.dequantizes()) else {
            return Err(self.bad_tensor(
                name,
                "tensor cannot be read as numbers",
                "a floating or quantized type",
                info.type_name(),
            ));
        };
        let data = self.file.data(info)?;
        let mut values = vec![0.0; self.shape(name)?.iter().product()];
        draftgauge_kernels::quant::dequantize(ty, data, &mut values)?;
        self.used.insert(name.to_owned());
        Ok(Some(values))
    }

    /// The one number of a tensor, where the file has it.
    pub fn scalar(&mut self, name: &str) -> Result<Option<f32>> {
        match self.values(name)?.as_deref() {
            None => Ok(None),
            Some(&[value]) if value.is_finite() => Ok(Some(value)),
            Some(values) => Err(self.bad_tensor(name, "tensor is no factor", "one finite number", values.len())),
        }
    }

    /// The whole numbers of an I64 tensor, where the file has it.
    pub fn integers(&mut self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        if info.ty != Some(QuantType::I64) {
            return Err(self.bad_tensor(name, "tensor has the wrong type", QuantType::I64, info.type_name()));
        }
        let (numbers, _) = self.file.data(info)?.as_chunks::<8>();
        let numbers = numbers.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
        self.used.insert(name.to_owned());
        Ok(Some(numbers))
    }

    /// The rotary scaling of the file, as llama.cpp reads its keys.
    pub fn rope_scaling(&self, train_ctx: usize) -> Result<RopeScaling> {
        let type_key = self.key("rope.scaling.type");
        let kind = self.metadata.str(&type_key)?.unwrap_or("linear");
        let factor = match self.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.float("rope.scale_linear")?,
        };
        // A factor of zero means that there is none.
        let factor = f64::from(factor.filter(|&f| f != 0.0).unwrap_or(1.0));
        if factor < 0.0 {
            return Err(self.bad_key(&self.key("rope.scaling.factor"), "a positive factor", factor));
        }
        let number = |key: &str, default: f32| self.float(key).map(|value| f64::from(value.unwrap_or(default)));
        match kind {
            "none" => Ok(RopeScaling::None),
            "linear" if factor == 1.0 => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => Ok(RopeScaling::Yarn {
                factor,
                original_ctx: self.optional_count("rope.scaling.original_context_length")?.unwrap_or(train_ctx) as f64,
                beta_fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
                attention_factor: number("rope.scaling.attn_factor", 1.0)?
                    * number("rope.scaling.yarn_attn_factor", 1.0)?,
            }),
            other => Err(self.bad_key(&type_key, "none, linear or yarn", other)),
        }
    }

    /// Refuses tensors that the architecture never named, and keys that announce a transform of weights or cache which
    /// nothing here applies: running without them would be running another model.
    pub fn refuse_unused(&self) -> Result<()> {
        let announces = |key: &str| {
            let described = ["general.", "tokenizer.", "quantize."].iter().any(|section| key.starts_with(section));
            !described && TRANSFORMS.iter().any(|word| key.to_ascii_lowercase().contains(word))
        };
        if let Some((key, value)) = self.metadata.iter().find(|(key, _)| announces(key)) {
            return Err(self.bad_key(key, "no transform that this release does not know", value.type_name()));
        }
        let unused: Vec<_> =
            self.file.tensors().iter().filter(|t| !self.used.contains(&t.name)).map(|t| t.name.as_str()).collect();
        let Some(first) = unused.first() else { return Ok(()) };
        Err(self.bad_tensor(
            first,
            "tensor is not part of the architecture",
            format!("{} tensors of {}", self.used.len(), self.prefix),
            format!("{} more", unused.len()),
        ))
    }

    /// An error about a key of this file.
    pub fn bad_key(&self, key: &str, expected: impl Display, found: impl Display) -> Error {
        Error::model(
            Evidence::new("metadata value cannot be used")
                .path(self.file.path())
                .key(key)
                .expected(expected)
                .found(found),
        )
    }

    fn missing(&self, key: &str) -> Error {
        Error::model(Evidence::new("metadata key is missing").path(self.file.path()).key(self.key(key)))
    }

    /// An error about a tensor of this file.
    pub fn bad_tensor(&self, name: &str, what: &str, expected: impl Display, found: impl Display) -> Error {
        Error::model(Evidence::new(what).path(self.file.path()).tensor(name).expected(expected).found(found))
    }

    fn positive(&self, key: &str, value: u32) -> Result<usize> {
        if value == 0 { Err(self.bad_key(key, "a positive number", value)) } else { Ok(value as usize) }
    }
}
