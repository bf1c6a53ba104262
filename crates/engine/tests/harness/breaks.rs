//! Ways to break a program on purpose: a law that does not notice is none.

use convoy_program::{Action, BufferId, Number, Program, Purpose, What};
use convoy_split::Rank;

/// Rows that travel as a halo are taken one row too far inside.
pub fn shift_halos(program: &mut Program) {
    let stored = |b: BufferId| program.buffers[b.0].layout.as_ref().unwrap().stored;
    let mut moved = vec![];
    for (i, op) in program.ops.iter().enumerate() {
        if let Action::Copy { source, target, region, add: false, .. } = &op.action
            && program.buffers[target.0].what == What::Message
        {
            let fits = |by: &isize| stored(*source).contains(&region.shifted([0, 0, 0, *by, 0]));
            if let Some(by) = [-1, 1].into_iter().find(fits) {
                moved.push((i, region.shifted([0, 0, 0, by, 0]), [0, 0, 0, -by, 0]));
            }
        }
    }
    assert!(!moved.is_empty());
    for (i, new_region, new_shift) in moved {
        if let Action::Copy { region, shift, .. } = &mut program.ops[i].action {
            (*region, *shift) = (new_region, new_shift);
        }
    }
}

/// Sums over ranks of one kind of number keep only this rank's part.
pub fn drop_sums(program: &mut Program, kind: Number) {
    let me = program.rank.0;
    for op in &mut program.ops {
        if let Action::Combine { parts, number, .. } = &mut op.action
            && *number == kind
        {
            let own = parts[me].clone();
            parts.iter_mut().for_each(|p| *p = None);
            parts[me] = own;
        }
    }
}

/// Two ranks stand in each other's place in every sum.
pub fn swap_ranks(program: &mut Program) {
    for op in &mut program.ops {
        if let Action::Combine { parts, .. } = &mut op.action {
            parts.swap(0, 3);
        }
    }
}

/// What a rank between two others gets from them as a halo, each in the other's place.
pub fn swap_neighbours(program: &mut Program) {
    let mut swapped = 0;
    for i in 0..program.ops.len() {
        for j in i + 1..program.ops.len() {
            let (before, after) = program.ops.split_at_mut(j);
            let (
                Action::Receive { into: one, from, tag },
                Action::Receive { into: other, from: other_from, tag: other_tag },
            ) = (&mut before[i].action, &mut after[0].action)
            else {
                continue;
            };
            // Of one exchange, which has all of its tags but a transfer's number in common.
            let alike = *tag >> 20 == *other_tag >> 20 && one.bytes.len() == other.bytes.len();
            if alike && Purpose::of(*tag) == Purpose::Halo && from < other_from {
                std::mem::swap(from, other_from);
                std::mem::swap(tag, other_tag);
                swapped += 1;
            }
        }
    }
    assert!(swapped > 0 || program.rank != Rank(1), "nothing to swap");
}
