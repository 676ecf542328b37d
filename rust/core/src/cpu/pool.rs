//! The threads of the CPU backend: one parallel region a step, its stages cut in pieces.
//!
//! A stage is complete when its pieces are done, not when its threads have arrived: whoever finishes the last piece
//! opens the next stage. A thread that the scheduler displaced delays the others by the piece it holds, or not at all.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, Evidence, Result};

/// Looks at the cursor this often before giving the core away.
const SPINS: u32 = 4_000;

/// Gives the core away this often, outside a region, before sleeping.
const YIELDS: u32 = 50;

/// Work in stages: every piece of a stage may run at once, and sees what all earlier stages wrote.
pub trait Region: Sync {
    /// Number of stages, less than 2^12.
    fn stages(&self) -> usize;
    /// Number of pieces of a stage, less than 2^20; zero skips it.
    fn pieces(&self, stage: usize) -> usize;
    /// Does one piece. `worker` is below [`Pool::threads`] and no two pieces run at once under one number.
    fn piece(&self, stage: usize, piece: usize, worker: usize);
}

/// A fixed set of threads; the caller of [`Pool::run`] is one of them.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    threads: usize,
    /// Regions of different sessions take turns.
    turn: Mutex<()>,
}

/// Where the open region stands: epoch (32 bits), stage (12 bits), pieces not claimed yet (20 bits).
///
/// A claim is a compare-and-swap of the whole word, so a thread with an old view can never claim into a later region
/// (that would take 2^32 regions in the life of one view).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor(u64);

const CLOSED: u64 = 0xfff;

impl Cursor {
    fn new(epoch: u64, stage: u64, unclaimed: u64) -> Self {
        Self((epoch & 0xffff_ffff) << 32 | stage << 20 | unclaimed)
    }

    fn epoch(self) -> u64 {
        self.0 >> 32
    }

    fn stage(self) -> u64 {
        self.0 >> 20 & 0xfff
    }

    fn unclaimed(self) -> u64 {
        self.0 & 0xf_ffff
    }
}

#[derive(Debug)]
struct Shared {
    cursor: AtomicU64,
    done: AtomicU32,
    /// The open region. Written while no region is open, read only while a claim is held.
    region: UnsafeCell<Option<*const dyn Region>>,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `region` is the only field that is not `Sync`. It is written by the thread that holds `turn` while the cursor
// is closed, and published by the release store of the cursor that opens the region; it is read only by a thread whose
// claim (an acquire compare-and-swap on that cursor) succeeded. The region stays open, and the pointer valid, until
// every claimed piece is counted as done.
unsafe impl Sync for Shared {}
// SAFETY: the pointer is only followed under the protocol above, whichever thread that happens on.
unsafe impl Send for Shared {}

impl Pool {
    /// Starts `threads - 1` threads beside the caller's.
    ///
    /// # Errors
    /// `Error::Device` when the system refuses a thread.
    pub fn new(threads: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            cursor: AtomicU64::new(Cursor::new(0, CLOSED, 0).0),
            done: AtomicU32::new(0),
            region: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new(), threads: threads.max(1), turn: Mutex::new(()) };
        for worker in 1..pool.threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("draftgauge-{worker}"))
                .spawn(move || shared.work(worker))
                .map_err(|error| Error::device(Evidence::new("cannot start a thread").found(error)))?;
            pool.workers.push(thread);
        }
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs a region to its end.
    ///
    /// # Errors
    /// `Error::Device` when a piece panicked; the rest of the region is then skipped and the pool stays usable.
    pub fn run(&self, region: &dyn Region) -> Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let panicked = if self.threads == 1 { run_alone(region) } else { self.shared.lead(region) };
        if panicked {
            return Err(Error::device(Evidence::new("a kernel panicked").expected("a step that completes")));
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            // A worker never panics: pieces are caught.
            let _ = worker.join();
        }
    }
}

fn run_alone(region: &dyn Region) -> bool {
    catch_unwind(AssertUnwindSafe(|| {
        for stage in 0..region.stages() {
            for piece in 0..region.pieces(stage) {
                region.piece(stage, piece, 0);
            }
        }
    }))
    .is_err()
}

