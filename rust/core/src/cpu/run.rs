//! One step: the stages of a plan over the rows of a forest.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use draftgauge_kernels::attention::Attention;
use draftgauge_kernels::elementwise::{self, Largest};
use draftgauge_kernels::matmul::{ActKind, ActLayout, Acts, OutRows};
use draftgauge_kernels::norm::rms_norm;
use draftgauge_kernels::rope;
use draftgauge_kernels::shared::Shared;

use super::aligned::AlignedBytes;
use super::cache::{Layer, Paths, Slot};
use super::markov;
use super::plan::{Kinds, Plan, Stage};
use super::pool::Region;
use crate::backend::{Forest, Head, Outputs, Request, StateOptions, Top2};
use crate::error::{Error, Evidence, Result};
use crate::program::{Activation, Buf, CacheSpec, Linear, Norm, RopeLayout, TapPoint, WeightId};

/// Rows that go through the layers together: their activations stay in the second-level cache.
const CHUNK: usize = 64;
/// Weights and rows that are worth a piece of their own: bytes of weights times rows.
const PIECE_BYTES: usize = 16 << 10;
/// Pieces a thread in a stage that is split by tiles: enough that a displaced thread delays by little.
const PIECES_A_THREAD: usize = 6;

/// What sequences have written so far, and the buffers of a step.
pub struct State {
    options: StateOptions,
    slots: Vec<Slot>,
    buffers: Vec<Vec<f32>>, // [buffers][rows * width]
    q8: AlignedBytes,
    f32: AlignedBytes,
    logits: Vec<f32>,       // [rows, vocab]
    largest: Vec<Largest>,  // [pieces, rows]
    scratch: Vec<Vec<f32>>, // [threads][values]
    ropes: Vec<f32>,        // [rows][ropes][dims]
    paths: Vec<Paths>,      // [slots]
    pieces: Vec<usize>,     // [stages]
}

/// One row of the chunk.
#[derive(Debug, Clone, Copy)]
struct Row {
    token: u32,
    /// Index of the slot in the forest's order.
    slot: usize,
    /// Index among the slot's pending rows.
    node: usize,
    /// Number of committed positions of the slot.
    committed: usize,
}

/// The part of `total` that piece `piece` of `pieces` has.
pub(super) fn share_of(total: usize, piece: usize, pieces: usize) -> Range<usize> {
    total * piece / pieces..total * (piece + 1) / pieces
}

impl State {
    pub(super) fn new(plan: &Plan, options: StateOptions) -> Self {
        Self {
            options,
            slots: (0..options.slots).map(|_| Slot::new(&plan.program.caches, options)).collect(),
            buffers: vec![Vec::new(); plan.program.buffers.len()],
            q8: AlignedBytes::default(),
            f32: AlignedBytes::default(),
            logits: Vec::new(),
            largest: Vec::new(),
            scratch: vec![Vec::new(); plan.pool.threads()],
            ropes: Vec::new(),
            paths: Vec::new(),
            pieces: Vec::new(),
        }
    }

    pub(super) fn len(&self, slot: usize) -> usize {
        self.slots[slot].len()
    }

    pub(super) fn slot(&mut self, slot: usize) -> Result<&mut Slot> {
        let slots = self.options.slots;
        self.slots.get_mut(slot).ok_or_else(|| {
            Error::tree(Evidence::new("slot does not exist").expected(format!("less than {slots}")).found(slot))
        })
    }

