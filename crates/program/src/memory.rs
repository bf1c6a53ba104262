//! The memory plan: which bytes each buffer of a step has, and when.
//!
//! Buffers whose uses do not overlap in the written order share bytes. So that this is safe in *every* legal schedule, and not
//! only in that order, the first ops that touch the later buffer are made to wait for the last ops that touch the earlier one.
//!
//! Always true
//! - Two buffers that share bytes are never in use at the same time, whatever the schedule ([`MemoryPlan::verify`]).
//! - The peak is a number: `step_bytes`.

use crate::program::{Bits, Home, OpId, Program, What};
use std::collections::{BTreeMap, HashMap};

/// Where each buffer of a step lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Per buffer, the offset of its first byte; kept buffers have none.
    pub offsets: Vec<Option<usize>>,
    /// Bytes of all buffers of a step together.
    pub step_bytes: usize,
}

/// Buffers start on cache lines.
const ALIGN: usize = 64;

/// The ops that touch a buffer: first and last in the written order, and all as bits.
struct Use {
    first: usize,
    last: usize,
    ops: Vec<usize>,
}

impl MemoryPlan {
    /// Lays out the buffers of a step and adds to the ops the dependencies that make sharing safe. Buffers in `to_the_end`
    /// keep their bytes until the step is over.
    pub fn make(program: &mut Program, to_the_end: &[usize]) {
        let uses = uses(program);
        let (memory, placed) = MemoryPlan::lay_out(program, &uses, to_the_end);
        order_sharers(program, &uses, &placed);
        program.memory = memory;
    }

    /// The same, for whoever only wants to know how much it is.
    pub(crate) fn of(program: &Program, to_the_end: &[usize]) -> MemoryPlan {
        MemoryPlan::lay_out(program, &uses(program), to_the_end).0
    }

    /// The plan, and by offset where buffers begin and end.
    fn lay_out(program: &Program, uses: &[Use], to_the_end: &[usize]) -> (MemoryPlan, Vec<(usize, usize, usize)>) {
        let mut offsets: Vec<Option<usize>> = vec![None; program.buffers.len()];
        let in_step = |b: usize| program.buffers[b].home == Home::Step && !uses[b].ops.is_empty();
        let size = |b: usize| program.buffers[b].bytes.next_multiple_of(ALIGN);
        let spans = spans(program, uses);
        let last = |b: usize| if to_the_end.contains(&b) { usize::MAX } else { spans[b].1 };
        // Large buffers first, each at the lowest place that is free while it is used.
        let mut order: Vec<usize> = (0..program.buffers.len()).filter(|&b| in_step(b)).collect();
        order.sort_by_key(|&b| (std::cmp::Reverse(size(b)), uses[b].first, b));
        let mut placed: Vec<(usize, usize, usize)> = vec![];
        let mut step_bytes = 0;
        for b in order {
            // Placed buffers in use at the same time, by offset.
            let mut offset = 0;
            for &(start, end, other) in &placed {
                let together = spans[b].0 <= last(other) && spans[other].0 <= last(b);
                if together {
                    if start >= offset + size(b) {
                        break;
                    }
                    offset = offset.max(end);
                }
            }
            offsets[b] = Some(offset);
            step_bytes = step_bytes.max(offset + size(b));
            let entry = (offset, offset + size(b), b);
            placed.insert(placed.partition_point(|p| *p < entry), entry);
        }
        (MemoryPlan { offsets, step_bytes }, placed)
    }

    /// Checks that buffers which share bytes are never in use at the same time. Before memory is planned there is nothing to
    /// check.
    pub fn verify(&self, program: &Program) -> Result<(), String> {
        if self.offsets.is_empty() {
            return Ok(());
        }
        let uses = uses(program);
        let ancestors = program.ancestors();
        let range = |b: usize| self.offsets[b].map(|o| o..o + program.buffers[b].bytes);
        for b in 0..program.buffers.len() {
            let Some(bytes) = range(b) else {
                if program.buffers[b].home == Home::Step && !uses[b].ops.is_empty() {
                    return Err(format!("{:?} has no memory", program.buffers[b].what));
                }
                continue;
            };
            if bytes.end > self.step_bytes {
                return Err(format!("{:?} ends at byte {} of {}", program.buffers[b].what, bytes.end, self.step_bytes));
            }
            for a in 0..b {
                let Some(other) = range(a) else { continue };
                if other.start >= bytes.end || bytes.start >= other.end {
                    continue;
                }
                let before = |x: usize, y: usize| {
                    uses[y].ops.iter().all(|&j| uses[x].ops.iter().all(|&i| i != j && ancestors[j].get(i)))
                };
                if !before(a, b) && !before(b, a) {
                    let (a, b) = (program.buffers[a].what, program.buffers[b].what);
                    return Err(format!("{a:?} and {b:?} share bytes and may be in use together"));
                }
            }
        }
        Ok(())
    }
}

