//! The plain f32 reading of a program: no packing, no threads, no fusion.
//!
//! It is what the other backends are compared with, so every operation is a loop that anybody can check.

mod ops;
mod state;

use std::sync::Arc;

use crate::backend::{Backend, CacheType, Forest, Head, Outputs, Request, StateOptions, Top2, WeightSource};
use crate::error::{Error, Evidence, Result};
use crate::memory;
use crate::program::{Activation, Buf, Linear, Norm, Op, Program, TapPoint, WeightId, WeightSpec};
use draftgauge_kernels::quant::{self, QuantType};

use state::State;

/// The plain backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Naive;

/// A program with its weights as f32.
#[derive(Debug)]
pub struct Plan {
    program: Program,
    weights: Vec<Arc<Vec<f32>>>,
}

impl Backend for Naive {
    type Weight = Vec<f32>;
    type Plan = Plan;
    type State = State;

    fn kernels(&self) -> String {
        "naive".to_owned()
    }

    fn weight_bytes(&self, spec: &WeightSpec, _: QuantType) -> u64 {
        spec.shape.iter().fold(4_u64, |bytes, &dim| bytes.saturating_mul(dim as u64))
    }

    fn weight(&self, spec: &WeightSpec, source: WeightSource) -> Result<Vec<f32>> {
        let mut values = vec![0.0; spec.shape.iter().product()];
        quant::dequantize(source.ty, &source.data, &mut values)
            .map_err(|error| Error::quant(Evidence::new(error.to_string()).tensor(&spec.name)))?;
        values.iter_mut().for_each(|value| *value *= spec.scale);
        Ok(values)
    }

    fn plan(&self, program: Program, weights: Vec<Arc<Vec<f32>>>) -> Result<Plan> {
        Ok(Plan { program, weights })
    }

    fn shared_weight(&self, plan: &Plan, id: WeightId) -> Arc<Vec<f32>> {
        Arc::clone(&plan.weights[id.0 as usize])
    }

    fn open(&self, plan: &Plan, options: StateOptions) -> Result<State> {
        Ok(State::new(&plan.program.caches, options))
    }

    fn run(
        &self,
        plan: &Plan,
        state: &mut State,
        forest: &Forest,
        request: &Request<'_>,
        outputs: &mut Outputs,
    ) -> Result<()> {
        request.check(forest, &plan.program)?;
        state.begin(forest, plan.program.vocab_size)?;
        outputs.logits.clear();
        outputs.top2.clear();
        outputs.taps.clear();
        outputs.taps.resize(request.taps.len() * forest.len() * plan.program.hidden_size, 0.0);
        let buffers = plan.program.buffers.iter().map(|width| vec![0.0; forest.len() * width]).collect();
        let mut run = Run { plan, state, forest, buffers, layer: 0, logits: Vec::new() };
        let ops = if request.features.is_some() { &plan.program.inject } else { &plan.program.ops };
        let result =
            ops.iter().try_for_each(|op| run.op(op, request, outputs)).and_then(|()| run.finish(request, outputs));
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
        memory::cache_bytes(&plan.program, StateOptions { key: CacheType::F32, value: CacheType::F32, ..options })
    }

    fn program<'a>(&self, plan: &'a Plan) -> &'a Program {
        &plan.program
    }
}

/// One pass over the operations.
struct Run<'a> {
    plan: &'a Plan,
    state: &'a mut State,
    forest: &'a Forest,
    buffers: Vec<Vec<f32>>, // [buffers][rows * width]
    layer: usize,
    logits: Vec<Vec<f32>>, // [requested rows][head_size]
}

