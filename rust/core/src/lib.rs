//! The engine of draftgauge: GGUF files, programs, backends, drafters, verification and the speculative loop.
//!
//! Nothing here knows candle or Python. Data walks one way: file, program and weights, session, loop, trace.

pub mod backend;
pub mod bench;
pub mod cpu;
pub mod decode;
pub mod drafters;
pub mod error;
pub mod evaluate;
pub mod exact;
pub mod gguf;
pub mod inspect;
pub mod memory;
pub mod naive;
pub mod noise;
mod parallel;
pub mod program;
pub mod quantize;
pub mod sampling;
pub mod score;
pub mod session;
pub mod target;
pub mod targets;
pub mod testing;
pub mod text;
pub mod trace;
pub mod tree;
pub mod verify;

pub use error::{Error, Evidence, Result};
