//! The same programs on candle tensors: on candle's CPU device, on CUDA and on Metal.
//!
//! Activations are f32. A row's logits equal those of the `cpu` backend in law, not bit for bit: candle picks kernels by
//! the number of rows. On its CPU device this backend is a third opinion for the tests.

mod backend;
mod device;
mod ops;
mod state;
mod weights;

pub use backend::{Candle, Plan};
pub use state::State;
pub use weights::Weight;

use draftgauge_core::error::{Error, Evidence};

/// What candle could not do, as an error of this project.
fn failed(what: &str) -> impl Fn(candle_core::Error) -> Error + '_ {
    move |error| {
        // Candle appends a backtrace after the first line where one was asked for.
        let text = error.to_string();
        let reason = text.lines().next().unwrap_or_default().to_owned();
        Error::device(Evidence::new("candle could not run an operation").key(what).found(reason))
    }
}