impl Shared {
    /// Opens a region and works on it until it closes.
    fn lead(&self, region: &dyn Region) -> bool {
        // SAFETY: the lifetime is erased for as long as this call lasts. No region is open, so nobody reads the cell;
        // this call returns only after the region closed, which is after the last claimed piece was done.
        unsafe {
            let erased: *const (dyn Region + '_) = region;
            *self.region.get() =
                Some(std::mem::transmute::<*const (dyn Region + '_), *const (dyn Region + 'static)>(erased));
        }
        self.panicked.store(false, Ordering::Relaxed);
        let epoch = Cursor(self.cursor.load(Ordering::Relaxed)).epoch().wrapping_add(1) & 0xffff_ffff;
        self.open_stage(region, epoch, 0, 0);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake_all();
        }
        let mut idle = 0;
        loop {
            let cursor = Cursor(self.cursor.load(Ordering::Acquire));
            if cursor.stage() == CLOSED {
                break;
            }
            if self.claim(cursor, 0) { idle = 0 } else { wait(&mut idle) }
        }
        self.panicked.load(Ordering::Relaxed)
    }

    /// A worker's life.
    fn work(&self, worker: usize) {
        let mut idle = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let cursor = Cursor(self.cursor.load(Ordering::Acquire));
            if self.claim(cursor, worker) {
                idle = 0;
            } else {
                wait(&mut idle);
                if cursor.stage() == CLOSED && idle > SPINS + YIELDS {
                    self.sleep_until_open(cursor);
                    idle = 0;
                }
            }
        }
    }

    /// Takes a piece of the stage that `cursor` shows, if one is left, and does it.
    fn claim(&self, cursor: Cursor, worker: usize) -> bool {
        if cursor.unclaimed() == 0 {
            return false;
        }
        let taken = self.cursor.compare_exchange(cursor.0, cursor.0 - 1, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            // Somebody else was faster: there is still work to look at.
            return true;
        }
        // SAFETY: the claim is held, so the region is open and the cell was written before it was opened.
        let region = unsafe { &*(*self.region.get()).expect("a region is open") };
        let stage = cursor.stage() as usize;
        let pieces = region.pieces(stage);
        self.guarded(region, stage, pieces - cursor.unclaimed() as usize, worker);
        if self.done.fetch_add(1, Ordering::AcqRel) as usize + 1 == pieces {
            self.open_stage(region, cursor.epoch(), stage + 1, worker);
        }
        true
    }

    /// Opens the next stage that has pieces, or closes the region.
    ///
    /// Called by one thread at a time: the leader at the start, then whoever finished the last piece. A stage of one
    /// piece is done on the spot, which saves handing it over.
    fn open_stage(&self, region: &dyn Region, epoch: u64, mut stage: usize, worker: usize) {
        while stage < region.stages() {
            match region.pieces(stage) {
                0 => {}
                1 => self.guarded(region, stage, 0, worker),
                pieces => {
                    self.done.store(0, Ordering::Relaxed);
                    self.cursor.store(Cursor::new(epoch, stage as u64, pieces as u64).0, Ordering::Release);
                    return;
                }
            }
            stage += 1;
        }
        self.cursor.store(Cursor::new(epoch, CLOSED, 0).0, Ordering::Release);
    }

    fn guarded(&self, region: &dyn Region, stage: usize, piece: usize, worker: usize) {
        // After a panic the remaining pieces are only counted, so that the region closes.
        if !self.panicked.load(Ordering::Relaxed)
            && catch_unwind(AssertUnwindSafe(|| region.piece(stage, piece, worker))).is_err()
        {
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    fn sleep_until_open(&self, seen: Cursor) {
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while Cursor(self.cursor.load(Ordering::SeqCst)) == seen && !self.stop.load(Ordering::SeqCst) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_all(&self) {
        // The lock makes sure that a sleeper is either before its check of the cursor or already waiting.
        drop(self.sleep.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }
}

/// Spins for a while, then gives the core away: whoever holds the piece that is waited for may need it.
fn wait(idle: &mut u32) {
    *idle = idle.saturating_add(1);
    if *idle <= SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Threads that this process may use: the smaller of physical cores, affinity and the control group's quota.
pub fn default_threads() -> usize {
    let affinity = std::thread::available_parallelism().map_or(1, usize::from);
    physical_cores().map_or(affinity, |cores| cores.min(affinity)).max(1)
}

/// Distinct (package, core) pairs, where the system tells.
fn physical_cores() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let mut cores = std::collections::BTreeSet::new();
    let mut package = "";
    for line in text.lines() {
        match line.split_once(':') {
            Some((key, value)) if key.trim() == "physical id" => package = value.trim(),
            Some((key, value)) if key.trim() == "core id" => {
                cores.insert((package, value.trim()));
            }
            _ => {}
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every stage adds up what the one before wrote.
    struct Sums {
        pieces: Vec<usize>,
        cells: Vec<Vec<AtomicU64>>,
    }

    impl Sums {
        fn new(pieces: &[usize]) -> Self {
            let cells = pieces.iter().map(|&n| (0..n).map(|_| AtomicU64::new(0)).collect()).collect();
            Self { pieces: pieces.to_vec(), cells }
        }

        fn expected(&self) -> Vec<u64> {
            let mut total = 1;
            self.pieces
                .iter()
                .map(|&n| {
                    let value = total;
                    total = if n == 0 { total } else { value * n as u64 % 1_000_003 };
                    value
                })
                .collect()
        }

        fn check(&self) {
            for (stage, expected) in self.expected().into_iter().enumerate() {
                assert!(self.cells[stage].iter().all(|cell| cell.load(Ordering::Relaxed) == expected), "stage {stage}");
            }
        }
    }

    impl Region for Sums {
        fn stages(&self) -> usize {
            self.pieces.len()
        }
        fn pieces(&self, stage: usize) -> usize {
            self.pieces[stage]
        }
        fn piece(&self, stage: usize, piece: usize, _: usize) {
            let before = (0..stage).rev().find(|&s| self.pieces[s] > 0);
            let value =
                before.map_or(1, |s| self.cells[s].iter().map(|c| c.load(Ordering::Relaxed)).sum::<u64>() % 1_000_003);
            assert_eq!(self.cells[stage][piece].swap(value, Ordering::Relaxed), 0, "piece ran twice");
        }
    }

    #[test]
    fn thousands_of_tiny_regions_run_every_piece_once_and_in_order() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            for round in 0..1_000 {
                let region = Sums::new(&[1, 3, 0, 7, 1, 1, 2 + round % 5]);
                pool.run(&region).unwrap();
                region.check();
            }
        }
    }

    #[test]
    fn a_region_after_a_pause_wakes_the_sleepers() {
        let pool = Pool::new(3).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let region = Sums::new(&[4, 4]);
            pool.run(&region).unwrap();
            region.check();
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_stays_usable() {
        struct Panics;
        impl Region for Panics {
            fn stages(&self) -> usize {
                2
            }
            fn pieces(&self, _: usize) -> usize {
                5
            }
            fn piece(&self, stage: usize, piece: usize, _: usize) {
                assert!(stage != 0 || piece != 3, "a piece that panics on purpose");
            }
        }
        for threads in [1, 4] {
            let pool = Pool::new(threads).unwrap();
            assert!(pool.run(&Panics).is_err());
            let region = Sums::new(&[3, 3]);
            pool.run(&region).unwrap();
            region.check();
        }
    }

    /// A stage whose last piece waits for all others: it ends only where a thread that is held up holds nobody else up.
    struct HeldUp {
        done: Vec<AtomicUsize>,
    }

    impl Region for HeldUp {
        fn stages(&self) -> usize {
            self.done.len()
        }
        fn pieces(&self, _: usize) -> usize {
            9
        }
        fn piece(&self, stage: usize, piece: usize, _: usize) {
            if piece == 0 {
                while self.done[stage].load(Ordering::Acquire) < 8 {
                    std::thread::yield_now();
                }
            }
            self.done[stage].fetch_add(1, Ordering::Release);
        }
    }

    #[test]
    fn a_thread_that_is_held_up_delays_by_its_own_piece() {
        for threads in [2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            for _ in 0..50 {
                let region = HeldUp { done: (0..10).map(|_| AtomicUsize::new(0)).collect() };
                pool.run(&region).unwrap();
                assert!(region.done.iter().all(|done| done.load(Ordering::Relaxed) == 9));
            }
        }
    }

    #[test]
    fn beside_foreign_busy_threads_regions_end() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 * default_threads() {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let pool = Pool::new(default_threads()).unwrap();
            for _ in 0..200 {
                let region = Sums::new(&[4, 1, 6, 3, 4]);
                pool.run(&region).unwrap();
                region.check();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn two_sessions_take_turns() {
        let pool = Pool::new(2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let region = Sums::new(&[2, 5, 1, 3]);
                        pool.run(&region).unwrap();
                        region.check();
                    }
                });
            }
        });
    }
}
