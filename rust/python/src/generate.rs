//! Sessions and runs: a generation on a thread of its own, read step by step.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

use draftgauge_core::decode::{Chunk, GenerateOptions, Generation, Observer};
use draftgauge_core::sampling::SamplingParams;
use draftgauge_core::session::{Session, SessionModel};
use draftgauge_core::trace::{self, Header, TraceWriter};
use draftgauge_core::{Error, Evidence};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::drafter::PyDrafter;
use crate::errors::{Failure, Result};
use crate::gguf::to_json;
use crate::target::PyTarget;

/// Time between two looks for Ctrl-C while a run computes.
const INTERVAL: Duration = Duration::from_millis(20);

/// A sequence that grows, with its caches.
#[pyclass(frozen, name = "Session", module = "draftgauge._core")]
pub struct PySession(Arc<Mutex<Session>>);

fn in_use() -> Failure {
    Failure::Python(PyRuntimeError::new_err("the session is generating: close its stream before it is used again"))
}

/// A session that nobody is generating with. A panic in a run leaves the session as poisoned as its lock.
fn lock(session: &Mutex<Session>) -> Result<MutexGuard<'_, Session>> {
    session.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => in_use(),
        TryLockError::Poisoned(_) => Failure::Python(PyRuntimeError::new_err("the session broke in an earlier run")),
    })
}

#[pymethods]
impl PySession {
    #[new]
    fn new(py: Python<'_>, target: &PyTarget, drafter: Option<&PyDrafter>) -> Result<Self> {
        let drafter = drafter.map(|drafter| Arc::clone(&drafter.drafter));
        let session = py.detach(|| Session::new(SessionModel::from(&*target.target), drafter))?;
        Ok(Self(Arc::new(Mutex::new(session))))
    }

    /// Prompt and output so far.
    #[getter]
    fn tokens(&self) -> Result<Vec<u32>> {
        Ok(lock(&self.0)?.tokens().to_vec())
    }

    /// Forgets every token from `length` on.
    fn truncate(&self, length: usize) -> Result<()> {
        Ok(lock(&self.0)?.truncate(length)?)
    }

    /// Starts a generation. With `chunks` every step is handed out, else the end alone.
    #[pyo3(signature = (prompt, options, *, chunks, trace=None))]
    fn start(&self, prompt: Vec<u32>, options: &PyOptions, chunks: bool, trace: Option<TracePlace>) -> Result<PyRun> {
        drop(lock(&self.0)?);
        let place = trace.map(open_trace).transpose()?;
        Ok(PyRun::start(Arc::clone(&self.0), prompt, options.0.clone(), chunks, place))
    }
}

/// Path, header of a new trace or number of the sequence in one that is there, id and category.
type TracePlace = (PathBuf, Option<String>, u64, Option<String>, Option<String>);

/// An open trace, and what the next sequence of it is called.
struct Place {
    writer: TraceWriter,
    id: Option<String>,
    category: Option<String>,
}

fn open_trace((path, header, seq, id, category): TracePlace) -> Result<Place> {
    let writer = match header {
        Some(header) => create_trace(path, &header)?,
        None => TraceWriter::append(path, seq)?,
    };
    Ok(Place { writer, id, category })
}

fn create_trace(path: PathBuf, header: &str) -> Result<TraceWriter> {
    let header: Header =
        serde_json::from_str(header).map_err(|error| PyValueError::new_err(format!("trace header: {error}")))?;
    Ok(TraceWriter::create(path, &header)?)
}

/// Options of a generation, checked when it starts.
#[pyclass(frozen, name = "Options", module = "draftgauge._core")]
pub struct PyOptions(GenerateOptions);