    pub(super) fn run(
        &mut self,
        plan: &Plan,
        forest: &Forest,
        request: &Request<'_>,
        outputs: &mut Outputs,
    ) -> Result<()> {
        let program = &plan.program;
        forest.check(program.vocab_size, self.options, |slot| self.slots[slot].len())?;
        request.check(forest, program)?;
        outputs.top2.clear();
        outputs.taps.clear();
        // Every value of wanted logits is written, so those of the last run need no clearing.
        match request.head {
            Head::Logits => outputs.logits.resize(request.rows.len() * program.head_size, 0.0),
            Head::Top2 => {
                outputs.logits.clear();
                outputs.top2.resize(request.rows.len(), Top2::default());
            }
        }
        outputs.taps.resize(request.taps.len() * forest.len() * program.hidden_size, 0.0);

        let mut rows = Vec::with_capacity(forest.len());
        let mut used = Vec::new();
        for (index, (slot, range)) in forest.slot_rows().enumerate() {
            let committed = self.slots[slot].len();
            let parents: Vec<i32> = forest.pending_parents(range.clone()).collect();
            if self.paths.len() <= index {
                self.paths.push(Paths::default());
            }
            match forest.draft_blocks() {
                Some(_) => self.paths[index].find_blocks(committed, forest, range.clone()),
                None => self.paths[index].find(committed, &parents),
            }
            self.slots[slot].begin(&program.caches, parents.into_iter());
            rows.extend(range.clone().map(|row| Row {
                token: forest.tokens()[row],
                slot: index,
                node: row - range.start,
                committed,
            }));
            used.push(slot);
        }
        // The rows of a draft block see each other, so they go through a layer together.
        let chunk = forest.draft_blocks().map_or(CHUNK, |blocks| (CHUNK / blocks.width).max(1) * blocks.width);
        for start in (0..rows.len()).step_by(chunk) {
            let end = rows.len().min(start + chunk);
            if let Err(error) = self.run_chunk(plan, forest, &rows[start..end], start, &used, request, outputs) {
                // Rows that were not computed to the end must not be committed.
                used.iter().for_each(|&slot| self.slots[slot].abandon());
                return Err(error);
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "one call site; the values belong to one step")]
    fn run_chunk(
        &mut self,
        plan: &Plan,
        forest: &Forest,
        rows: &[Row],
        first: usize,
        used: &[usize],
        request: &Request<'_>,
        outputs: &mut Outputs,
    ) -> Result<()> {
        let program = &plan.program;
        for (buffer, width) in self.buffers.iter_mut().zip(&program.buffers) {
            if buffer.len() < rows.len() * width {
                buffer.resize(rows.len() * width, 0.0);
            }
        }
        // Of the rows that were asked for, those of this chunk: (place in the request, row of the chunk).
        let wanted: Vec<(usize, usize)> = request
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| (first..first + rows.len()).contains(row))
            .map(|(place, row)| (place, row - first))
            .collect();
        let widest = program.buffers.iter().copied().max().unwrap_or(0);
        self.q8.require(ActLayout::row_bytes(ActKind::Q8, widest.next_multiple_of(32)) * rows.len());
        self.f32.require(ActLayout::row_bytes(ActKind::F32, widest) * rows.len());
        self.prepare_ropes(plan, &forest.positions()[first..first + rows.len()]);
        let scratch = scratch_len(plan, rows, &self.paths).max(widest);
        for buffer in &mut self.scratch {
            if buffer.len() < scratch {
                buffer.resize(scratch, 0.0);
            }
        }
        // Rows in the order of the request are computed where the caller reads them.
        let in_place = request.head == Head::Logits && wanted.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1);
        let logits = if in_place {
            let start = wanted.first().map_or(0, |&(place, _)| place * program.head_size);
            &mut outputs.logits[start..start + wanted.len() * program.head_size]
        } else {
            if self.logits.len() < wanted.len() * program.head_size {
                self.logits.resize(wanted.len() * program.head_size, 0.0);
            }
            &mut self.logits[..wanted.len() * program.head_size]
        };
        let stages = if request.features.is_some() { &plan.inject } else { &plan.stages };
        self.pieces.clear();
        self.pieces.extend(stages.iter().map(|stage| pieces_of(plan, stage, rows.len(), wanted.len(), request)));
        let head_pieces = *self.pieces.last().unwrap_or(&0);
        self.largest.clear();
        self.largest.resize(head_pieces * wanted.len(), Largest::NONE);