/// By buffer: the ops between which its bytes are its own. Longer than it is used for messages: those that leave have theirs from
/// when they could be filled, those that arrive until what waited for them is done. Otherwise ops that have nothing to do with a
/// message would be made to wait for it, or it for them, by sharing bytes.
fn spans(program: &Program, uses: &[Use]) -> Vec<(usize, usize)> {
    let mut spans: Vec<(usize, usize)> = uses.iter().map(|u| (u.first, u.last)).collect();
    let messages = (0..program.buffers.len()).filter(|&b| program.buffers[b].what == What::Message);
    let mut read_by: HashMap<usize, usize> = HashMap::new();
    for b in messages.filter(|&b| !uses[b].ops.is_empty()) {
        let filling = &program.ops[uses[b].first];
        if !filling.communicates() {
            spans[b].0 = filling.after.iter().map(|before| before.0 + 1).max().unwrap_or(0);
        }
        read_by.insert(uses[b].last, b);
    }
    for (i, op) in program.ops.iter().enumerate() {
        for message in op.after.iter().filter_map(|before| read_by.get(&before.0)) {
            spans[*message].1 = spans[*message].1.max(i);
        }
    }
    spans
}

fn uses(program: &Program) -> Vec<Use> {
    let mut uses: Vec<Use> = program.buffers.iter().map(|_| Use { first: usize::MAX, last: 0, ops: vec![] }).collect();
    for (i, op) in program.ops.iter().enumerate() {
        for access in &op.accesses {
            let u = &mut uses[access.buffer.0];
            u.first = u.first.min(i);
            u.last = i;
            if u.ops.last() != Some(&i) {
                u.ops.push(i);
            }
        }
    }
    uses
}

/// By buffer: those that had some of its bytes last before it. Bytes of theirs that were others' before are none of its business:
/// whoever takes bytes over waits for those who had them.
fn takes_over(uses: &[Use], placed: &[(usize, usize, usize)]) -> Vec<Vec<usize>> {
    let mut order: Vec<&(usize, usize, usize)> = placed.iter().filter(|(start, end, _)| start < end).collect();
    order.sort_by_key(|(_, _, b)| uses[*b].first);
    let mut before: Vec<Vec<usize>> = vec![vec![]; uses.len()];
    // By first byte: the end of a piece, and who had it last.
    let mut owners: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for &&(start, end, b) in &order {
        let reaches = owners.range(..start).next_back().filter(|(_, (end, _))| *end > start).map(|(at, _)| *at);
        let within: Vec<usize> = reaches.into_iter().chain(owners.range(start..end).map(|(at, _)| *at)).collect();
        for at in within {
            let (until, owner) = owners.remove(&at).expect("bug: a piece that is not there");
            before[b].push(owner);
            if at < start {
                owners.insert(at, (start, owner));
            }
            if until > end {
                owners.insert(end, (until, owner));
            }
        }
        owners.insert(start, (end, b));
        before[b].sort_unstable();
        before[b].dedup();
    }
    before
}

/// Makes the first ops that touch a buffer wait for the last ones of every earlier buffer with bytes in common.
fn order_sharers(program: &mut Program, uses: &[Use], placed: &[(usize, usize, usize)]) {
    let count = program.ops.len();
    let earlier = takes_over(uses, placed);
    let mut ancestors: Vec<Bits> = Vec::with_capacity(count);
    for i in 0..count {
        let mut bits = Bits::new(count);
        for before in &program.ops[i].after {
            bits.union(&ancestors[before.0]);
            bits.set(before.0);
        }
        let mut buffers: Vec<usize> = program.ops[i].accesses.iter().map(|a| a.buffer.0).collect();
        buffers.sort_unstable();
        buffers.dedup();
        for b in buffers {
            // An op that comes after another user of the buffer inherits that one's waiting.
            if earlier[b].is_empty() || uses[b].ops.iter().take_while(|&&user| user < i).any(|&user| bits.get(user)) {
                continue;
            }
            // Later users first: what they wait for need not be named again.
            let mut users: Vec<usize> = earlier[b].iter().flat_map(|&a| uses[a].ops.iter().copied()).collect();
            users.sort_unstable();
            users.dedup();
            for user in users.into_iter().rev() {
                if user < i && !bits.get(user) {
                    program.ops[i].after.push(OpId(user));
                    bits.union(&ancestors[user]);
                    bits.set(user);
                }
            }
        }
        program.ops[i].after.sort();
        ancestors.push(bits);
    }
}
