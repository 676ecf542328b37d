//! A target without weights: logits are a hash of the tokens on the way to a row.

use std::sync::Arc;

use super::mix;
use draftgauge_kernels::quant::QuantType;

use crate::backend::{CacheType, Engine, EngineState, Forest, Head, Origin, Outputs, Request, StateOptions, Top2};
use crate::error::{Error, Evidence, Result};
use crate::program::{Program, ProgramBuilder, WeightSpec};
use crate::session::{Detokenize, SessionModel};

/// Width of the fake's residual stream.
const HIDDEN: usize = 2;

/// A deterministic engine.
///
/// Most of a row's logits comes from its last two tokens, so that text repeats and an n-gram drafter has something to
/// find; the rest comes from the whole path, so that one wrong token anywhere in the cache changes every later row.
pub struct FakeEngine {
    program: Program,
    seed: u64,
}

impl FakeEngine {
    /// An engine with a vocabulary of `vocab_size`.
    pub fn new(vocab_size: usize, seed: u64) -> Self {
        Self { program: ProgramBuilder::new().finish("fake", 4, HIDDEN, vocab_size, 1 << 20), seed }
    }
}

impl Engine for FakeEngine {
    fn program(&self) -> &Program {
        &self.program
    }

    fn kernels(&self) -> String {
        "fake".to_owned()
    }

    fn open(&self, options: StateOptions) -> Result<Box<dyn EngineState>> {
        Ok(Box::new(FakeState {
            vocab_size: self.program.vocab_size,
            seed: self.seed,
            options,
            slots: vec![Vec::new(); options.slots],
            pending: vec![Vec::new(); options.slots],
        }))
    }

    fn state_bytes(&self, _options: StateOptions) -> u64 {
        0
    }

    fn weight_bytes(&self, _spec: &WeightSpec, _ty: QuantType) -> u64 {
        0
    }

    fn attach(
        &self,
        _program: Program,
        _origin: &mut dyn FnMut(&WeightSpec) -> Result<Origin>,
    ) -> Result<Arc<dyn Engine>> {
        Err(Error::model(Evidence::new("an engine without weights takes no other program")))
    }

    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One position: its token and the hash of everything up to it.
#[derive(Debug, Clone, Copy)]
struct Cell {
    token: u32,
    hash: u64,
}

struct FakeState {
    vocab_size: usize,
    seed: u64,
    options: StateOptions,
    slots: Vec<Vec<Cell>>,
    // Rows of the last run, with the parent of each within the slot's rows.
    pending: Vec<Vec<(i32, Cell)>>,
}

impl FakeState {
    fn logits(&self, before: u32, cell: Cell) -> Vec<f32> {
        let near = mix(self.seed ^ (u64::from(before) << 32 | u64::from(cell.token)));
        (0..self.vocab_size as u64)
            .map(|token| {
                let unit =
                    |hash: u64| (mix(hash ^ token.wrapping_mul(0xa076_1d64_78bd_642f)) >> 40) as f32 / 16_777_216.0;
                // Cubed, so that few tokens stand out, as in a real row.
                let strong = unit(near);
                9.0 * strong * strong * strong + 0.6 * unit(cell.hash)
            })
            .collect()
    }
}

impl EngineState for FakeState {
    fn run(&mut self, forest: &Forest, request: &Request<'_>, outputs: &mut Outputs) -> Result<()> {
        forest.check(self.vocab_size, self.options, |slot| self.slots[slot].len())?;
        let mut befores = vec![0; forest.len()];
        let mut cells: Vec<Cell> = Vec::with_capacity(forest.len());
        for (slot, rows) in forest.slot_rows() {
            let committed = self.slots[slot].last().copied();
            self.pending[slot].clear();
            for row in rows.clone() {
                let token = forest.tokens()[row];
                let parent = usize::try_from(forest.parents()[row]).ok();
                let above = parent.map_or(committed, |parent| Some(cells[parent]));
                befores[row] = above.map_or(u32::MAX, |cell| cell.token);
                let hash = mix(above.map_or(self.seed, |cell| cell.hash) ^ (u64::from(token) << 1 | 1));
                cells.push(Cell { token, hash });
                let parent = parent.map_or(-1, |parent| (parent - rows.start) as i32);
                self.pending[slot].push((parent, cells[row]));
            }
        }
        outputs.logits.clear();
        outputs.top2.clear();
        for &row in request.rows {
            let logits = self.logits(befores[row], cells[row]);
            match request.head {
                Head::Logits => outputs.logits.extend(logits),
                Head::Top2 => outputs.top2.push(Top2::of(&logits)),
            }
        }
        outputs.taps.clear();
        for tap in 0..request.taps.len() {
            for cell in &cells {
                outputs.taps.extend([tap as f32, (cell.hash >> 40) as f32]);
            }
        }
        Ok(())
    }

    fn commit(&mut self, slot: usize, path: &[usize]) -> Result<()> {
        let mut parent = -1;
        for &row in path {
            let (above, cell) = self.pending[slot][row];
            if above != parent {
                return Err(Error::tree(
                    Evidence::new("a commit must follow a root path").expected(parent).found(above),
                ));
            }
            self.slots[slot].push(cell);
            parent = row as i32;
        }
        self.pending[slot].clear();
        Ok(())
    }

    fn truncate(&mut self, slot: usize, len: usize) -> Result<()> {
        self.pending[slot].clear();
        self.slots[slot].truncate(len);
        Ok(())
    }

    fn len(&self, slot: usize) -> usize {
        self.slots[slot].len()
    }
}

/// Letters for the first tokens, and a snowman in two halves to break characters across tokens.
struct FakeText;

impl Detokenize for FakeText {
    fn bytes(&self, token: u32) -> Vec<u8> {
        match token % 29 {
            letter @ 0..=25 => vec![b'a' + letter as u8],
            26 => b" ".to_vec(),
            27 => "☃".as_bytes()[..2].to_vec(),
            _ => "☃".as_bytes()[2..].to_vec(),
        }
    }
}

/// What a session needs of a fake target.
pub fn fake_model(vocab_size: usize, seed: u64, ctx: usize, slots: usize, eog: &[u32]) -> SessionModel {
    SessionModel {
        engine: Arc::new(FakeEngine::new(vocab_size, seed)),
        detokenizer: Arc::new(FakeText),
        eog: eog.to_vec(),
        suppressed: Vec::new(),
        bos: Some(1),
        state: StateOptions { ctx, slots, key: CacheType::F32, value: CacheType::F32 },
    }
}
