//! Peaks: what this machine's cores can do at most, and its memory for a while, measured now.
//!
//! A percentage of peak is only worth something against a peak of the same minute: clocks change, machines are shared.

use crate::fast::isa::isa;
use std::sync::Barrier;
use std::time::Instant;

/// Fused multiply-adds of so many threads together, in GFLOP/s: registers only, best of a few short runs.
pub fn fma_peak_gflops(threads: usize) -> f64 {
    // About five milliseconds a run: short enough that some are not interrupted where others work too, and so long that starting
    // the threads weighs nothing.
    let rounds = 2_500_000;
    let runs = rates(threads, 20, &|_| isa().fma_loop(rounds) as f64);
    runs[runs.len() - 1] / 1e9
}

/// Memory that so many threads together read and write while they add one array to another, both far beyond the caches, in
/// GB/s: three bytes moved for each byte of result. The middle of some runs: what lasts while others use the memory too, be they
/// threads of another process that measures the same.
pub fn memory_gbytes(threads: usize) -> f64 {
    const FLOATS: usize = 16 << 20;
    let mut arrays: Vec<[Vec<f32>; 2]> = (0..threads).map(|_| [vec![1.0; FLOATS], vec![2.0; FLOATS]]).collect();
    let arrays: Vec<_> = arrays.iter_mut().map(std::sync::Mutex::new).collect();
    let moved = |thread: usize| {
        let mut arrays = arrays[thread].lock().expect("no thread fails");
        let [into, from] = &mut **arrays;
        isa().add(into, from);
        (3 * FLOATS * size_of::<f32>()) as f64
    };
    let runs = rates(threads, 15, &moved);
    runs[runs.len() / 2] / 1e9
}

/// What some runs of `work` on so many threads at once did per second, the least first; `work` says how much it did.
fn rates(threads: usize, runs: usize, work: &(dyn Fn(usize) -> f64 + Sync)) -> Vec<f64> {
    let run = || {
        let all_here = Barrier::new(threads);
        let (done, start) = std::thread::scope(|scope| {
            let begin = |thread: usize| {
                all_here.wait();
                work(thread)
            };
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || begin(thread))).collect();
            all_here.wait();
            let start = Instant::now();
            let done = work(0);
            (done + others.into_iter().map(|thread| thread.join().expect("no thread fails")).sum::<f64>(), start)
        });
        done / start.elapsed().as_secs_f64()
    };
    let mut rates: Vec<f64> = (0..runs).map(|_| run()).collect();
    rates.sort_by(f64::total_cmp);
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No processor is this slow or this fast.
    #[test]
    fn peaks_are_plausible() {
        assert!((0.01..1e4).contains(&fma_peak_gflops(1)));
        assert!((0.01..1e4).contains(&memory_gbytes(1)));
    }
}