#[pymethods]
impl PyOptions {
    #[new]
    #[pyo3(signature = (*, max_tokens, temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n, logit_bias, stop, ignore_eos, seed, stream_id, draft_n_max, draft_block, draft_p_min))]
    #[expect(clippy::too_many_arguments, reason = "Python's keywords, each with its own meaning")]
    fn new(
        max_tokens: Option<usize>,
        temperature: f64,
        top_k: usize,
        top_p: f64,
        min_p: f64,
        repeat_penalty: f32,
        presence_penalty: f32,
        frequency_penalty: f32,
        repeat_last_n: i64,
        logit_bias: Vec<(u32, f32)>,
        stop: Vec<String>,
        ignore_eos: bool,
        seed: u64,
        stream_id: u64,
        draft_n_max: Option<usize>,
        draft_block: Option<usize>,
        draft_p_min: f32,
    ) -> Self {
        Self(GenerateOptions {
            sampling: SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                repeat_penalty,
                presence_penalty,
                frequency_penalty,
                repeat_last_n,
                logit_bias,
                banned: Vec::new(),
                seed,
                stream: stream_id,
            },
            max_tokens,
            ignore_eos,
            stop,
            draft_n_max,
            draft_block,
            draft_p_min,
            prefill_rows: None,
        })
    }
}

/// What a run tells while it goes on.
enum Event {
    Prefill { done: usize, total: usize },
    Chunk { text: String, tokens: Vec<u32>, num_accepted: usize, accepted_bytes: usize },
}

/// The run's side of the channel.
struct Sender {
    events: SyncSender<Event>,
    stop: Arc<AtomicBool>,
    chunks: bool,
    // Prompt tokens that earlier calls had computed already.
    reused: Option<usize>,
}

impl Sender {
    fn send(&self, event: Event) -> draftgauge_core::Result<()> {
        // A receiver that is gone is a stream that was closed.
        self.events.send(event).map_err(|_| Error::Interrupted)
    }

    fn check(&self) -> draftgauge_core::Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

impl Observer for Sender {
    fn prefill(&mut self, done: usize, total: usize) -> draftgauge_core::Result<()> {
        self.reused.get_or_insert(done);
        self.check()?;
        if self.chunks { self.send(Event::Prefill { done, total }) } else { Ok(()) }
    }

    fn pause(&mut self) -> draftgauge_core::Result<()> {
        self.check()
    }

    fn chunk(&mut self, chunk: &Chunk<'_>) -> draftgauge_core::Result<()> {
        if !self.chunks {
            return Ok(());
        }
        self.send(Event::Chunk {
            text: chunk.text.to_owned(),
            tokens: chunk.tokens.to_vec(),
            num_accepted: chunk.num_accepted,
            accepted_bytes: chunk.accepted_bytes,
        })
    }
}

type Outcome = (draftgauge_core::Result<Generation>, Option<usize>);

/// A generation that goes on in its own thread, one step ahead of whoever reads it.
#[pyclass(frozen, name = "Run", module = "draftgauge._core")]
pub struct PyRun {
    stop: Arc<AtomicBool>,
    inner: Mutex<Inner>,
}

struct Inner {
    events: Option<Receiver<Event>>,
    worker: Option<JoinHandle<Outcome>>,
    outcome: Option<Outcome>,
}

impl PyRun {
    fn start(
        session: Arc<Mutex<Session>>,
        prompt: Vec<u32>,
        options: GenerateOptions,
        chunks: bool,
        mut place: Option<Place>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        // Without room, the run waits for its reader after every step: closing the stream stops it there.
        let (sender, events) = sync_channel(0);
        let mut observer = Sender { events: sender, stop: Arc::clone(&stop), chunks, reused: None };
        let worker = std::thread::spawn(move || {
            let mut session = session.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let mut trace = place.as_mut().map(|place| place.writer.sequence(place.id.take(), place.category.take()));
            let outcome = session.generate(&prompt, &options, &mut observer, trace.as_mut());
            (outcome, observer.reused)
        });
        Self { stop, inner: Mutex::new(Inner { events: Some(events), worker: Some(worker), outcome: None }) }
    }