        // Slots in the forest's order; each is borrowed once.
        let mut layers: Vec<Option<Vec<Layer<'_>>>> = used.iter().map(|_| None).collect();
        for (slot, state) in self.slots.iter_mut().enumerate() {
            if let Some(index) = used.iter().position(|&u| u == slot) {
                layers[index] = Some(state.share(&program.caches).collect());
            }
        }
        let step = Step {
            plan,
            stages,
            features: request.features,
            rows,
            pieces: &self.pieces,
            layers: layers.into_iter().map(|layers| layers.expect("every slot of the forest exists")).collect(),
            paths: &self.paths,
            buffers: self.buffers.iter_mut().map(|buffer| Shared::new(buffer)).collect(),
            q8: Shared::new(self.q8.as_mut_slice()),
            f32: Shared::new(self.f32.as_mut_slice()),
            scratch: self.scratch.iter_mut().map(|buffer| Shared::new(buffer)).collect(),
            ropes: &self.ropes,
            wanted: &wanted,
            logits: Shared::new(logits),
            largest: Shared::new(&mut self.largest),
            taps: request.taps,
            tapped: Shared::new(&mut outputs.taps),
            total_rows: forest.len(),
            first,
            bad: AtomicU64::new(u64::MAX),
        };
        plan.pool.run(&step)?;
        let bad = step.bad.load(Ordering::Relaxed);
        drop(step);
        if bad != u64::MAX {
            return Err(Error::model(
                Evidence::new("hidden state is not finite")
                    .key(format!("layer {}, row {}", bad >> 32, bad & 0xffff_ffff))
                    .expected("finite values"),
            ));
        }
        let mut best: Vec<Largest> = (0..wanted.len())
            .map(|index| {
                (0..head_pieces)
                    .fold(Largest::NONE, |best, piece| best.merge(self.largest[piece * wanted.len() + index]))
            })
            .collect();
        if let (Some(markov), false) = (&plan.markov, wanted.is_empty()) {
            let blocks = markov::Chains::new(forest, first, &wanted);
            let sparse = request.head == Head::Top2;
            markov::run(plan, markov, &blocks, logits, &mut best, (&mut self.q8, &mut self.f32), sparse)?;
        }
        for (&(place, row), (index, best)) in wanted.iter().zip(best.iter().enumerate()) {
            if !best.finite {
                return Err(Error::model(
                    Evidence::new("logits are not finite")
                        .key(format!("row {}", first + row))
                        .expected("finite values"),
                ));
            }
            match request.head {
                Head::Top2 => {
                    outputs.top2[place] = Top2 { token: best.index as u32, first: best.first, second: best.second };
                }
                Head::Logits if in_place => {}
                Head::Logits => outputs.logits[place * program.head_size..][..program.head_size]
                    .copy_from_slice(&self.logits[index * program.head_size..][..program.head_size]),
            }
        }
        Ok(())
    }

    fn prepare_ropes(&mut self, plan: &Plan, positions: &[u32]) {
        let ropes = &plan.program.ropes;
        self.ropes.resize(positions.len() * rope_width(plan), 0.0);
        let mut tables = &mut self.ropes[..];
        for &position in positions {
            for spec in ropes {
                let (table, rest) = tables.split_at_mut(spec.dims);
                let factors = spec.factors.map(|id| plan.weight(id).vector());
                rope::table(position, &spec.frequencies, factors, spec.magnitude, table);
                tables = rest;
            }
        }
    }
}

fn rope_width(plan: &Plan) -> usize {
    plan.program.ropes.iter().map(|rope| rope.dims).sum()
}

/// Values of scratch that the attention of these rows needs.
fn scratch_len(plan: &Plan, rows: &[Row], paths: &[Paths]) -> usize {
    let positions = rows.iter().map(|row| paths[row.slot].visible(row.node, None).len()).max().unwrap_or(0);
    plan.stages
        .iter()
        .filter_map(|stage| match stage {
            Stage::Attend { cache, num_heads, .. } => {
                let CacheSpec::Attention { num_kv_heads, key_dim, value_dim, .. } = plan.program.caches[*cache];
                Some(Attention::scratch(num_heads / num_kv_heads, positions, key_dim, value_dim))
            }
            _ => None,
        })
        .max()
        .unwrap_or(0)
}

