//! Dependencies: from the order in which ops were written down, and from what they touch.
//!
//! Written one after the other, ops are right. An op must wait for an earlier one only where both touch the same elements and
//! one of them writes; everything else may run side by side. So a tile that reads owned rows never waits for a halo.

use crate::program::{Bits, Op, OpId};

/// Fills in `after` of every op, leaving out what already follows from other dependencies.
pub fn depend(ops: &mut [Op], buffers: usize) {
    let mut users: Vec<Vec<(usize, crate::Access)>> = vec![vec![]; buffers];
    let mut ancestors: Vec<Bits> = Vec::with_capacity(ops.len());
    let count = ops.len();
    for (i, op) in ops.iter_mut().enumerate() {
        let mut bits = Bits::new(count);
        let mut after = vec![];
        // Later users first: what they wait for need not be named again.
        let mut conflicts: Vec<usize> = vec![];
        for access in &op.accesses {
            for (j, other) in &users[access.buffer.0] {
                if (access.writes || other.writes) && !access.region.intersect(&other.region).is_empty() {
                    conflicts.push(*j);
                }
            }
        }
        conflicts.sort_unstable();
        conflicts.dedup();
        for j in conflicts.into_iter().rev() {
            if !bits.get(j) {
                after.push(OpId(j));
                bits.union(&ancestors[j]);
                bits.set(j);
            }
        }
        after.sort();
        for access in &op.accesses {
            users[access.buffer.0].push((i, *access));
        }
        op.after = after;
        ancestors.push(bits);
    }
}
