//! What runs a program: the trait that `cpu`, `naive` and `candle` implement, and its erased form that sessions hold.

use std::sync::Arc;

use crate::error::{Error, Evidence, Result};
use crate::gguf::GgufFile;
use crate::program::{Program, TapPoint, WeightId, WeightSpec, WeightUse};

/// The rows of one call: prefill, chain, tree and many sequences at once are shapes of it.
///
/// Row i has a token, a parent (an earlier row of the same slot, or -1 for the slot's last committed position),
/// a position (its parent's plus one) and a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forest {
    tokens: Vec<u32>,
    parents: Vec<i32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    draft: Option<DraftBlocks>,
}

/// The rows of a forest as draft blocks of equal width, each with a view of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftBlocks {
    /// Rows of a block.
    pub width: usize,
    /// Whether a row sees the later rows of its block too.
    pub bidirectional: bool,
}

impl Forest {
    /// A chain of tokens that follows the `start` committed positions of `slot`.
    pub fn chain(tokens: &[u32], start: usize, slot: usize) -> Self {
        let rows = tokens.len();
        Self {
            tokens: tokens.to_vec(),
            parents: (0..rows as i32).map(|row| row - 1).collect(),
            positions: (start as u32..(start + rows) as u32).collect(),
            slots: vec![slot as u32; rows],
            draft: None,
        }
    }

    /// Draft blocks of one slot: block j takes `blocks.width` tokens from position `starts[j]` on, and sees the
    /// committed positions before that one and its own rows. Such rows are never committed.
    ///
    /// # Errors
    /// `Error::Tree` when the tokens do not fill the blocks.
    pub fn blocks(tokens: &[u32], starts: &[usize], slot: usize, blocks: DraftBlocks) -> Result<Self> {
        if blocks.width == 0 || tokens.len() != starts.len() * blocks.width {
            return Err(Error::tree(
                Evidence::new("draft blocks need their width of tokens")
                    .expected(format!("{} blocks of {}", starts.len(), blocks.width))
                    .found(format!("{} tokens", tokens.len())),
            ));
        }
        let rows = tokens.len();
        let place = |row: usize| row % blocks.width;
        Ok(Self {
            tokens: tokens.to_vec(),
            parents: (0..rows).map(|row| if place(row) == 0 { -1 } else { row as i32 - 1 }).collect(),
            positions: (0..rows).map(|row| (starts[row / blocks.width] + place(row)) as u32).collect(),
            slots: vec![slot as u32; rows],
            draft: Some(blocks),
        })
    }

    /// A tree after the `start` committed positions of `slot`: node i of `parents` is row i, its root's parent is -1.
    pub fn tree(tokens: &[u32], parents: &[i32], start: usize, slot: usize) -> Result<Self> {
        let mut forest = Self::default();
        forest.push(tokens, parents, start, slot)?;
        Ok(forest)
    }

    /// Adds the rows of one more slot. `parents` counts within `tokens`.
    ///
    /// # Errors
    /// `Error::Tree` when lengths differ, a parent does not come before its child, or the slot is already there.
    pub fn push(&mut self, tokens: &[u32], parents: &[i32], start: usize, slot: usize) -> Result<()> {
        if tokens.len() != parents.len() {
            return Err(Error::tree(
                Evidence::new("a forest needs one parent a token").expected(tokens.len()).found(parents.len()),
            ));
        }
        if self.slots.contains(&(slot as u32)) {
            return Err(Error::tree(Evidence::new("a slot appears twice in a forest").key(format!("slot {slot}"))));
        }
        let base = self.tokens.len();
        for (node, &parent) in parents.iter().enumerate() {
            if parent < -1 || parent >= node as i32 {
                self.tokens.truncate(base);
                self.parents.truncate(base);
                self.positions.truncate(base);
                self.slots.truncate(base);
                return Err(Error::tree(
                    Evidence::new("a parent must come before its child")
                        .key(format!("node {node}"))
                        .expected(format!("-1 to {}", node as i32 - 1))
                        .found(parent),
                ));
            }
            let (parent, position) = if parent < 0 {
                (-1, start as u32)
            } else {
                (parent + base as i32, self.positions[base + parent as usize] + 1)
            };
            self.tokens.push(tokens[node]);
            self.parents.push(parent);
            self.positions.push(position);
            self.slots.push(slot as u32);
        }
        Ok(())
    }