/// Pieces of a stage for a number of rows.
fn pieces_of(plan: &Plan, stage: &Stage, rows: usize, wanted: usize, request: &Request<'_>) -> usize {
    let threads = plan.pool.threads();
    let by_rows = |rows: usize| rows.min(4 * threads);
    let by_tiles = |bytes: usize, tiles: usize, rows: usize, most: usize| {
        (bytes * rows.div_ceil(4) / PIECE_BYTES).clamp(1, most * threads).min(tiles)
    };
    match stage {
        Stage::Input { .. }
        | Stage::Embed { .. }
        | Stage::Activate { .. }
        | Stage::Heads { .. }
        | Stage::Split { .. }
        | Stage::SigmoidGate { .. }
        | Stage::AddScale { .. } => by_rows(rows),
        Stage::Tap { point, .. } => usize::from(request.taps.contains(point)),
        Stage::Multiply { parts } => {
            let layouts = || parts.iter().map(|part| plan.weight(part.weight).matrix_layout());
            by_tiles(layouts().map(|l| l.bytes()).sum(), layouts().map(|l| l.tiles()).sum(), rows, PIECES_A_THREAD)
        }
        Stage::Gate { gate, .. } => {
            let layout = plan.weight(gate.weight).matrix_layout();
            by_tiles(2 * layout.bytes(), layout.tiles(), rows, PIECES_A_THREAD)
        }
        Stage::Attend { cache, num_heads, .. } => rows * num_heads / heads_a_piece(plan, *cache, *num_heads, rows),
        Stage::ActivateHead { .. } if request.taps.contains(&TapPoint::Final) => by_rows(rows),
        Stage::ActivateHead { .. } => by_rows(wanted),
        Stage::Head { .. } if wanted == 0 => 0,
        Stage::Head { weight, .. } => {
            let layout = plan.weight(*weight).matrix_layout();
            by_tiles(layout.bytes(), layout.tiles(), wanted, 4 * PIECES_A_THREAD)
        }
    }
}

/// Query heads that one piece of attention does: all that share keys, unless that leaves threads without work.
fn heads_a_piece(plan: &Plan, cache: usize, num_heads: usize, rows: usize) -> usize {
    let CacheSpec::Attention { num_kv_heads, .. } = plan.program.caches[cache];
    if plan.pool.threads() > 1 && rows * num_kv_heads < 3 * plan.pool.threads() { 1 } else { num_heads / num_kv_heads }
}

/// Everything that the threads of a step share.
struct Step<'a> {
    plan: &'a Plan,
    stages: &'a [Stage],
    features: Option<&'a [f32]>, // [rows of the forest, input width]
    rows: &'a [Row],
    pieces: &'a [usize],
    layers: Vec<Vec<Layer<'a>>>, // [slots of the forest][caches]
    paths: &'a [Paths],
    buffers: Vec<Shared<'a, f32>>,
    q8: Shared<'a, u8>,
    f32: Shared<'a, u8>,
    scratch: Vec<Shared<'a, f32>>,
    ropes: &'a [f32],
    wanted: &'a [(usize, usize)],
    logits: Shared<'a, f32>,
    largest: Shared<'a, Largest>,
    taps: &'a [TapPoint],
    tapped: Shared<'a, f32>,
    total_rows: usize,
    first: usize,
    /// Smallest (layer, row) with a value that is not finite.
    bad: AtomicU64,
}

