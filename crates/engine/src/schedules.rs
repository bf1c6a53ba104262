//! Schedule and pool under many schedules of their threads: `cargo test -p convoy-engine --features shuttle --lib`.
//!
//! The loop of [`crate::run::Run::work`] over ops that only count. A schedule that hangs (a worker that nobody wakes) or fails
//! is printed and can be replayed.

use crate::Order;
use crate::pool::Pool;
use crate::schedule::{Node, Schedule};
use shuttle::check_random;
use shuttle::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

fn node(after: &[usize], tiles: usize) -> Node {
    Node { after: after.to_vec(), tiles, communicates: false, remaining: 0.0 }
}

fn message(after: &[usize]) -> Node {
    Node { communicates: true, ..node(after, 1) }
}

/// Ops that fork and join, one of which waits for a message that comes after some looks.
fn nodes() -> Vec<Node> {
    vec![node(&[], 2), node(&[0], 3), message(&[0]), node(&[1, 2], 2), node(&[2], 1), node(&[3, 4], 1)]
}

/// Runs the ops twice on a pool, and checks that each tile was given out once a step, after all that it waits for.
fn steps(nodes: &[Node], workers: usize, order: Order) {
    let (schedule, pool) = (Schedule::of(nodes, order), Pool::new(workers));
    for _ in 0..2 {
        let given: Vec<Vec<AtomicU32>> =
            nodes.iter().map(|node| (0..node.tiles).map(|_| AtomicU32::new(0)).collect()).collect();
        let done: Vec<AtomicU32> = nodes.iter().map(|_| AtomicU32::new(0)).collect();
        let looks = AtomicUsize::new(0);
        schedule.reset();
        pool.run(&|worker| {
            while !schedule.over() {
                let talked = worker == 0 && {
                    let moved = schedule.talk(|op| {
                        let come = looks.fetch_add(1, SeqCst) >= 2;
                        done[op].fetch_add(come as u32, SeqCst);
                        Ok::<bool, ()>(come)
                    });
                    moved == Ok(true)
                };
                if talked {
                    pool.ring();
                }
                if let Some((op, tile)) = schedule.take() {
                    assert_eq!(given[op][tile].fetch_add(1, SeqCst), 0, "tile {tile} of op {op} is given out twice");
                    let ready = |before: &usize| done[*before].load(SeqCst) == nodes[*before].tiles as u32;
                    assert!(nodes[op].after.iter().all(ready), "op {op} starts too early");
                    done[op].fetch_add(1, SeqCst);
                    if schedule.finish_tile(op) && schedule.complete(op) {
                        pool.ring();
                    }
                } else if worker == 0 {
                    shuttle::thread::yield_now();
                } else {
                    pool.wait(|| schedule.over() || schedule.has_tiles());
                }
            }
            pool.ring();
        });
        assert!(nodes.iter().zip(&done).all(|(node, done)| done.load(SeqCst) == node.tiles as u32));
    }
}

#[test]
fn every_tile_is_given_out_once_and_nobody_sleeps_for_ever() {
    for order in [Order::LongestPath, Order::FirstIn, Order::Random(3)] {
        for workers in [1, 2, 3] {
            check_random(move || steps(&nodes(), workers, order), 300);
        }
    }
}