    /// Each slot with the range of its rows.
    pub fn slot_rows(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
        let mut start = 0;
        self.slots.chunk_by(|a, b| a == b).map(move |rows| {
            let range = start..start + rows.len();
            start = range.end;
            (rows[0] as usize, range)
        })
    }

    /// Refuses rows that a state cannot take: tokens, slots, or positions that are not there or do not follow.
    ///
    /// # Errors
    /// `Error::Argument` for a token past the vocabulary, `Error::Tree` for a slot that does not exist or rows that do
    /// not follow its committed positions, `Error::Model` for a context that would overflow.
    pub fn check(&self, vocab_size: usize, options: StateOptions, committed: impl Fn(usize) -> usize) -> Result<()> {
        if let Some(token) = self.tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Error::argument(
                Evidence::new("token is not in the vocabulary")
                    .expected(format!("less than {vocab_size}"))
                    .found(token),
            ));
        }
        for (slot, rows) in self.slot_rows() {
            if slot >= options.slots {
                return Err(Error::tree(
                    Evidence::new("slot does not exist").expected(format!("less than {}", options.slots)).found(slot),
                ));
            }
            let (start, len) = (self.positions[rows.start] as usize, committed(slot));
            if let Some(blocks) = self.draft {
                let late = rows.clone().step_by(blocks.width).map(|row| self.positions[row] as usize);
                if let Some(start) = late.into_iter().find(|&start| start > len) {
                    return Err(Error::tree(
                        Evidence::new("a draft block begins after the slot's committed positions")
                            .key(format!("slot {slot}"))
                            .expected(format!("at most position {len}"))
                            .found(start),
                    ));
                }
            } else if start != len {
                return Err(Error::tree(
                    Evidence::new("rows do not follow the slot's committed positions")
                        .key(format!("slot {slot}"))
                        .expected(format!("position {len}"))
                        .found(start),
                ));
            }
            let end = self.positions[rows].iter().max().map_or(0, |&position| position as usize + 1);
            if end > options.ctx {
                return Err(Error::model(
                    Evidence::new("context is full")
                        .key(format!("slot {slot}"))
                        .expected(format!("at most {} positions", options.ctx))
                        .found(end),
                ));
            }
        }
        Ok(())
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Token of each row. `[rows]`
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Parent row of each row, -1 for the slot's last committed position. `[rows]`
    pub fn parents(&self) -> &[i32] {
        &self.parents
    }

    /// Position of each row. `[rows]`
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Slot of each row; the rows of a slot stand together. `[rows]`
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// How its rows form draft blocks, where they do.
    pub fn draft_blocks(&self) -> Option<DraftBlocks> {
        self.draft
    }

    /// Parents of the rows of a slot as its state keeps them for a commit: rows of draft blocks have none that fits.
    pub fn pending_parents(&self, rows: std::ops::Range<usize>) -> impl Iterator<Item = i32> {
        let base = rows.start as i32;
        let committable = self.draft.is_none();
        self.parents[rows].iter().map(move |&parent| match parent {
            _ if !committable => NO_PARENT,
            parent if parent < 0 => -1,
            parent => parent - base,
        })
    }

    /// The rows of the same slot that a row of draft blocks sees: its block, or the part up to the row itself.
    pub fn block_rows(&self, row: usize) -> Option<std::ops::Range<usize>> {
        let blocks = self.draft?;
        let start = row - row % blocks.width;
        Some(start..if blocks.bidirectional { start + blocks.width } else { row + 1 })
    }
}

/// Stands for the parent of a pending row that no path can reach.
const NO_PARENT: i32 = -2;

/// What a run should give back.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Rows whose logits are wanted, in this order.
    pub rows: &'a [usize],
    /// What is wanted of those rows.
    pub head: Head,
    /// Points whose values are wanted for every row of the batch.
    pub taps: &'a [TapPoint],
    /// Features that enter instead of tokens: the program's `inject` operations run. `[rows, input width]`
    pub features: Option<&'a [f32]>,
}

impl Request<'_> {
    /// Refuses rows that the forest does not have.
    ///
    /// # Errors
    /// `Error::Argument` naming the row, or the number of features.
    pub fn check(&self, forest: &Forest, program: &Program) -> Result<()> {
        if let Some(features) = self.features
            && features.len() != forest.len() * program.input_width()
        {
            return Err(Error::argument(
                Evidence::new("features do not fit the rows")
                    .expected(format!("{} rows of {}", forest.len(), program.input_width()))
                    .found(features.len()),
            ));
        }
        match self.rows.iter().find(|&&row| row >= forest.len()) {
            Some(row) => Err(Error::argument(
                Evidence::new("row is not in the forest").expected(format!("less than {}", forest.len())).found(row),
            )),
            None => Ok(()),
        }
    }
}

