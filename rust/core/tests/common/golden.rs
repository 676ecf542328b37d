//! Tiny llama models and what transformers computes on them (`tests/golden/make_llama.py`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use draftgauge_core::backend::{
    Backend, CacheType, Engine, Forest, Head, Loaded, Outputs, Request, StateOptions, WeightSource,
};
use draftgauge_core::gguf::{self, GgufFile, TensorSpec};
use draftgauge_core::program::TapPoint;
use draftgauge_core::targets;
use draftgauge_kernels::float::{f16_to_f32, f32_to_f16};
use draftgauge_kernels::quant::QuantType;

/// Lengths of the runs that transformers made.
pub const LENGTHS: [usize; 4] = [1, 7, 65, 300];

/// Names of the models.
pub const NAMES: [&str; 5] = ["gqa3", "mha_bias_linear", "gqa4_wide_llama3", "gqa4_yarn", "mha_yarn_ramps"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama").join(format!("{name}.gguf"))
}

/// A model of the given name on a backend.
pub fn load<B: Backend>(name: &str, backend: B) -> Arc<dyn Engine> {
    load_file(&path(name), backend)
}

/// Any file on a backend.
pub fn load_file<B: Backend>(path: &Path, backend: B) -> Arc<dyn Engine> {
    let file = GgufFile::open(path).unwrap();
    let program = targets::build(&file, file.metadata()).unwrap();
    let weights = program
        .weights
        .iter()
        .map(|spec| Arc::new(backend.weight(spec, WeightSource::read(spec, &file).unwrap()).unwrap()))
        .collect();
    let backend = Arc::new(backend);
    let plan = backend.plan(program, weights).unwrap();
    Arc::new(Loaded::new(backend, plan))
}

/// A model written in another way that computes the same: query, key and value of a layer as one tensor, and every
/// matrix of a layer doubled, with a factor of one half beside it.
pub fn rewritten(name: &str, folder: &Path) -> PathBuf {
    let file = GgufFile::open(path(name)).unwrap();
    let mut tensors: Vec<(TensorSpec, Vec<u8>)> = Vec::new();
    for info in file.tensors() {
        let ty = info.ty.unwrap();
        let data = file.data(info).unwrap();
        let doubled = info.name.starts_with("blk.") && info.shape.len() == 2;
        let data = if doubled { twice(ty, data) } else { data.to_vec() };
        let part = ["attn_q.", "attn_k.", "attn_v."].iter().find_map(|part| info.name.split_once(part));
        match part {
            // Keys and values follow the queries of their layer in these files, so the whole grows row by row.
            Some((layer, rest)) => {
                let fused = format!("{layer}attn_qkv.{rest}");
                let known = tensors.iter().position(|(spec, _)| spec.name() == fused);
                let index = known.unwrap_or(tensors.len());
                if known.is_none() {
                    tensors.push((TensorSpec::new(fused.clone(), ty, &info.shape).unwrap(), Vec::new()));
                }
                tensors[index].1.extend(data);
                let row = ty.row_bytes(info.shape[1..].iter().product::<u64>() as usize).unwrap();
                let rows = (tensors[index].1.len() / row) as u64;
                let shape = [&[rows], &info.shape[1..]].concat();
                tensors[index].0 = TensorSpec::new(fused, ty, &shape).unwrap();
            }
            None => tensors.push((TensorSpec::from(info), data)),
        }
    }
    let scaled: Vec<String> = tensors
        .iter()
        .filter_map(|(spec, _)| spec.name().strip_suffix(".weight").filter(|name| name.starts_with("blk.")))
        .filter(|name| !name.contains("norm"))
        .map(str::to_owned)
        .collect();
    for name in scaled {
        let scale = TensorSpec::new(format!("{name}.scale"), QuantType::F32, &[1]).unwrap();
        tensors.push((scale, 0.5_f32.to_le_bytes().to_vec()));
        let unused = TensorSpec::new(format!("{name}.input_scale"), QuantType::F32, &[1]).unwrap();
        tensors.push((unused, 3.0_f32.to_le_bytes().to_vec()));
    }
    let path = folder.join(format!("{name}.gguf"));
    gguf::write(&path, file.metadata(), tensors.iter().map(|(spec, data)| (spec.clone(), &data[..]))).unwrap();
    path
}

