//! Ctrl-C while the GIL is released: the core asks between its passes, the exception is kept for the way out.

use std::time::{Duration, Instant};

use draftgauge_core::Error;
use pyo3::prelude::*;

use crate::errors::Failure;

/// Time between two looks: short against the half second that is promised, long against what a look costs.
const INTERVAL: Duration = Duration::from_millis(20);

/// What the core's pauses call.
pub struct Signals {
    looked: Instant,
    raised: Option<PyErr>,
}

impl Signals {
    /// Nothing has been raised yet.
    pub fn new() -> Self {
        Self { looked: Instant::now(), raised: None }
    }

    /// Runs Python's signal handlers when it is time to. Outside the main thread Python has nothing to run.
    pub fn check(&mut self) -> draftgauge_core::Result<()> {
        if self.looked.elapsed() < INTERVAL {
            return Ok(());
        }
        self.looked = Instant::now();
        let checked = Python::attach(|py| py.check_signals());
        self.keep(checked)
    }

    /// Tells Python how far the work is, if it wants to know, and looks for signals.
    pub fn tell(&mut self, callback: Option<&Py<PyAny>>, share: f64) -> draftgauge_core::Result<()> {
        match callback {
            Some(callback) => self.call(callback, share),
            None => self.check(),
        }
    }

    fn call(&mut self, callback: &Py<PyAny>, share: f64) -> draftgauge_core::Result<()> {
        let called = Python::attach(|py| {
            py.check_signals()?;
            callback.call1(py, (share,)).map(drop)
        });
        self.keep(called)
    }

    /// Keeps what Python raised, and tells the core to stop.
    pub fn keep(&mut self, result: PyResult<()>) -> draftgauge_core::Result<()> {
        result.map_err(|error| {
            self.raised = Some(error);
            Error::Interrupted
        })
    }

    /// The outcome of the work, with the exception that a handler raised in place of the core's `Interrupted`.
    pub fn finish<T>(self, outcome: draftgauge_core::Result<T>) -> Result<T, Failure> {
        match (outcome, self.raised) {
            (Err(Error::Interrupted), Some(raised)) => Err(raised.into()),
            (outcome, _) => Ok(outcome?),
        }
    }
}
