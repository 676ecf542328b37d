//! The backend: one pass over a program's operations, each on whole tensors.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Tensor};
use draftgauge_core::backend::{Backend, Forest, Head, Outputs, Request, StateOptions, Top2, WeightSource};
use draftgauge_core::error::{Error, Evidence, Result};
use draftgauge_core::memory;
use draftgauge_core::program::{
    Activation, Buf, CacheSpec, Linear, Norm, Op, Program, TapPoint, WeightId, WeightSpec, WeightUse,
};
use draftgauge_kernels::quant::QuantType;

use crate::ops::{self, Rotation};
use crate::state::State;
use crate::weights::{Form, Weight, form, held_bytes};
use crate::{device, failed};

/// Candle on one device.
#[derive(Debug)]
pub struct Candle {
    device: Device,
    name: String,
    converted: Mutex<BTreeMap<&'static str, usize>>, // matrices by type
}

impl Candle {
    /// Opens a device by name: `cpu`, `cuda`, `cuda:N` or `metal`.
    ///
    /// # Errors
    /// `Error::Argument` for another name; `Error::Device` when the build lacks the feature or the device is not there.
    pub fn new(device: &str) -> Result<Self> {
        let name = format!("candle-{}", device.trim_start_matches("candle-"));
        Ok(Self { device: device::open(device)?, name, converted: Mutex::default() })
    }
}

/// A program with its weights on a device.
pub struct Plan {
    program: Program,
    weights: Vec<Arc<Weight>>,
}

impl Plan {
    fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    fn vector(&self, id: Option<WeightId>) -> Option<&Tensor> {
        id.map(|id| self.weight(id).vector())
    }
}

impl Backend for Candle {
    type Weight = Weight;
    type Plan = Plan;
    type State = State;

    fn kernels(&self) -> String {
        self.name.clone()
    }

    fn weight_bytes(&self, spec: &WeightSpec, ty: QuantType) -> u64 {
        held_bytes(spec, ty, &self.device)
    }

    fn weight(&self, spec: &WeightSpec, source: WeightSource) -> Result<Weight> {
        let matrix = matches!(spec.usage, WeightUse::Matmul | WeightUse::TableAndMatmul);
        if matrix && form(spec, source.ty, &self.device) == Form::Converted {
            let mut converted = self.converted.lock().unwrap_or_else(PoisonError::into_inner);
            *converted.entry(source.ty.name()).or_default() += 1;
        }
        Weight::new(spec, source, &self.device)
    }

    fn plan(&self, program: Program, weights: Vec<Arc<Weight>>) -> Result<Plan> {
        Ok(Plan { program, weights })
    }

    fn shared_weight(&self, plan: &Plan, id: WeightId) -> Arc<Weight> {
        Arc::clone(&plan.weights[id.0 as usize])
    }

    fn notices(&self) -> Vec<String> {
        let converted = self.converted.lock().unwrap_or_else(PoisonError::into_inner);
        converted
            .iter()
            .map(|(ty, count)| format!("candle cannot multiply by {ty} here: {count} matrices are held as bf16"))
            .collect()
    }

    fn open(&self, plan: &Plan, options: StateOptions) -> Result<State> {
        State::new(&plan.program.caches, options, &self.device)
    }

    fn run(
        &self,
        plan: &Plan,
        state: &mut State,
        forest: &Forest,
        request: &Request<'_>,
        outputs: &mut Outputs,
    ) -> Result<()> {
        outputs.logits.clear();
        outputs.top2.clear();
        outputs.taps.clear();
        request.check(forest, &plan.program)?;
        state.begin(forest, plan.program.vocab_size)?;
        if forest.is_empty() {
            return Ok(());
        }
        let result = Run::new(&self.device, plan, state, forest).and_then(|run| run.all(request, outputs));
        if result.is_err() {
            state.abandon(forest);
        }
        result
    }

    fn commit(&self, _: &Plan, state: &mut State, slot: usize, path: &[usize]) -> Result<()> {
        state.commit(slot, path)
    }

    fn truncate(&self, _: &Plan, state: &mut State, slot: usize, len: usize) -> Result<()> {
        state.truncate(slot, len)
    }

