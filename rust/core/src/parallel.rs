//! Sharing out a range among the machine's cores, for work that reads a file once.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Results of `work` over consecutive parts of `0..count`, in order; parts hold `grain` items each but the last.
pub(crate) fn map_parts<T: Send>(count: usize, grain: usize, work: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
    map_parts_on(usize::MAX, count, grain, work)
}

/// The same on at most `most` threads.
pub(crate) fn map_parts_on<T: Send>(
    most: usize,
    count: usize,
    grain: usize,
    work: impl Fn(Range<usize>) -> T + Sync,
) -> Vec<T> {
    let parts = count.div_ceil(grain);
    let range = |part: usize| part * grain..((part + 1) * grain).min(count);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(parts).min(most);
    if threads <= 1 {
        return (0..parts).map(|part| work(range(part))).collect();
    }
    let next = AtomicUsize::new(0);
    let run = || {
        let mut results = Vec::new();
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return results;
            }
            results.push((part, work(range(part))));
        }
    };
    let mut results = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut results = run();
        for worker in workers {
            results.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    });
    results.sort_unstable_by_key(|(part, _)| *part);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn parts_cover_the_range_in_order() {
        for count in [0, 1, 7, 8, 9, 1000] {
            let parts = super::map_parts(count, 8, |range| range);
            assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
        }
    }
}