impl Region for Step<'_> {
    fn stages(&self) -> usize {
        self.stages.len()
    }

    fn pieces(&self, stage: usize) -> usize {
        self.pieces[stage]
    }

    fn piece(&self, stage: usize, piece: usize, worker: usize) {
        debug_assert!(worker < self.scratch.len());
        let pieces = self.pieces[stage];
        match &self.stages[stage] {
            Stage::Input { out } => {
                let features = self.features.expect("only a run with features has this stage");
                let width = self.plan.program.width(*out);
                for row in share_of(self.rows.len(), piece, pieces) {
                    self.row_mut(*out, row).copy_from_slice(&features[(self.first + row) * width..][..width]);
                }
            }
            Stage::Embed { table, scale, out } => {
                for row in share_of(self.rows.len(), piece, pieces) {
                    let out = self.row_mut(*out, row);
                    self.plan.weight(*table).row(self.rows[row].token as usize, out);
                    if *scale != 1.0 {
                        out.iter_mut().for_each(|value| *value *= scale);
                    }
                }
            }
            Stage::Tap { point, input } => {
                for row in 0..self.rows.len() {
                    self.tap(*point, row, self.row(*input, row));
                }
            }
            Stage::Activate { input, norm, kinds, layer } => {
                for row in share_of(self.rows.len(), piece, pieces) {
                    let x = self.normed(self.row(*input, row), *norm, worker, *layer, row);
                    self.activate(x, *kinds, row, self.rows.len());
                }
            }
            Stage::Multiply { parts } => self.multiply(parts, piece, pieces),
            Stage::Gate { gate, up, activation } => self.gate(gate, up, *activation, piece, pieces),
            Stage::Heads { heads, append } => {
                for row in share_of(self.rows.len(), piece, pieces) {
                    self.heads(heads, append, row, worker);
                }
            }
            Stage::Attend { .. } => self.attend(stage, piece, worker),
            Stage::Split { input, first, second, head_dim } => {
                for row in share_of(self.rows.len(), piece, pieces) {
                    let heads = self.row(*input, row).chunks_exact(2 * head_dim);
                    let first = self.row_mut(*first, row).chunks_exact_mut(*head_dim);
                    let second = self.row_mut(*second, row).chunks_exact_mut(*head_dim);
                    for (from, (first, second)) in heads.zip(first.zip(second)) {
                        first.copy_from_slice(&from[..*head_dim]);
                        second.copy_from_slice(&from[*head_dim..]);
                    }
                }
            }
            Stage::SigmoidGate { buf, gate } => {
                for row in share_of(self.rows.len(), piece, pieces) {
                    elementwise::sigmoid_mul(self.plan.isa, self.row(*gate, row), self.row_mut(*buf, row));
                }
            }
            Stage::AddScale { buf, add, scale } => {
                for row in share_of(self.rows.len(), piece, pieces) {
                    let out = self.row_mut(*buf, row);
                    out.iter_mut().for_each(|value| *value *= scale);
                    if let Some(add) = add {
                        out.iter_mut().zip(self.row(*add, row)).for_each(|(out, add)| *out += add);
                    }
                }
            }
            Stage::ActivateHead { input, norm, kinds } => {
                self.activate_head(*input, *norm, *kinds, piece, pieces, worker)
            }
            Stage::Head { weight, bias, scale, softcap } => {
                self.head(*weight, *bias, (*scale, *softcap), piece, pieces);
            }
        }
    }
}