    fn len(&self, state: &State, slot: usize) -> usize {
        state.len(slot)
    }

    fn state_bytes(&self, plan: &Plan, options: StateOptions) -> u64 {
        memory::cache_bytes(&plan.program, options)
    }

    fn program<'a>(&self, plan: &'a Plan) -> &'a Program {
        &plan.program
    }
}

/// Why an operation failed: candle's reason or ours.
enum Stop {
    Candle(candle_core::Error),
    Ours(Error),
}

impl From<candle_core::Error> for Stop {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(error)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// One pass over the operations.
struct Run<'a> {
    device: &'a Device,
    plan: &'a Plan,
    state: &'a mut State,
    forest: &'a Forest,
    buffers: Vec<Option<Tensor>>, // [rows, width] each
    rotations: Vec<Rotation>,
    taps: Vec<(TapPoint, Tensor)>,
    logits: Option<Tensor>, // [request.rows, vocab]
}

impl<'a> Run<'a> {
    fn new(device: &'a Device, plan: &'a Plan, state: &'a mut State, forest: &'a Forest) -> Result<Self> {
        let rotations = plan
            .program
            .ropes
            .iter()
            .map(|rope| {
                let factors = rope.factors.map(|id| plan.weight(id).values());
                Rotation::new(rope, factors, forest.positions(), device)
            })
            .collect::<candle_core::Result<_>>()
            .map_err(failed("rotary embedding"))?;
        let buffers = vec![None; plan.program.buffers.len()];
        Ok(Self { device, plan, state, forest, buffers, rotations, taps: Vec::new(), logits: None })
    }

    fn all(mut self, request: &Request<'_>, outputs: &mut Outputs) -> Result<()> {
        let plan = self.plan;
        let ops = if request.features.is_some() { &plan.program.inject } else { &plan.program.ops };
        for op in ops {
            self.op(op, request).map_err(|stop| self.explain(op, stop))?;
        }
        self.finish(request, outputs)
    }