/// What is wanted of the output head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Head {
    /// The full rows of logits.
    #[default]
    Logits,
    /// The two largest logits of each row and the id of the first: what greedy decoding needs.
    Top2,
}

/// The two largest logits of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Top2 {
    /// Id of the largest logit; the lowest id where several are equal.
    pub token: u32,
    /// The largest logit.
    pub first: f32,
    /// The second largest logit (equal to the first on a tie).
    pub second: f32,
}

impl Top2 {
    /// The two largest of a row of logits.
    pub fn of(logits: &[f32]) -> Self {
        // Lanes of their own make this vector code; a token's lane is its id modulo the width.
        const LANES: usize = 16;
        let mut first = [f32::NEG_INFINITY; LANES];
        let mut second = [f32::NEG_INFINITY; LANES];
        let (whole, rest) = logits.as_chunks::<LANES>();
        for chunk in whole {
            for lane in 0..LANES {
                let value = chunk[lane];
                let loser = if value > first[lane] { first[lane] } else { value };
                second[lane] = if loser > second[lane] { loser } else { second[lane] };
                first[lane] = if value > first[lane] { value } else { first[lane] };
            }
        }
        let mut best = Self { token: 0, first: f32::NEG_INFINITY, second: f32::NEG_INFINITY };
        for value in first.into_iter().chain(second).chain(rest.iter().copied()) {
            if value > best.first {
                best.second = best.first;
                best.first = value;
            } else if value > best.second {
                best.second = value;
            }
        }
        best.token = logits.iter().position(|&value| value == best.first).unwrap_or(0) as u32;
        best
    }
}

/// What a run gave back; buffers are reused between runs.
#[derive(Debug, Clone, Default)]
pub struct Outputs {
    /// With [`Head::Logits`]: `[request.rows, head_size]`.
    pub logits: Vec<f32>,
    /// With [`Head::Top2`]: `[request.rows]`.
    pub top2: Vec<Top2>,
    /// `[request.taps, rows, hidden]`.
    pub taps: Vec<f32>,
}

/// How a cache stores keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheType {
    /// Half precision: the default.
    #[default]
    F16,
    /// Single precision.
    F32,
}

/// What a state is opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateOptions {
    /// Most positions a slot may hold; storage grows on demand up to it.
    pub ctx: usize,
    /// Number of independent sequences.
    pub slots: usize,
    /// Type of the keys.
    pub key: CacheType,
    /// Type of the values.
    pub value: CacheType,
}

/// A weight's bytes as they lie in the file, and a hold on whatever keeps them mapped.
#[derive(Clone)]
pub struct WeightSource {
    /// ggml type of the data.
    pub ty: draftgauge_kernels::quant::QuantType,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// The mapped bytes.
    pub data: Bytes,
}

impl WeightSource {
    /// A weight as it lies in its file: of a tensor that holds several, its own rows.
    ///
    /// # Errors
    /// `Error::Gguf` or `Error::Model` when the tensor is missing, has an unknown type or lies outside the file.
    pub fn read(spec: &WeightSpec, file: &GgufFile) -> Result<Self> {
        let info = file.required_tensor(&spec.name)?;
        let data = file.bytes(info)?;
        let bad = || {
            let shape = format!("{:?} from row {}", spec.shape, spec.first_row);
            Evidence::new("tensor does not hold the weight").path(file.path()).tensor(&spec.name).expected(shape)
        };
        let ty = info.ty.ok_or_else(|| Error::model(bad().found(info.type_name())))?;
        let range = spec.range(ty).filter(|range| range.end <= data.len());
        let range = range.ok_or_else(|| Error::model(bad().found(format!("{:?}", info.shape))))?;
        Ok(Self { ty, shape: spec.shape.clone(), data: data.part(range) })
    }
}

/// Shared, immutable bytes.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// The bytes `start .. start + len` of `owner`.
    ///
    /// # Panics
    /// When the range lies outside the owner.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, start: usize, len: usize) -> Self {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= (*owner).as_ref().len()),
            "byte range outside its owner"
        );
        Self { owner, start, len }
    }

    /// Bytes that belong to nobody else.
    pub fn from_vec(data: Vec<u8>) -> Self {
        let len = data.len();
        Self::new(Arc::new(data), 0, len)
    }

    /// The bytes of a range of these.
    ///
    /// # Panics
    /// When the range lies outside them.
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "byte range outside its owner");
        Self { owner: Arc::clone(&self.owner), start: self.start + range.start, len: range.len() }
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.start + self.len]
    }
}

