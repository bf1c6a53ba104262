//! Priorities: the longest remaining path (BPT-CNN, inner layer; PAPERS.md 2.6).
//!
//! An op's `remaining` is its own estimated time plus the longest `remaining` of those that wait for it. Workers take ready
//! tiles by it, so that critical paths never wait. What other ranks need of a tensor goes before all that is written later: there it
//! is needed now, and ranks that compute first what only they need wait for each other in turns.

use crate::program::{Action, Op, Purpose};

/// Fills in `remaining` of every op.
pub fn prioritise(ops: &mut [Op]) {
    let seconds: Vec<f64> = ops.iter().map(|op| op.seconds).collect();
    let goes_first = |i: usize| matches!(ops[i].action, Action::Send { tag, .. } if Purpose::of(tag).is_urgent());
    let paths = longest_paths(&seconds, |i| ops[i].after.iter().map(|before| before.0), goes_first);
    ops.iter_mut().zip(paths).for_each(|(op, path)| op.remaining = path);
}

/// Of each of some things that take so long, and come after others written before them: its longest remaining path. What goes first
/// is on the path of all that is written later.
pub fn longest_paths<Before: Iterator<Item = usize>>(
    seconds: &[f64],
    after: impl Fn(usize) -> Before,
    goes_first: impl Fn(usize) -> bool,
) -> Vec<f64> {
    let mut paths = seconds.to_vec();
    let mut longest = 0.0f64;
    for i in (0..paths.len()).rev() {
        if goes_first(i) {
            paths[i] = seconds[i] + longest;
        }
        longest = longest.max(paths[i]);
        for before in after(i) {
            paths[before] = paths[before].max(seconds[before] + paths[i]);
        }
    }
    paths
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

    /// Packing what another rank needs comes before what only this one needs, however long that is.
    #[test]
    fn what_others_need_goes_first() {
        // A(2), then packing P(1) and a send S(0.1) of it, then W(5) and X(3), which wait for A.
        let after: [&[usize]; 5] = [&[], &[0], &[1], &[0], &[0]];
        let paths =
            |first: bool| longest_paths(&[2.0, 1.0, 0.1, 5.0, 3.0], |i| after[i].iter().copied(), |i| first && i == 2);
        assert_eq!(paths(false), [7.0, 1.1, 0.1, 5.0, 3.0]);
        assert_eq!(paths(true), [8.1, 6.1, 5.1, 5.0, 3.0]);
    }
}
