//! The memory plan: what a model will need, computed before anything is loaded.

use std::fmt;

use crate::backend::{Backend, CacheType, StateOptions};
use crate::error::{Error, Evidence, Result};
use crate::gguf::GgufFile;
use crate::program::{CacheSpec, Op, Program, WeightUse};

/// Bytes by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights that are read from the mapped file while running.
    pub mapped: u64,
    /// Weights that the backend holds beside the file: packed, converted or on a device.
    pub held: u64,
    /// Key and value caches at the full context of every slot.
    pub cache: u64,
    /// Logits of a pass whose rows are all asked for.
    pub logits: u64,
    /// Features of a pass that is tapped at every point.
    pub taps: u64,
    /// What the machine can give, where it tells.
    pub available: Option<u64>,
}

impl MemoryPlan {
    /// Adds up what a program needs on a backend, with passes of at most `rows` rows.
    pub fn new<B: Backend>(
        backend: &B,
        program: &Program,
        file: &GgufFile,
        options: StateOptions,
        rows: usize,
    ) -> Self {
        let (mut mapped, mut held) = (0_u64, 0_u64);
        for spec in &program.weights {
            let Some(ty) = file.tensor(&spec.name).and_then(|info| info.ty) else { continue };
            let beside = backend.weight_bytes(spec, ty);
            held = held.saturating_add(beside);
            // A packed matrix is read from the file only once; a table is read from it for good.
            if beside == 0 || spec.usage == WeightUse::TableAndMatmul {
                mapped = mapped.saturating_add(spec.range(ty).map_or(0, |range| range.len() as u64));
            }
        }
        let values = |a: usize, b: usize| (a as u64).saturating_mul(b as u64).saturating_mul(4 * rows as u64);
        let points = program.ops.iter().filter(|op| matches!(op, Op::Tap { .. } | Op::Head { .. })).count();
        Self {
            mapped,
            held,
            cache: cache_bytes(program, options),
            logits: values(program.head_size, 1),
            taps: values(points, program.hidden_size),
            available: available_memory(),
        }
    }

    /// The sum.
    pub fn total(&self) -> u64 {
        [self.held, self.cache, self.logits, self.taps].into_iter().fold(self.mapped, u64::saturating_add)
    }

    /// Refuses a model that cannot fit.
    ///
    /// # Errors
    /// `Error::Device` with the sum and what is available.
    pub fn require_fit(&self, file: &GgufFile) -> Result<()> {
        match self.available {
            Some(available) if self.total() > available => Err(Error::device(
                Evidence::new("model does not fit in memory")
                    .path(file.path())
                    .expected(format!("at most {}", Mib(available)))
                    .found(self),
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (weights in the file {}, weights beside it {}, cache {}, logits {}, features {})",
            Mib(self.total()),
            Mib(self.mapped),
            Mib(self.held),
            Mib(self.cache),
            Mib(self.logits),
            Mib(self.taps)
        )
    }
}

struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

/// Bytes of the caches at their full context.
pub fn cache_bytes(program: &Program, options: StateOptions) -> u64 {
    let bytes = |ty: CacheType| match ty {
        CacheType::F16 => 2_u64,
        CacheType::F32 => 4,
    };
    let positions = (options.ctx as u64).saturating_mul(options.slots as u64);
    program
        .caches
        .iter()
        .map(|cache| match *cache {
            CacheSpec::Attention { num_kv_heads, key_dim, value_dim, .. } => positions.saturating_mul(
                num_kv_heads as u64 * (key_dim as u64 * bytes(options.key) + value_dim as u64 * bytes(options.value)),
            ),
        })
        .fold(0, u64::saturating_add)
}

/// Memory that a process may still take: the smaller of the machine's and its control group's.
pub fn available_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| mem_available(&text));
    let limit = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse::<u64>().ok());
    let used = read("/sys/fs/cgroup/memory.current").and_then(|text| text.trim().parse::<u64>().ok());
    let group = limit.map(|limit| limit.saturating_sub(used.unwrap_or(0)));
    match (machine, group) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_kib() {
        assert_eq!(mem_available("MemTotal: 10 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 10 kB\n"), None);
    }

    #[test]
    fn a_plan_over_the_limit_says_its_sum() {
        let plan = MemoryPlan {
            mapped: 1 << 20,
            held: 2 << 20,
            cache: 3 << 20,
            logits: 4 << 20,
            taps: 5 << 20,
            available: Some(1),
        };
        assert_eq!(
            plan.to_string(),
            "15.0 MiB (weights in the file 1.0 MiB, weights beside it 2.0 MiB, cache 3.0 MiB, logits 4.0 MiB, features 5.0 MiB)"
        );
    }
}
