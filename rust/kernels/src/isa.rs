//! Which instruction set the kernels use, decided once at run time.
//!
//! Every path gives the same bits; an [`Isa`] can only be had for a path that this machine runs, so holding one is the proof.

use std::fmt;

/// A kernel path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Plain Rust: the twin of every other path.
    Scalar,
    /// AVX2, FMA and F16C; AVX-VNNI where present.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
}

impl Level {
    /// Every path, the simplest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// The name that `DRAFTGAUGE_ISA` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// A kernel path that this machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isa {
    level: Level,
    vnni: bool,
}

/// A kernel path that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The name of a path is not known.
    #[error("{VARIABLE}: expected scalar, avx2 or avx512, found {found:?}")]
    Unknown {
        /// The name given.
        found: String,
    },
    /// This machine lacks an instruction set that the path needs.
    #[error("kernel path {}: expected a CPU with {missing}, found one without", level.name())]
    Missing {
        /// The path asked for.
        level: Level,
        /// The first instruction set that is lacking.
        missing: &'static str,
    },
}

/// The environment variable that forces a path.
pub const VARIABLE: &str = "DRAFTGAUGE_ISA";

impl Isa {
    /// Plain Rust, which every machine runs.
    pub const SCALAR: Self = Self { level: Level::Scalar, vnni: false };

    /// The path `level`.
    ///
    /// # Errors
    /// [`IsaError::Missing`] when this machine lacks an instruction set that it needs.
    pub fn new(level: Level) -> Result<Self, IsaError> {
        match missing(level) {
            Some(missing) => Err(IsaError::Missing { level, missing }),
            None => Ok(Self { level, vnni: level == Level::Avx512 || level == Level::Avx2 && has_avx_vnni() }),
        }
    }

    /// The fastest path of this machine.
    #[must_use]
    pub fn best() -> Self {
        Level::ALL.into_iter().rev().find_map(|level| Self::new(level).ok()).unwrap_or(Self::SCALAR)
    }

    /// The path that `DRAFTGAUGE_ISA` forces, else the fastest.
    ///
    /// # Errors
    /// When the variable names no path, or one that this machine does not run: never another one instead.
    pub fn from_env() -> Result<Self, IsaError> {
        match std::env::var_os(VARIABLE) {
            None => Ok(Self::best()),
            Some(name) => Self::from_name(&name.to_string_lossy()),
        }
    }

    /// The path with the name that `DRAFTGAUGE_ISA` takes.
    ///
    /// # Errors
    /// When there is no such path, or this machine does not run it.
    pub fn from_name(name: &str) -> Result<Self, IsaError> {
        let level = Level::ALL.into_iter().find(|level| level.name() == name);
        Self::new(level.ok_or_else(|| IsaError::Unknown { found: name.to_owned() })?)
    }

    /// Every path of this machine, the simplest first; AVX2 with AVX-VNNI counts beside AVX2 without.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut paths = Vec::new();
        for isa in Level::ALL.into_iter().filter_map(|level| Self::new(level).ok()) {
            if isa.level == Level::Avx2 && isa.vnni {
                paths.push(Self { vnni: false, ..isa });
            }
            paths.push(isa);
        }
        paths
    }

    /// The kernel path.
    #[must_use]
    pub fn level(self) -> Level {
        self.level
    }

    /// Whether the path multiplies bytes with VNNI.
    #[must_use]
    pub fn has_vnni(self) -> bool {
        self.vnni
    }

    /// The path and what it uses beyond its name, for reports: begins with the name that `DRAFTGAUGE_ISA` takes.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match (self.level, self.vnni) {
            (Level::Avx2, true) => "avx2+vnni",
            (level, _) => level.name(),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.level.name())
    }
}

/// The first instruction set of the path that this machine lacks. The standard library caches the answers.
#[cfg(target_arch = "x86_64")]
fn missing(level: Level) -> Option<&'static str> {
    macro_rules! lacking {
        ($($feature:tt)*) => {
            [$(($feature, is_x86_feature_detected!($feature)),)*].into_iter().find(|&(_, present)| !present).map(|(feature, _)| feature)
        };
    }
    let avx2 = || lacking!("avx2" "fma" "f16c" "bmi1" "bmi2");
    match level {
        Level::Scalar => None,
        Level::Avx2 => avx2(),
        Level::Avx512 => avx2().or_else(|| lacking!("avx512f" "avx512bw" "avx512vl" "avx512dq" "avx512vnni")),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn missing(level: Level) -> Option<&'static str> {
    match level {
        Level::Scalar => None,
        Level::Avx2 => Some("avx2"),
        Level::Avx512 => Some("avx512f"),
    }
}

fn has_avx_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Runs an `#[inline(always)]` function as compiled for the path of an [`Isa`].
///
/// `for_isa!(isa, inner(x: &[f32], out: &mut [f32]) -> f32)` evaluates to `inner(x, out)`, whose body the compiler vectorizes for each path by itself.
/// Rust never fuses or reorders floating-point operations, so every compilation gives the same bits.
macro_rules! for_isa {
    ($isa:expr, $inner:path, ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $inner($($arg),*)
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,bmi1,bmi2")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $inner($($arg),*)
            }
            match $isa.level() {
                $crate::isa::Level::Scalar => $inner($($arg),*),
                // SAFETY: an Isa of this level exists only on a machine with these instruction sets.
                $crate::isa::Level::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                $crate::isa::Level::Avx512 => unsafe { avx512($($arg),*) },
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = $isa;
            $inner($($arg),*)
        }
    }};
}
pub(crate) use for_isa;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_had_by_its_name_or_refused() {
        for level in Level::ALL {
            match Isa::from_name(level.name()) {
                Ok(isa) => assert_eq!(isa.level(), level),
                Err(error) => {
                    assert!(matches!(error, IsaError::Missing { .. }));
                    assert!(error.to_string().contains(level.name()), "{error}");
                    assert!(Isa::best().level() < level);
                }
            }
        }
        let error = Isa::from_name("AVX").unwrap_err();
        assert_eq!(error.to_string(), "DRAFTGAUGE_ISA: expected scalar, avx2 or avx512, found \"AVX\"");
    }

    #[test]
    fn paths_are_listed_from_the_twin_to_the_best() {
        let paths = Isa::available();
        assert_eq!(paths.first(), Some(&Isa::SCALAR));
        assert_eq!(paths.last(), Some(&Isa::best()));
        assert!(paths.iter().all(|isa| isa.describe().starts_with(&isa.to_string())));
    }
}