impl Run<'_> {
    fn op(&mut self, op: &Op, request: &Request<'_>, outputs: &mut Outputs) -> Result<()> {
        let program = &self.plan.program;
        match op {
            Op::Input { out } => {
                let features = request.features.expect("only a run with features has this operation");
                self.buffers[usize::from(out.0)].copy_from_slice(features);
            }
            Op::Embed { table, scale, out } => {
                let width = program.width(*out);
                for (row, &token) in self.forest.tokens().iter().enumerate() {
                    let from = &self.plan.weights[table.0 as usize][token as usize * width..][..width];
                    for (to, value) in self.buffers[usize::from(out.0)][row * width..][..width].iter_mut().zip(from) {
                        *to = value * scale;
                    }
                }
            }
            Op::Tap { point, input } => {
                if let TapPoint::Layer(layer) = point {
                    self.layer = layer + 1;
                }
                self.require_finite(*input)?;
                self.tap(*point, &self.buffers[usize::from(input.0)], request, outputs);
            }
            Op::Project { input, norm, parts } => {
                let x = self.normed(*input, *norm);
                for part in parts {
                    self.linear(&x, program.width(*input), part);
                }
            }
            Op::HeadNormRope { buf, num_heads, head_dim, norm, rope } => {
                for row in 0..self.forest.len() {
                    for head in 0..*num_heads {
                        let start = (row * num_heads + head) * head_dim;
                        let x = &mut self.buffers[usize::from(buf.0)][start..start + head_dim];
                        if let Some(norm) = norm {
                            ops::rms_norm(x, norm.weight.map(|w| &self.plan.weights[w.0 as usize][..]), norm.eps);
                        }
                        if let Some(rope) = rope {
                            let rope = &program.ropes[*rope];
                            let factors = rope.factors.map(|w| &self.plan.weights[w.0 as usize][..]);
                            ops::rotate(x, rope, factors, self.forest.positions()[row]);
                        }
                    }
                }
            }
            Op::Append { cache, key, value } => {
                let (key, value) = (&self.buffers[usize::from(key.0)], &self.buffers[usize::from(value.0)]);
                self.state.append(*cache, self.forest, key, value);
            }
            Op::Attend { cache, query, out, num_heads, scale, softcap, sinks } => {
                let (query_width, out_width) = (program.width(*query), program.width(*out));
                for row in 0..self.forest.len() {
                    let visible = self.state.visible(*cache, self.forest, row);
                    for head in 0..*num_heads {
                        let dim = query_width / num_heads;
                        let q = &self.buffers[usize::from(query.0)][row * query_width + head * dim..][..dim];
                        let sink = sinks.map(|w| self.plan.weights[w.0 as usize][head]);
                        let attended = ops::attend(q, &visible, head, *num_heads, *scale, *softcap, sink);
                        let start = row * out_width + head * attended.len();
                        self.buffers[usize::from(out.0)][start..start + attended.len()].copy_from_slice(&attended);
                    }
                }
            }
            Op::GatedMlp { stream, norm, gate, up, down, activation } => {
                let x = self.normed(*stream, Some(*norm));
                let hidden = program.width(*stream);
                self.linear(&x, hidden, gate);
                self.linear(&x, hidden, up);
                let gated = std::mem::take(&mut self.buffers[usize::from(gate.out.0)]);
                for (to, gate) in self.buffers[usize::from(up.out.0)].iter_mut().zip(&gated) {
                    *to *= match activation {
                        Activation::Silu => ops::silu(*gate),
                        Activation::GeluTanh => ops::gelu_tanh(*gate),
                    };
                }
                self.buffers[usize::from(gate.out.0)] = gated;
                let inner = self.buffers[usize::from(up.out.0)].clone();
                self.linear(&inner, program.width(up.out), down);
            }
            Op::Split { input, first, second, head_dim } => {
                for (index, from) in self.buffers[usize::from(input.0)].clone().chunks_exact(*head_dim).enumerate() {
                    let to = if index % 2 == 0 { first } else { second };
                    self.buffers[usize::from(to.0)][index / 2 * head_dim..][..*head_dim].copy_from_slice(from);
                }
            }
            Op::Gate { buf, gate } => {
                let gate = self.buffers[usize::from(gate.0)].clone();
                for (x, gate) in self.buffers[usize::from(buf.0)].iter_mut().zip(gate) {
                    *x *= 1.0 / (1.0 + (-gate).exp());
                }
            }
            Op::AddScale { buf, add, scale } => {
                let add = add.map(|add| self.buffers[usize::from(add.0)].clone());
                for (index, to) in self.buffers[usize::from(buf.0)].iter_mut().enumerate() {
                    *to = *to * scale + add.as_ref().map_or(0.0, |add| add[index]);
                }
            }
            Op::Head { input, norm, weight, bias, scale, softcap } => {
                let x = self.normed(*input, Some(*norm));
                self.tap(TapPoint::Final, &x, request, outputs);
                self.head(&x, program.width(*input), *weight, *bias, (*scale, *softcap), request);
            }
            Op::Markov { table, weight, scale, ids } => {
                self.markov(*table, *weight, *scale, ids.as_deref(), request);
            }
        }
        Ok(())
    }

    /// A copy of a buffer, normed where asked for.
    fn normed(&self, input: Buf, norm: Option<Norm>) -> Vec<f32> {
        let mut x = self.buffers[usize::from(input.0)].clone();
        if let Some(norm) = norm {
            for row in x.chunks_exact_mut(self.plan.program.width(input)) {
                ops::rms_norm(row, norm.weight.map(|w| &self.plan.weights[w.0 as usize][..]), norm.eps);
            }
        }
        x
    }

    fn linear(&mut self, x: &[f32], k: usize, part: &Linear) {
        let n = self.plan.program.width(part.out);
        let weight = &self.plan.weights[part.weight.0 as usize];
        let bias = part.bias.map(|w| &self.plan.weights[w.0 as usize]);
        let out = &mut self.buffers[usize::from(part.out.0)];
        for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
            for (index, out) in out.iter_mut().enumerate() {
                let product = ops::dot(&weight[index * k..][..k], x) + bias.map_or(0.0, |bias| bias[index]);
                *out = if part.accumulate { *out + product } else { product };
            }
        }
    }

    fn tap(&self, point: TapPoint, values: &[f32], request: &Request<'_>, outputs: &mut Outputs) {
        for (index, _) in request.taps.iter().enumerate().filter(|&(_, &wanted)| wanted == point) {
            outputs.taps[index * values.len()..][..values.len()].copy_from_slice(values);
        }
    }

    fn head(
        &mut self,
        x: &[f32],
        k: usize,
        weight: WeightId,
        bias: Option<WeightId>,
        (scale, softcap): (f32, Option<f32>),
        request: &Request<'_>,
    ) {
        let weight = &self.plan.weights[weight.0 as usize];
        let bias = bias.map(|w| &self.plan.weights[w.0 as usize]);
        self.logits = request
            .rows
            .iter()
            .map(|&row| {
                let x = &x[row * k..][..k];
                let logit = |(id, weight)| {
                    let logit = (ops::dot(weight, x) + bias.map_or(0.0, |bias| bias[id])) * scale;
                    softcap.map_or(logit, |cap| cap * (logit / cap).tanh())
                };
                weight.chunks_exact(k).enumerate().map(logit).collect()
            })
            .collect();
    }

    /// Biases each requested row by the choice at the one before it in its draft block.
    fn markov(&mut self, table: WeightId, weight: WeightId, scale: f32, ids: Option<&[u32]>, request: &Request<'_>) {
        let rank = self.plan.program.weight(table).shape[1];
        let table = &self.plan.weights[table.0 as usize];
        let weight = &self.plan.weights[weight.0 as usize];
        let width = self.forest.draft_blocks().map_or(self.forest.len(), |blocks| blocks.width);
        let mut before: Option<(usize, u32)> = None;
        for (&row, logits) in request.rows.iter().zip(&mut self.logits) {
            let block = row / width;
            let previous = match before {
                Some((last, token)) if last == block => token,
                _ => self.forest.tokens()[block * width],
            };
            let embedded = &table[previous as usize * rank..][..rank];
            for (logit, weight) in logits.iter_mut().zip(weight.chunks_exact(rank)) {
                *logit += scale * ops::dot(weight, embedded);
            }
            let choice = Top2::of(logits).token;
            before = Some((block, ids.map_or(choice, |ids| ids[choice as usize])));
        }
    }

    /// Hands out what was asked for of the head.
    fn finish(&self, request: &Request<'_>, outputs: &mut Outputs) -> Result<()> {
        for (&row, logits) in request.rows.iter().zip(&self.logits) {
            if let Some(id) = logits.iter().position(|logit| !logit.is_finite()) {
                return Err(Error::model(
                    Evidence::new("logit is not finite").key(format!("row {row}, token {id}")).found(logits[id]),
                ));
            }
            match request.head {
                Head::Logits => outputs.logits.extend_from_slice(logits),
                Head::Top2 => outputs.top2.push(Top2::of(logits)),
            }
        }
        Ok(())
    }

    fn require_finite(&self, buf: Buf) -> Result<()> {
        let width = self.plan.program.width(buf);
        match self.buffers[usize::from(buf.0)].iter().position(|value| !value.is_finite()) {
            Some(index) => Err(Error::model(
                Evidence::new("hidden state is not finite")
                    .key(format!("after layer {}, row {}", self.layer as isize - 1, index / width))
                    .found(self.buffers[usize::from(buf.0)][index]),
            )),
            None => Ok(()),
        }
    }
}