    fn op(&mut self, op: &Op, request: &Request<'_>) -> std::result::Result<(), Stop> {
        let plan = self.plan;
        let program = &plan.program;
        match op {
            Op::Input { out } => {
                let features = request.features.expect("only a run with features has this operation");
                let x = Tensor::from_slice(features, (self.forest.len(), program.width(*out)), self.device)?;
                self.set(*out, x);
            }
            Op::Embed { table, scale, out } => {
                let rows = plan.weight(*table).rows(self.forest.tokens())?;
                let x = Tensor::from_vec(rows, (self.forest.len(), program.width(*out)), self.device)?;
                self.set(*out, (x * f64::from(*scale))?);
            }
            Op::Tap { point, input } => self.taps.push((*point, self.get(*input).clone())),
            Op::Project { input, norm, parts } => {
                let x = self.normed(*input, *norm)?;
                for part in parts {
                    self.linear(&x, part)?;
                }
            }
            Op::HeadNormRope { buf, num_heads, head_dim, norm, rope } => {
                let width = program.width(*buf);
                let mut x = self.get(*buf).reshape((self.forest.len(), *num_heads, *head_dim))?;
                if let Some(norm) = norm {
                    x = ops::rms_norm(&x, plan.vector(norm.weight), norm.eps)?;
                }
                if let Some(rope) = rope {
                    x = self.rotations[*rope].apply(&x, &program.ropes[*rope])?;
                }
                self.set(*buf, x.reshape((self.forest.len(), width))?);
            }
            Op::Append { cache, key, value } => {
                for (slot, rows) in self.forest.slot_rows() {
                    let keys = self.get(*key).narrow(0, rows.start, rows.len())?;
                    let values = self.get(*value).narrow(0, rows.start, rows.len())?;
                    self.state.append(*cache, slot, &keys, &values)?;
                }
            }
            Op::Attend { cache, query, out, num_heads, scale, softcap, sinks } => {
                let CacheSpec::Attention { window, .. } = program.caches[*cache];
                let mut parts = Vec::new();
                for (slot, rows) in self.forest.slot_rows() {
                    let visible = self.state.visible(*cache, slot, self.forest, rows.clone(), window)?;
                    let query = self.get(*query).narrow(0, rows.start, rows.len())?;
                    parts.push(ops::attend(&query, &visible, *num_heads, *scale, *softcap, plan.vector(*sinks))?);
                }
                self.set(*out, Tensor::cat(&parts, 0)?);
            }
            Op::GatedMlp { stream, norm, gate, up, down, activation } => {
                let x = self.normed(*stream, Some(*norm))?;
                self.linear(&x, gate)?;
                self.linear(&x, up)?;
                let gated = match activation {
                    Activation::Silu => self.get(gate.out).silu()?,
                    Activation::GeluTanh => self.get(gate.out).gelu()?,
                };
                let inner = (gated * self.get(up.out))?;
                self.linear(&inner, down)?;
                self.set(up.out, inner);
            }
            Op::Split { input, first, second, head_dim } => {
                let rows = self.forest.len();
                let heads = program.width(*first) / head_dim;
                let x = self.get(*input).reshape((rows, heads, 2, *head_dim))?;
                for (part, out) in [first, second].into_iter().enumerate() {
                    let half = x.narrow(2, part, 1)?.contiguous()?.reshape((rows, heads * head_dim))?;
                    self.set(*out, half);
                }
            }
            Op::Gate { buf, gate } => {
                let x = (self.get(*buf) * ops::sigmoid(self.get(*gate))?)?;
                self.set(*buf, x);
            }
            Op::AddScale { buf, add, scale } => {
                let mut x = (self.get(*buf) * f64::from(*scale))?;
                if let Some(add) = add {
                    x = (x + self.get(*add))?;
                }
                self.set(*buf, x);
            }
            Op::Head { input, norm, weight, bias, scale, softcap } => {
                let x = self.normed(*input, Some(*norm))?;
                self.taps.push((TapPoint::Final, x.clone()));
                if request.rows.is_empty() {
                    return Ok(());
                }
                let rows: Vec<u32> = request.rows.iter().map(|&row| row as u32).collect();
                let rows = Tensor::from_vec(rows, request.rows.len(), self.device)?;
                let mut logits = plan.weight(*weight).product(&x.index_select(&rows, 0)?)?;
                if let Some(bias) = plan.vector(*bias) {
                    logits = logits.broadcast_add(bias)?;
                }
                self.logits = Some(ops::soft_capped((logits * f64::from(*scale))?, *softcap)?);
            }
            Op::Markov { table, weight, scale, ids } => {
                if let Some(logits) = self.logits.take() {
                    self.logits = Some(self.markov(logits, *table, *weight, *scale, ids.as_deref(), request)?);
                }
            }
        }
        Ok(())
    }

    fn get(&self, buf: Buf) -> &Tensor {
        self.buffers[usize::from(buf.0)].as_ref().expect("a program writes a buffer before it reads it")
    }

    fn set(&mut self, buf: Buf, value: Tensor) {
        self.buffers[usize::from(buf.0)] = Some(value);
    }

    fn normed(&self, input: Buf, norm: Option<Norm>) -> candle_core::Result<Tensor> {
        match norm {
            Some(norm) => ops::rms_norm(self.get(input), self.plan.vector(norm.weight), norm.eps),
            None => Ok(self.get(input).clone()),
        }
    }

    fn linear(&mut self, x: &Tensor, part: &Linear) -> candle_core::Result<()> {
        let mut product = self.plan.weight(part.weight).product(x)?;
        if let Some(bias) = self.plan.vector(part.bias) {
            product = product.broadcast_add(bias)?;
        }
        if part.accumulate {
            product = (self.get(part.out) + product)?;
        }
        self.set(part.out, product);
        Ok(())
    }

