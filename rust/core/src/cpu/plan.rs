//! A program as stages: what can run at once between two points where everybody's results are needed.

use std::sync::Arc;

use draftgauge_kernels::isa::Isa;
use draftgauge_kernels::matmul::ActKind;

use super::Pool;
use super::weight::Weight;
use crate::program::{Activation, Buf, Linear, Norm, Op, Program, TapPoint, WeightId};

/// A program with its weights, as stages.
pub struct Plan {
    pub(super) program: Program,
    pub(super) weights: Vec<Arc<Weight>>,
    pub(super) stages: Vec<Stage>,
    /// Stages that run when features enter.
    pub(super) inject: Vec<Stage>,
    pub(super) markov: Option<Markov>,
    pub(super) pool: Arc<Pool>,
    pub(super) isa: Isa,
}

/// What follows the head of a program that has a Markov head.
pub(super) struct Markov {
    pub table: WeightId,
    pub weight: WeightId,
    pub scale: f32,
    pub ids: Option<Arc<[u32]>>,
    /// Largest norm among the rows of each tile of `weight`: what the bias of a tile can come to at most.
    pub norms: Vec<f32>,
}

/// One stage. A row's work is never split between threads unless the stage says so.
pub(super) enum Stage {
    /// Copies the features that entered.
    Input { out: Buf },
    /// Looks rows of the table up.
    Embed { table: WeightId, scale: f32, out: Buf },
    /// Hands values out that were asked for.
    Tap { point: TapPoint, input: Buf },
    /// Norms rows and writes them as the matrices of the next stage read them.
    Activate { input: Buf, norm: Option<Norm>, kinds: Kinds, layer: usize },
    /// Products of the activations, split by tiles of weight rows.
    Multiply { parts: Vec<Linear> },
    /// Products with gate and up, and their combination; split by tiles.
    Gate { gate: Linear, up: Linear, activation: Activation },
    /// Norms and rotates heads, then stores keys and values.
    Heads { heads: Vec<Heads>, append: Vec<Append> },
    /// Attention, split by rows and heads.
    Attend {
        cache: usize,
        query: Buf,
        out: Buf,
        num_heads: usize,
        scale: f32,
        softcap: Option<f32>,
        sinks: Option<WeightId>,
    },
    /// Parts heads.
    Split { input: Buf, first: Buf, second: Buf, head_dim: usize },
    /// `buf *= sigmoid(gate)`.
    SigmoidGate { buf: Buf, gate: Buf },
    /// `buf = buf * scale + add`.
    AddScale { buf: Buf, add: Option<Buf>, scale: f32 },
    /// Norms the rows whose logits are wanted.
    ActivateHead { input: Buf, norm: Norm, kinds: Kinds },
    /// Logits, split by tiles.
    Head { weight: WeightId, bias: Option<WeightId>, scale: f32, softcap: Option<f32> },
}

/// Heads of one buffer.
pub(super) struct Heads {
    pub buf: Buf,
    pub head_dim: usize,
    pub norm: Option<Norm>,
    pub rope: Option<usize>,
}

/// Keys and values to store.
pub(super) struct Append {
    pub cache: usize,
    pub key: Buf,
    pub value: Buf,
}

/// The forms in which activations are read next.
#[derive(Clone, Copy, Default)]
pub(super) struct Kinds {
    pub q8: bool,
    pub f32: bool,
}

impl Plan {
    pub(super) fn new(program: Program, weights: Vec<Arc<Weight>>, pool: Arc<Pool>, isa: Isa) -> Self {
        let mut plan = Self { program, weights, stages: Vec::new(), inject: Vec::new(), markov: None, pool, isa };
        for op in plan.program.inject.clone() {
            plan.push(op, &mut 0);
        }
        plan.inject = std::mem::take(&mut plan.stages);
        let mut layer = 0;
        for op in plan.program.ops.clone() {
            plan.push(op, &mut layer);
        }
        plan
    }

    pub(super) fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    pub(super) fn shared(&self, id: WeightId) -> &Arc<Weight> {
        &self.weights[id.0 as usize]
    }

    fn kinds(&self, weights: impl IntoIterator<Item = WeightId>) -> Kinds {
        let mut kinds = Kinds::default();
        for id in weights {
            match self.weight(id).matrix_layout().act_kind() {
                ActKind::Q8 => kinds.q8 = true,
                ActKind::F32 => kinds.f32 = true,
            }
        }
        kinds
    }

    fn push(&mut self, op: Op, layer: &mut usize) {
        match op {
            Op::Input { out } => self.stages.push(Stage::Input { out }),
            Op::Embed { table, scale, out } => self.stages.push(Stage::Embed { table, scale, out }),
            Op::Tap { point, input } => {
                if let TapPoint::Layer(index) = point {
                    *layer = index + 1;
                }
                self.stages.push(Stage::Tap { point, input });
            }
            Op::Project { input, norm, parts } => {
                let kinds = self.kinds(parts.iter().map(|part| part.weight));
                self.stages.push(Stage::Activate { input, norm, kinds, layer: *layer });
                self.stages.push(Stage::Multiply { parts });
            }
            Op::HeadNormRope { buf, num_heads: _, head_dim, norm, rope } => {
                let next = Heads { buf, head_dim, norm, rope };
                match self.stages.last_mut() {
                    Some(Stage::Heads { heads, append }) if append.is_empty() => heads.push(next),
                    _ => self.stages.push(Stage::Heads { heads: vec![next], append: Vec::new() }),
                }
            }
            Op::Append { cache, key, value } => {
                let next = Append { cache, key, value };
                match self.stages.last_mut() {
                    Some(Stage::Heads { append, .. }) => append.push(next),
                    _ => self.stages.push(Stage::Heads { heads: Vec::new(), append: vec![next] }),
                }
            }
            Op::Attend { cache, query, out, num_heads, scale, softcap, sinks } => {
                self.stages.push(Stage::Attend { cache, query, out, num_heads, scale, softcap, sinks });
            }
            Op::GatedMlp { stream, norm, gate, up, down, activation } => {
                let kinds = self.kinds([gate.weight, up.weight]);
                self.stages.push(Stage::Activate { input: stream, norm: Some(norm), kinds, layer: *layer });
                self.stages.push(Stage::Gate { gate, up, activation });
                let kinds = self.kinds([down.weight]);
                self.stages.push(Stage::Activate { input: up.out, norm: None, kinds, layer: *layer });
                self.stages.push(Stage::Multiply { parts: vec![down] });
            }
            Op::Split { input, first, second, head_dim } => {
                self.stages.push(Stage::Split { input, first, second, head_dim });
            }
            Op::Gate { buf, gate } => self.stages.push(Stage::SigmoidGate { buf, gate }),
            Op::AddScale { buf, add, scale } => self.stages.push(Stage::AddScale { buf, add, scale }),
            Op::Head { input, norm, weight, bias, scale, softcap } => {
                let kinds = self.kinds([weight]);
                self.stages.push(Stage::ActivateHead { input, norm, kinds });
                self.stages.push(Stage::Head { weight, bias, scale, softcap });
            }
            Op::Markov { table, weight, scale, ids } => {
                let norms = self.weight(weight).tile_norms();
                self.markov = Some(Markov { table, weight, scale, ids, norms });
            }
        }
    }
}
