//! The fast backend for CPUs: packed weights, one parallel region a step, every law bit for bit.

mod aligned;
mod cache;
mod markov;
mod plan;
mod pool;
mod run;
mod weight;

use std::sync::Arc;

use draftgauge_kernels::isa::Isa;
pub use draftgauge_kernels::matmul::Numerics;
use draftgauge_kernels::quant::QuantType;

use crate::backend::{Backend, Forest, Outputs, Request, StateOptions, WeightSource};
use crate::error::{Error, Evidence, Result};
use crate::memory;
use crate::program::{Program, WeightId, WeightSpec};

pub use plan::Plan;
pub use pool::{Pool, Region, default_threads};
pub use run::State;
pub use weight::Weight;

/// How the CPU is used.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuOptions {
    /// Number of threads; [`default_threads`] where `None`.
    pub threads: Option<usize>,
    /// Integer products on quantized activations, or everything in f32.
    pub numerics: Numerics,
    /// Leaves matrices as they are in the file, near the memory limit: slower, with the same bits.
    pub no_pack: bool,
    /// Kernel path; the one that `DRAFTGAUGE_ISA` names, or the fastest, where `None`.
    pub isa: Option<Isa>,
}

/// The CPU with its threads.
#[derive(Debug)]
pub struct Cpu {
    pool: Arc<Pool>,
    isa: Isa,
    numerics: Numerics,
    pack: bool,
}

impl Cpu {
    /// Starts the threads.
    ///
    /// # Errors
    /// `Error::Argument` for no threads or more than the machine has, `Error::Device` for a kernel path that this CPU
    /// lacks or threads that cannot be started.
    pub fn new(options: CpuOptions) -> Result<Self> {
        let threads = options.threads.unwrap_or_else(default_threads);
        if threads == 0 || threads > MAX_THREADS {
            return Err(Error::argument(
                Evidence::new("number of threads cannot be used")
                    .key("threads")
                    .expected(format!("1 to {MAX_THREADS}"))
                    .found(threads),
            ));
        }
        let isa = match options.isa {
            Some(isa) => isa,
            None => Isa::from_env().map_err(|error| Error::device(Evidence::new(error.to_string())))?,
        };
        Ok(Self { pool: Arc::new(Pool::new(threads)?), isa, numerics: options.numerics, pack: !options.no_pack })
    }

    /// Its threads.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Its kernel path.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// More threads than any machine that this runs on.
const MAX_THREADS: usize = 1024;

impl Backend for Cpu {
    type Weight = Weight;
    type Plan = Plan;
    type State = State;

    fn kernels(&self) -> String {
        let numerics = match self.numerics {
            Numerics::Fast => "fast",
            Numerics::Reference => "reference",
        };
        format!("{} {numerics}", self.isa.describe())
    }

    fn weight_bytes(&self, spec: &WeightSpec, ty: QuantType) -> u64 {
        weight::bytes_beside(self, spec, ty)
    }

    fn weight(&self, spec: &WeightSpec, source: WeightSource) -> Result<Weight> {
        Weight::new(self, spec, source)
    }

    fn plan(&self, program: Program, weights: Vec<Arc<Weight>>) -> Result<Plan> {
        Ok(Plan::new(program, weights, Arc::clone(&self.pool), self.isa))
    }

    fn shared_weight(&self, plan: &Plan, id: WeightId) -> Arc<Weight> {
        Arc::clone(plan.shared(id))
    }

    fn open(&self, plan: &Plan, options: StateOptions) -> Result<State> {
        Ok(State::new(plan, options))
    }

    fn run(
        &self,
        plan: &Plan,
        state: &mut State,
        forest: &Forest,
        request: &Request<'_>,
        outputs: &mut Outputs,
    ) -> Result<()> {
        state.run(plan, forest, request, outputs)
    }

    fn commit(&self, plan: &Plan, state: &mut State, slot: usize, path: &[usize]) -> Result<()> {
        state.slot(slot)?.commit(&plan.program.caches, path)
    }

    fn truncate(&self, _: &Plan, state: &mut State, slot: usize, len: usize) -> Result<()> {
        state.slot(slot)?.truncate(len)
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
