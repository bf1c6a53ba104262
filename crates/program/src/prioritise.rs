//! Priorities: the longest remaining path (BPT-CNN, inner layer; PAPERS.md 2.6).
//!
//! An op's `remaining` is its own estimated time plus the longest `remaining` of those that wait for it. Workers take ready
//! tiles by it, so that critical paths never wait. What other ranks need of a tensor goes before all that is written later: there it
//! is needed now, and ranks that compute first what only they need wait for each other in turns.

use crate::program::{Action, Op, Purpose};

/// Fills in `remaining` of every op.
pub fn prioritise(ops: &mut [Op]) {
    for op in ops.iter_mut() {
        op.remaining = op.seconds;
    }
    let mut longest = 0.0f64;
    for i in (0..ops.len()).rev() {
        if matches!(ops[i].action, Action::Send { tag, .. } if Purpose::of(tag).is_urgent()) {
            ops[i].remaining = ops[i].seconds + longest;
        }
        let path = ops[i].remaining;
        longest = longest.max(path);
        for before in ops[i].after.clone() {
            let op = &mut ops[before.0];
            op.remaining = op.remaining.max(op.seconds + path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, BufferId, OpId};
    use convoy_net::Region;

    /// PAPERS.md 2.6: A(2)→B(3), A→C(1), B→D(2), C→D, E(4) alone: ranks A 7, B 5, E 4, C 3, D 2.
    #[test]
    fn golden_ranks() {
        let op = |seconds: f64, after: &[usize]| Op {
            action: Action::Clear { target: BufferId(0), keep: Region::EMPTY },
            accesses: vec![],
            after: after.iter().map(|&i| OpId(i)).collect(),
            tiles: 1,
            scratch: 0,
            seconds,
            remaining: 0.0,
        };
        let mut ops = vec![op(2.0, &[]), op(3.0, &[0]), op(1.0, &[0]), op(2.0, &[1, 2]), op(4.0, &[])];
        prioritise(&mut ops);
        let remaining: Vec<f64> = ops.iter().map(|o| o.remaining).collect();
        assert_eq!(remaining, [7.0, 5.0, 3.0, 2.0, 4.0]);
    }
}
