//! Stand-ins for tests: a target with chosen logits and drafters with chosen hit rates.
//!
//! Nothing that ships uses them. They are public so that tests outside this crate can.

mod drafters;
mod engine;

pub use drafters::{Fault, Scripted};
pub use engine::{FakeEngine, fake_model};

/// A mixing function of 64 bits (the finalizer of SplitMix64).
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