/// Floats times two, which loses nothing.
fn twice(ty: QuantType, data: &[u8]) -> Vec<u8> {
    match ty {
        QuantType::F32 => {
            data.as_chunks().0.iter().flat_map(|v| (2.0 * f32::from_le_bytes(*v)).to_le_bytes()).collect()
        }
        QuantType::F16 => {
            let double = |v: &[u8; 2]| f32_to_f16(2.0 * f16_to_f32(u16::from_le_bytes(*v))).to_le_bytes();
            data.as_chunks().0.iter().flat_map(double).collect()
        }
        other => panic!("the golden models have no {other}"),
    }
}

/// Logits of the first `count` tokens of a model's own text, on an engine.
pub fn logits_of(name: &str, engine: &Arc<dyn Engine>, count: usize) -> Vec<f32> {
    let options = StateOptions { ctx: 512, slots: 1, key: CacheType::F32, value: CacheType::F32 };
    let mut outputs = Outputs::default();
    let rows: Vec<usize> = (0..count).collect();
    let request = Request { rows: &rows, head: Head::Logits, taps: &[], features: None };
    let tokens = &Expected::open(name).tokens()[..count];
    engine.open(options).unwrap().run(&Forest::chain(tokens, 0, 0), &request, &mut outputs).unwrap();
    outputs.logits
}

/// What transformers computed.
pub struct Expected {
    file: GgufFile,
}

impl Expected {
    pub fn open(name: &str) -> Self {
        Self { file: GgufFile::open(path(&format!("{name}.expected"))).unwrap() }
    }

    fn words(&self, name: &str) -> (Vec<[u8; 4]>, Vec<usize>) {
        let info = self.file.tensor(name).unwrap();
        let words = self.file.bytes(info).unwrap().chunks_exact(4).map(|word| word.try_into().unwrap()).collect();
        (words, info.shape.iter().map(|&dim| dim as usize).collect())
    }

    pub fn tokens(&self) -> Vec<u32> {
        self.words("tokens").0.into_iter().map(u32::from_le_bytes).collect()
    }

    /// Logits of the last rows of a run, and how many rows.
    pub fn logits(&self, length: usize) -> (Vec<f32>, usize) {
        let (words, shape) = self.words(&format!("logits.{length}"));
        (words.into_iter().map(f32::from_le_bytes).collect(), shape[0])
    }

    /// Values at each point in the last rows of a run: `[points, rows, hidden]`.
    pub fn features(&self, length: usize) -> (Vec<f32>, Vec<usize>) {
        let (words, shape) = self.words(&format!("features.{length}"));
        (words.into_iter().map(f32::from_le_bytes).collect(), shape)
    }
}

/// Largest difference as a share of the range of `want`.
pub fn off(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let (low, high) = want.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / (high - low)
}

/// Runs every length of every model and returns the worst differences of logits and features.
pub fn worst<B: Backend>(backend: impl Fn() -> B) -> (f32, f32) {
    let mut worst = (0.0_f32, 0.0_f32);
    for name in NAMES {
        let engine = load(name, backend());
        let expected = Expected::open(name);
        let tokens = expected.tokens();
        let points: Vec<TapPoint> = std::iter::once(TapPoint::Embeddings)
            .chain((0..engine.program().num_layers).map(TapPoint::Layer))
            .chain([TapPoint::Final])
            .collect();
        for length in LENGTHS {
            let options = StateOptions { ctx: 512, slots: 1, key: CacheType::F32, value: CacheType::F32 };
            let mut state = engine.open(options).unwrap();
            let (logits, num_rows) = expected.logits(length);
            let rows: Vec<usize> = (length - num_rows..length).collect();
            let mut outputs = Outputs::default();
            let request = Request { rows: &rows, head: Head::Logits, taps: &points, features: None };
            state.run(&Forest::chain(&tokens[..length], 0, 0), &request, &mut outputs).unwrap();
            worst.0 = worst.0.max(off(&outputs.logits, &logits));

            let (features, shape) = expected.features(length);
            let hidden = engine.program().hidden_size;
            assert_eq!(shape, [points.len(), num_rows, hidden]);
            for (got, want) in outputs.taps.chunks_exact(length * hidden).zip(features.chunks_exact(num_rows * hidden))
            {
                worst.1 = worst.1.max(off(&got[(length - num_rows) * hidden..], want));
            }
            println!("{name} at {length}: logits {:e}, features {:e}", worst.0, worst.1);
        }
    }
    worst
}