    /// Waits for the next event, the GIL released, and lets Ctrl-C through. `None` is the end.
    fn wait(&self, py: Python<'_>) -> Result<Option<Event>> {
        loop {
            let received = py.detach(|| {
                let inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match &inner.events {
                    Some(events) => events.recv_timeout(INTERVAL),
                    None => Err(RecvTimeoutError::Disconnected),
                }
            });
            match received {
                Ok(event) => return Ok(Some(event)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            }
        }
    }

    /// Joins the thread and keeps what it came to.
    fn join(&self, py: Python<'_>) -> Result<()> {
        py.detach(|| {
            let mut inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            inner.events = None;
            if let Some(worker) = inner.worker.take() {
                match worker.join() {
                    Ok(outcome) => inner.outcome = Some(outcome),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok(())
        })
    }
}

/// Text, ids, number of accepted drafts and their text; or prompt tokens done and in all.
type EventTuple = (Option<(String, Vec<u32>, usize, String)>, Option<(usize, usize)>);

#[pymethods]
impl PyRun {
    /// The next event: a chunk or the state of the prompt pass. `None` is the end.
    fn next(&self, py: Python<'_>) -> Result<Option<EventTuple>> {
        Ok(self.wait(py)?.map(|event| match event {
            Event::Prefill { done, total } => (None, Some((done, total))),
            Event::Chunk { text, tokens, num_accepted, accepted_bytes } => {
                let accepted = text.get(..accepted_bytes).unwrap_or_default().to_owned();
                (Some((text, tokens, num_accepted, accepted)), None)
            }
        }))
    }

    /// Stops the run after the step that it is in, and waits for that.
    fn stop(&self, py: Python<'_>) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.join(py)
    }

    /// What the run came to, as JSON. Waits for its end; events that nobody read are dropped.
    fn result(&self, py: Python<'_>) -> Result<String> {
        while self.wait(py)?.is_some() {}
        self.join(py)?;
        let mut inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match inner.outcome.take() {
            Some((Ok(generation), reused)) => {
                let text = to_json(&report(&generation, reused))?;
                inner.outcome = Some((Ok(generation), reused));
                Ok(text)
            }
            Some((Err(error), _)) => Err(error.into()),
            None => Err(Error::argument(Evidence::new("the run has failed, and its error was reported")).into()),
        }
    }
}

impl Drop for PyRun {
    fn drop(&mut self) {
        // The thread ends within a step; whoever drops the run does not wait for that.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What a generation came to, under the names of the interface.
fn report(generation: &Generation, reused: Option<usize>) -> Value {
    let counters = &generation.draft.counters;
    let prompt = generation.prompt_tokens.len();
    let computed = prompt - reused.unwrap_or(0).min(prompt);
    let decoded = generation.tokens.len().saturating_sub(1);
    let rate = |count: usize, seconds: f64| (count > 0 && seconds > 0.0).then(|| count as f64 / seconds);
    json!({
        "text": generation.text,
        "tokens": generation.tokens,
        "prompt_tokens": prompt,
        "finish_reason": generation.finish_reason.as_str(),
        "identity": generation.identity,
        "timings": {
            "prefill_s": generation.prefill_s,
            "decode_s": generation.decode_s,
            "prefill_tok_s": rate(computed, generation.prefill_s),
            "decode_tok_s": rate(decoded, generation.decode_s),
        },
        "draft": {
            "status": generation.draft.status.as_str(),
            "type": generation.draft.kind,
            "steps": counters.steps,
            "drafted": counters.drafted,
            "accepted": counters.accepted,
            "bonus": counters.bonus,
            "proposed_at": counters.proposed_at,
            "accepted_at": counters.accepted_at,
            "draft_s": counters.draft_s,
            "verify_s": counters.verify_s,
        },
        "notices": generation.notices,
    })
}

/// A trace up to its last whole line, as JSON.
#[pyfunction]
fn trace_load(py: Python<'_>, path: PathBuf) -> Result<String> {
    py.detach(|| {
        let loaded = trace::load(path)?;
        let sequences: Vec<Value> = loaded
            .sequences
            .iter()
            .map(|sequence| {
                json!({
                    "begin": sequence.begin,
                    "steps": sequence.steps,
                    "end": sequence.end,
                    "tokens": sequence.tokens(),
                })
            })
            .collect();
        to_json(&json!({ "header": loaded.header, "sequences": sequences }))
    })
}

/// Begins a trace that sequences are added to.
#[pyfunction]
fn trace_create(path: PathBuf, header: &str) -> Result<()> {
    create_trace(path, header).map(drop)
}

/// Registers this file's names.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyOptions>()?;
    m.add_class::<PyRun>()?;
    m.add_class::<PySession>()?;
    m.add_function(wrap_pyfunction!(trace_create, m)?)?;
    m.add_function(wrap_pyfunction!(trace_load, m)?)?;
    Ok(())
}