impl<'a> Step<'a> {
    /// A row of a buffer that no piece of this stage writes.
    fn row(&self, buf: Buf, row: usize) -> &'a [f32] {
        let width = self.plan.program.width(buf);
        // SAFETY: a stage reads only buffers that earlier stages wrote, or rows that this piece alone writes.
        unsafe { self.buffers[usize::from(buf.0)].slice(row * width..(row + 1) * width) }
    }

    /// A row of a buffer that this piece alone touches.
    fn row_mut(&self, buf: Buf, row: usize) -> &'a mut [f32] {
        let width = self.plan.program.width(buf);
        // SAFETY: stages that are split by rows give each row to one piece, and a piece takes one row of a buffer at a time.
        unsafe { self.buffers[usize::from(buf.0)].slice_mut(row * width..(row + 1) * width) }
    }

    /// This worker's scratch.
    fn scratch(&self, worker: usize) -> &'a mut [f32] {
        let scratch = self.scratch[worker];
        // SAFETY: no two pieces run at once under one worker's number, and a piece takes its scratch once.
        unsafe { scratch.slice_mut(0..scratch.len()) }
    }

    fn vector(&self, id: Option<WeightId>) -> Option<&'a [f32]> {
        id.map(|id| self.plan.weight(id).vector())
    }

    fn normed(&self, x: &'a [f32], norm: Option<Norm>, worker: usize, layer: usize, row: usize) -> &'a [f32] {
        let Some(norm) = norm else { return x };
        let out = &mut self.scratch(worker)[..x.len()];
        if !rms_norm(self.plan.isa, x, self.vector(norm.weight), norm.eps, out) {
            self.bad.fetch_min((layer as u64) << 32 | (self.first + row) as u64, Ordering::Relaxed);
        }
        out
    }

    fn activate(&self, x: &[f32], kinds: Kinds, row: usize, rows: usize) {
        // SAFETY: each row of activations is written by the one piece that has the row.
        unsafe {
            if kinds.q8 {
                ActLayout::new(ActKind::Q8, x.len(), rows).write_row_shared(self.plan.isa, row, x, self.q8);
            }
            if kinds.f32 {
                ActLayout::new(ActKind::F32, x.len(), rows).write_row_shared(self.plan.isa, row, x, self.f32);
            }
        }
    }

    fn tap(&self, point: TapPoint, row: usize, values: &[f32]) {
        let hidden = values.len();
        for (index, _) in self.taps.iter().enumerate().filter(|&(_, &wanted)| wanted == point) {
            let start = (index * self.total_rows + self.first + row) * hidden;
            // SAFETY: each (tap, row) is written by the one piece that has the row.
            unsafe { self.tapped.slice_mut(start..start + hidden) }.copy_from_slice(values);
        }
    }

    /// Products of one weight for a range of its tiles.
    fn product(&self, part: &Linear, tiles: Range<usize>) {
        let weight = self.plan.weight(part.weight);
        let acts = self.acts(weight.matrix_layout().act_layout(self.rows.len()));
        let out = OutRows::shared(self.buffers[usize::from(part.out.0)], self.plan.program.width(part.out));
        // SAFETY: activations were written by an earlier stage; pieces have disjoint tiles, so disjoint outputs.
        unsafe {
            weight.matrix().multiply_shared(acts, tiles, out, part.accumulate, self.vector(part.bias));
        }
    }

    fn acts(&self, layout: ActLayout) -> Acts<'a> {
        let data = match layout.kind() {
            ActKind::Q8 => self.q8,
            ActKind::F32 => self.f32,
        };
        // SAFETY: no piece of a stage that multiplies writes activations.
        Acts::new(layout, unsafe { data.slice(0..layout.bytes()) })
    }

    fn multiply(&self, parts: &[Linear], piece: usize, pieces: usize) {
        let tiles_of = |part: &Linear| self.plan.weight(part.weight).matrix_layout().tiles();
        let mine = share_of(parts.iter().map(tiles_of).sum(), piece, pieces);
        let mut start = 0;
        for part in parts {
            let tiles = start..start + tiles_of(part);
            let (from, to) = (mine.start.max(tiles.start), mine.end.min(tiles.end));
            if from < to {
                self.product(part, from - start..to - start);
            }
            start = tiles.end;
        }
    }

    fn gate(&self, gate: &Linear, up: &Linear, activation: Activation, piece: usize, pieces: usize) {
        let layout = self.plan.weight(gate.weight).matrix_layout();
        let tiles = share_of(layout.tiles(), piece, pieces);
        self.product(gate, tiles.clone());
        self.product(up, tiles.clone());
        let columns = tiles.start * layout.tile_rows()..(tiles.end * layout.tile_rows()).min(layout.n());
        let width = self.plan.program.width(up.out);
        for row in 0..self.rows.len() {
            let range = row * width + columns.start..row * width + columns.end;
            // SAFETY: these columns of both buffers were written by this piece and are no other piece's.
            let (gate, up) = unsafe {
                (
                    self.buffers[usize::from(gate.out.0)].slice(range.clone()),
                    self.buffers[usize::from(up.out.0)].slice_mut(range),
                )
            };
            match activation {
                Activation::Silu => elementwise::silu_mul(self.plan.isa, gate, up),
                Activation::GeluTanh => elementwise::gelu_mul(self.plan.isa, gate, up),
            }
        }
    }

    fn heads(&self, heads: &[super::plan::Heads], append: &[super::plan::Append], row: usize, worker: usize) {
        let ropes = &self.plan.program.ropes;
        let tables = &self.ropes[row * rope_width(self.plan)..];
        for op in heads {
            let x = self.row_mut(op.buf, row);
            if let Some(norm) = op.norm {
                let scratch = &mut self.scratch(worker)[..op.head_dim];
                for head in x.chunks_exact_mut(op.head_dim) {
                    // A value that is not finite reaches the residual stream, whose norm tells.
                    rms_norm(self.plan.isa, head, self.vector(norm.weight), norm.eps, scratch);
                    head.copy_from_slice(scratch);
                }
            }
            if let Some(rope) = op.rope {
                let start: usize = ropes[..rope].iter().map(|rope| rope.dims).sum();
                let table = &tables[start..start + ropes[rope].dims];
                rope::rotate(self.plan.isa, x, op.head_dim, ropes[rope].layout == RopeLayout::Adjacent, table);
            }
        }
        for op in append {
            let Row { slot, node, committed, .. } = self.rows[row];
            // SAFETY: the row's place in the cache is written by the one piece that has the row.
            unsafe {
                self.layers[slot][op.cache].write(committed + node, self.row(op.key, row), self.row(op.value, row))
            };
        }
    }

    fn attend(&self, stage: usize, piece: usize, worker: usize) {
        let Stage::Attend { cache, query, out, num_heads, scale, softcap, sinks } = &self.stages[stage] else {
            unreachable!("the stage was matched");
        };
        let CacheSpec::Attention { num_kv_heads, key_dim, value_dim, window } = self.plan.program.caches[*cache];
        let heads = heads_a_piece(self.plan, *cache, *num_heads, self.rows.len());
        let groups = num_heads / heads;
        let (row, first_head) = (piece / groups, piece % groups * heads);
        let Row { slot, node, .. } = self.rows[row];
        let kv_head = first_head * num_kv_heads / num_heads;
        // SAFETY: keys and values of this batch were written by an earlier stage.
        let (keys, values) = unsafe { self.layers[slot][*cache].head(kv_head) };
        let visible = self.paths[slot].visible(node, window);
        let sinks = self.vector(*sinks).map(|sinks| &sinks[first_head..first_head + heads]);
        let attention = Attention { keys, values, key_dim, value_dim, scale: *scale, softcap: *softcap, sinks };
        let q = &self.row(*query, row)[first_head * key_dim..][..heads * key_dim];
        let start = row * self.plan.program.width(*out) + first_head * value_dim;
        // SAFETY: each (row, heads) belongs to one piece.
        let out = unsafe { self.buffers[usize::from(out.0)].slice_mut(start..start + heads * value_dim) };
        attention.run(self.plan.isa, visible, q, out, self.scratch(worker));
    }

    fn activate_head(&self, input: Buf, norm: Norm, kinds: Kinds, piece: usize, pieces: usize, worker: usize) {
        let layer = self.plan.program.num_layers;
        let tapped = self.taps.contains(&TapPoint::Final);
        let rows = if tapped { self.rows.len() } else { self.wanted.len() };
        for index in share_of(rows, piece, pieces) {
            let row = if tapped { index } else { self.wanted[index].1 };
            let x = self.normed(self.row(input, row), Some(norm), worker, layer, row);
            if tapped {
                self.tap(TapPoint::Final, row, x);
                for (place, _) in self.wanted.iter().enumerate().filter(|(_, wanted)| wanted.1 == row) {
                    self.activate(x, kinds, place, self.wanted.len());
                }
            } else {
                self.activate(x, kinds, index, self.wanted.len());
            }
        }
    }

    fn head(
        &self,
        id: WeightId,
        bias: Option<WeightId>,
        (scale, softcap): (f32, Option<f32>),
        piece: usize,
        pieces: usize,
    ) {
        let weight = self.plan.weight(id);
        let layout = weight.matrix_layout();
        let (vocab, rows) = (layout.n(), self.wanted.len());
        let acts = self.acts(layout.act_layout(rows));
        let tiles = share_of(layout.tiles(), piece, pieces);
        let columns = tiles.start * layout.tile_rows()..(tiles.end * layout.tile_rows()).min(vocab);
        let out = OutRows::shared(self.logits, vocab);
        // SAFETY: pieces have disjoint tiles, so disjoint columns of the logits.
        unsafe { weight.matrix().multiply_shared(acts, tiles, out, false, self.vector(bias)) };
        for row in 0..rows {
            // SAFETY: this piece has these columns of every row.
            let logits = unsafe { self.logits.slice_mut(row * vocab + columns.start..row * vocab + columns.end) };
            if scale != 1.0 || softcap.is_some() {
                elementwise::scale_and_cap(self.plan.isa, scale, softcap, logits);
            }
            let largest = elementwise::largest(self.plan.isa, columns.start, logits);
            let place = piece * rows + row;
            // SAFETY: each (piece, row) has a place of its own.
            let cell = unsafe { self.largest.slice_mut(place..place + 1) };
            cell[0] = largest;
        }
    }
}