/// A way to run programs.
///
/// The laws: a row's bits depend on its own root path alone (`cpu`); `commit` and `truncate` leave exactly the state
/// of a run that never saw the dropped rows. A failed call leaves the committed state as it was.
pub trait Backend: Send + Sync + 'static {
    /// A weight in the form this backend reads.
    type Weight: Send + Sync;
    /// A program bound to its weights.
    type Plan: Send + Sync + 'static;
    /// What changes while sequences grow.
    type State: Send + 'static;

    /// Device and kernel path, for reports: begins with the name of the kernel path on a CPU.
    fn kernels(&self) -> String;
    /// Bytes that this backend will hold for a weight beside the mapped file, for the memory plan before loading.
    fn weight_bytes(&self, spec: &WeightSpec, ty: draftgauge_kernels::quant::QuantType) -> u64;
    /// Takes a weight over.
    fn weight(&self, spec: &WeightSpec, source: WeightSource) -> Result<Self::Weight>;
    /// Binds a program to its weights, in order of their ids.
    fn plan(&self, program: Program, weights: Vec<Arc<Self::Weight>>) -> Result<Self::Plan>;
    /// A weight of a plan, for another program that shares it.
    fn shared_weight(&self, plan: &Self::Plan, id: WeightId) -> Arc<Self::Weight>;
    /// What was noticed about the weights taken over so far: types that had to be converted.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
    /// Opens an empty state.
    fn open(&self, plan: &Self::Plan, options: StateOptions) -> Result<Self::State>;
    /// Runs the rows. They stay pending until `commit`; a further `run` on the slot drops what is pending.
    ///
    /// # Errors
    /// `Error::Model` naming layer and row when a value is not finite; `Error::Tree` when a slot would pass its context.
    fn run(
        &self,
        plan: &Self::Plan,
        state: &mut Self::State,
        forest: &Forest,
        request: &Request<'_>,
        outputs: &mut Outputs,
    ) -> Result<()>;
    /// Makes rows of the last run permanent. `path` holds indices among the slot's own rows: a root path, in order of position.
    fn commit(&self, plan: &Self::Plan, state: &mut Self::State, slot: usize, path: &[usize]) -> Result<()>;
    /// Drops pending rows and every committed position from `len` on.
    fn truncate(&self, plan: &Self::Plan, state: &mut Self::State, slot: usize, len: usize) -> Result<()>;
    /// Number of committed positions of a slot.
    fn len(&self, state: &Self::State, slot: usize) -> usize;
    /// Bytes that a state of these options may come to hold.
    fn state_bytes(&self, plan: &Self::Plan, options: StateOptions) -> u64;
    /// The program of a plan.
    fn program<'a>(&self, plan: &'a Self::Plan) -> &'a Program;
}

/// Where a weight of an attached program comes from.
pub enum Origin {
    /// A file's bytes, taken over by the backend.
    File(WeightSource),
    /// A weight of the engine that the program is attached to, by name.
    Shared(String),
}

/// A loaded model with its backend erased: immutable and shared between threads.
pub trait Engine: Send + Sync {
    /// The program that runs.
    fn program(&self) -> &Program;
    /// Device and kernel path.
    fn kernels(&self) -> String;
    /// Opens an empty state.
    fn open(&self, options: StateOptions) -> Result<Box<dyn EngineState>>;
    /// Bytes that a state of these options may come to hold.
    fn state_bytes(&self, options: StateOptions) -> u64;
    /// Bytes that the backend would hold for a weight beside the mapped file.
    fn weight_bytes(&self, spec: &WeightSpec, ty: draftgauge_kernels::quant::QuantType) -> u64;
    /// Loads another program on the same backend; `origin` tells where each of its weights comes from. Nothing that is
    /// shared is loaded again, so a program can be rebuilt with other settings at no cost.
    ///
    /// # Errors
    /// `Error::Model` for a shared weight that is not there or cannot be used so; what taking a weight over gives.
    fn attach(
        &self,
        program: Program,
        origin: &mut dyn FnMut(&WeightSpec) -> Result<Origin>,
    ) -> Result<Arc<dyn Engine>>;
    /// What was noticed about weights so far.
    fn notices(&self) -> Vec<String>;
}