    /// Biases each requested row by the choice at the one before it in its draft block.
    fn markov(
        &self,
        logits: Tensor,
        table: WeightId,
        weight: WeightId,
        scale: f32,
        ids: Option<&[u32]>,
        request: &Request<'_>,
    ) -> std::result::Result<Tensor, Stop> {
        let rank = self.plan.program.weight(table).shape[1];
        let width = self.forest.draft_blocks().map_or(self.forest.len(), |blocks| blocks.width);
        let mut rows = Vec::with_capacity(request.rows.len());
        let mut before: Option<(usize, u32)> = None;
        for (place, &row) in request.rows.iter().enumerate() {
            let block = row / width;
            let previous = match before {
                Some((last, token)) if last == block => token,
                _ => self.forest.tokens()[block * width],
            };
            let embedded = Tensor::from_vec(self.plan.weight(table).rows(&[previous])?, (1, rank), self.device)?;
            let bias = (self.plan.weight(weight).product(&embedded)? * f64::from(scale))?;
            let biased = (logits.narrow(0, place, 1)? + bias)?;
            // The device's own argmax leaves the choice among equals open; the host's is the lowest row.
            let choice = Top2::of(&biased.flatten_all()?.to_vec1::<f32>()?).token;
            before = Some((block, ids.map_or(choice, |ids| ids[choice as usize])));
            rows.push(biased);
        }
        Ok(Tensor::cat(&rows, 0)?)
    }

    fn explain(&self, op: &Op, stop: Stop) -> Error {
        match stop {
            Stop::Ours(error) => error,
            Stop::Candle(error) => {
                let name = format!("{op:?}");
                let name = name.split([' ', '{']).next().unwrap_or_default();
                let layer = self.taps.iter().rev().find_map(|(point, _)| match point {
                    TapPoint::Layer(layer) => Some(layer + 1),
                    _ => None,
                });
                failed(&format!("{name} in layer {}", layer.unwrap_or(0)))(error)
            }
        }
    }

    /// Brings to the host what was asked for, unless something is not finite.
    fn finish(self, request: &Request<'_>, outputs: &mut Outputs) -> Result<()> {
        self.require_finite()?;
        for point in request.taps {
            let Some((_, values)) = self.taps.iter().find(|(known, _)| known == point) else {
                return Err(Error::argument(Evidence::new("program has no such point").found(format!("{point:?}"))));
            };
            outputs.taps.extend(host(values)?);
        }
        let Some(logits) = &self.logits else { return Ok(()) };
        let logits = host(logits)?;
        for (&row, logits) in request.rows.iter().zip(logits.chunks_exact(self.plan.program.head_size)) {
            if let Some(id) = logits.iter().position(|logit| !logit.is_finite()) {
                return Err(Error::model(
                    Evidence::new("logit is not finite").key(format!("row {row}, token {id}")).found(logits[id]),
                ));
            }
            if request.head == Head::Top2 {
                outputs.top2.push(Top2::of(logits));
            }
        }
        if request.head == Head::Logits {
            outputs.logits = logits;
        }
        Ok(())
    }

    /// Looks at every point of the pass with one transfer: a value times zero is zero exactly when it is finite.
    fn require_finite(&self) -> Result<()> {
        let layers = || self.taps.iter().filter(|(point, _)| *point != TapPoint::Final);
        if layers().next().is_none() {
            return Ok(());
        }
        let zeros = layers()
            .map(|(_, values)| (values * 0.0)?.sum(1))
            .collect::<candle_core::Result<Vec<_>>>()
            .and_then(|zeros| Tensor::cat(&zeros, 0))
            .map_err(failed("check of finite values"))?;
        let Some(index) = host(&zeros)?.iter().position(|zero| *zero != 0.0) else { return Ok(()) };
        let (place, row) = (index / self.forest.len(), index % self.forest.len());
        let (point, values) = layers().nth(place).expect("the index counts these");
        let layer = match point {
            TapPoint::Layer(layer) => *layer as isize,
            _ => -1,
        };
        let values = host(&values.narrow(0, row, 1).map_err(failed("narrow"))?)?;
        let value = values.into_iter().find(|value| !value.is_finite()).unwrap_or(f32::NAN);
        Err(Error::model(
            Evidence::new("hidden state is not finite").key(format!("after layer {layer}, row {row}")).found(value),
        ))
    }
}

/// All values of a tensor, in row-major order.
fn host(values: &Tensor) -> Result<Vec<f32>> {
    values.flatten_all().and_then(|flat| flat.to_vec1()).map_err(failed("transfer to the host"))
}