/// The state of one engine with its backend erased. See [`Backend`] for the meaning of each call.
pub trait EngineState: Send {
    /// Runs the rows of a forest.
    fn run(&mut self, forest: &Forest, request: &Request<'_>, outputs: &mut Outputs) -> Result<()>;
    /// Makes a root path of the last run's rows permanent.
    fn commit(&mut self, slot: usize, path: &[usize]) -> Result<()>;
    /// Drops pending rows and positions from `len` on.
    fn truncate(&mut self, slot: usize, len: usize) -> Result<()>;
    /// Number of committed positions.
    fn len(&self, slot: usize) -> usize;
    /// Whether a slot is empty.
    fn is_empty(&self, slot: usize) -> bool {
        self.len(slot) == 0
    }
}

/// A backend with a plan: the erased engine.
pub struct Loaded<B: Backend> {
    backend: Arc<B>,
    plan: Arc<B::Plan>,
}

impl<B: Backend> Loaded<B> {
    /// Joins the two.
    pub fn new(backend: Arc<B>, plan: B::Plan) -> Self {
        Self { backend, plan: Arc::new(plan) }
    }
}

struct LoadedState<B: Backend> {
    backend: Arc<B>,
    plan: Arc<B::Plan>,
    state: B::State,
}

impl<B: Backend> Engine for Loaded<B> {
    fn program(&self) -> &Program {
        self.backend.program(&self.plan)
    }

    fn kernels(&self) -> String {
        self.backend.kernels()
    }

    fn open(&self, options: StateOptions) -> Result<Box<dyn EngineState>> {
        let state = self.backend.open(&self.plan, options)?;
        Ok(Box::new(LoadedState { backend: Arc::clone(&self.backend), plan: Arc::clone(&self.plan), state }))
    }

    fn state_bytes(&self, options: StateOptions) -> u64 {
        self.backend.state_bytes(&self.plan, options)
    }

    fn weight_bytes(&self, spec: &WeightSpec, ty: draftgauge_kernels::quant::QuantType) -> u64 {
        self.backend.weight_bytes(spec, ty)
    }

    fn attach(
        &self,
        program: Program,
        origin: &mut dyn FnMut(&WeightSpec) -> Result<Origin>,
    ) -> Result<Arc<dyn Engine>> {
        let known = self.program();
        let weights = program.weights.iter().map(|spec| match origin(spec)? {
            Origin::File(source) => self.backend.weight(spec, source).map(Arc::new),
            Origin::Shared(name) => {
                match known.weights.iter().position(|w| w.name == name && w.first_row == spec.first_row) {
                    Some(index) if shares(known.weights[index].usage, spec.usage) => {
                        Ok(self.backend.shared_weight(&self.plan, WeightId(index as u32)))
                    }
                    found => Err(Error::model(
                        Evidence::new("a weight cannot be shared")
                            .tensor(&name)
                            .expected(format!("{:?}", spec.usage))
                            .found(
                                found.map_or("nothing".to_owned(), |index| format!("{:?}", known.weights[index].usage)),
                            ),
                    )),
                }
            }
        });
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let plan = self.backend.plan(program, weights)?;
        Ok(Arc::new(Self { backend: Arc::clone(&self.backend), plan: Arc::new(plan) }))
    }

    fn notices(&self) -> Vec<String> {
        self.backend.notices()
    }
}

/// Whether a weight that was taken over for one use serves another.
fn shares(held: WeightUse, wanted: WeightUse) -> bool {
    held == wanted || held == WeightUse::TableAndMatmul && matches!(wanted, WeightUse::Table | WeightUse::Matmul)
}

impl<B: Backend> EngineState for LoadedState<B> {
    fn run(&mut self, forest: &Forest, request: &Request<'_>, outputs: &mut Outputs) -> Result<()> {
        self.backend.run(&self.plan, &mut self.state, forest, request, outputs)
    }

    fn commit(&mut self, slot: usize, path: &[usize]) -> Result<()> {
        self.backend.commit(&self.plan, &mut self.state, slot, path)
    }

    fn truncate(&mut self, slot: usize, len: usize) -> Result<()> {
        self.backend.truncate(&self.plan, &mut self.state, slot, len)
    }

    fn len(&self, slot: usize) -> usize {
        self.backend.len(&self.state, slot)
    }
}
