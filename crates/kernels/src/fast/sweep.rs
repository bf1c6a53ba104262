//! The one matrix kernel. Convolutions, their gradients and fully connected layers are all sweeps:
//!
//! ```text
//! C[r][0..16] = start + sum over steps s, over k < s.len, of A[r][s.a + k * ak] * B[s.b + k * bk + 0..16]
//! ```
//!
//! for rows r given by offsets into A and C. Rows need not be evenly spaced, so a register tile may run over the end of an
//! image row or of an image; a step is one run of k, contiguous or evenly strided. Several blocks of 16 columns may be taken
//! at once: vectors of 16 floats need them, for one number of A then serves as many multiply-adds as registers hold sums.
//!
//! Always true
//! - Each element of C is one chain of fused multiply-adds in the order of (step, k): its bits do not depend on how rows and
//!   blocks are cut into tiles or steps into calls, nor on the vector width.

use super::simd::Simd;
use crate::BLOCK;
use std::mem::MaybeUninit;
use std::ops::Range;

/// One run of k: where it begins in A (from a row's own offset) and in B, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub a: isize,
    pub b: isize,
    pub len: usize,
}

/// What the sums are added to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    Zero,
    /// What C holds.
    Held,
    /// The same 16 numbers in every row: those of each block follow each other.
    Line(*const f32),
}

/// One call of the matrix kernel.
#[derive(Clone, Copy)]
pub struct Sweep<'s> {
    pub a: *const f32,
    pub a_off: &'s [u32],
    pub b: *const f32,
    pub steps: &'s [Step],
    /// Distances in A and B between consecutive k.
    pub ak: usize,
    pub bk: usize,
    pub c: *mut f32,
    pub c_off: &'s [u32],
    /// Blocks of 16 columns, and how far apart they are in B and in C. More than one are not narrow.
    pub blocks: usize,
    pub b_block: usize,
    pub c_block: usize,
    pub start: Start,
    /// Results below the first number become it, results above the second that: only where the sums are complete.
    pub clamp: Option<[f32; 2]>,
    /// At most the first half of the lanes of B is not filler: the others of C become zero, or stay what they are if it is held.
    pub narrow: bool,
    /// C is written past the caches; every row begins at a multiple of 64 bytes then.
    pub stream: bool,
}

/// The forms of the kernel: `ak` is 1 and `bk` 16; any distances.
pub const UNIT: u8 = 0;
pub const STRIDED: u8 = 1;

impl Sweep<'_> {
    /// Floats of A, B and C that are touched, relative to `a`, `b` and `c`: for assertions.
    pub fn reach(&self) -> [Range<isize>; 3] {
        let hull = |ranges: &mut dyn Iterator<Item = Range<isize>>| {
            ranges.fold(0..0, |all, r| if all.is_empty() { r } else { all.start.min(r.start)..all.end.max(r.end) })
        };
        let run = |from: isize, len: usize, distance: usize, width: usize| {
            from..from + (len.max(1) - 1) as isize * distance as isize + width as isize
        };
        let rows = hull(&mut self.a_off.iter().map(|&o| o as isize..o as isize + 1));
        let a = hull(&mut self.steps.iter().map(|s| run(s.a, s.len, self.ak, 1)));
        let further = |distance: usize| self.blocks.saturating_sub(1) * distance;
        let b = hull(&mut self.steps.iter().map(|s| run(s.b, s.len, self.bk, BLOCK + further(self.b_block))));
        let c = hull(&mut self.c_off.iter().map(|&o| run(o as isize, 1, 0, BLOCK + further(self.c_block))));
        let a = if rows.is_empty() || a.is_empty() { 0..0 } else { rows.start + a.start..rows.end - 1 + a.end };
        [a, b, c]
    }

    /// The same without the first blocks.
    fn without(&self, blocks: usize) -> Self {
        let start = match self.start {
            Start::Line(line) => Start::Line(line.wrapping_add(blocks * BLOCK)),
            start => start,
        };
        Sweep {
            b: self.b.wrapping_add(blocks * self.b_block),
            c: self.c.wrapping_add(blocks * self.c_block),
            blocks: self.blocks - blocks,
            start,
            ..*self
        }
    }

    /// In debug builds: all that is touched is inside so many floats from `a`, `b` and `c` on.
    #[inline]
    pub fn assert_inside(&self, a: usize, b: usize, c: usize) {
        if cfg!(debug_assertions) {
            assert!(self.blocks == 1 || !self.narrow, "bug: several blocks of another form");
            let apart = self.blocks == 1 || self.c_block.is_multiple_of(BLOCK);
            let aligned = |o: &u32| apart && self.c.wrapping_add(*o as usize).addr().is_multiple_of(4 * BLOCK);
            assert!(!self.stream || self.c_off.iter().all(aligned), "bug: parts of lines are streamed");
            for (range, len) in self.reach().into_iter().zip([a, b, c]) {
                assert!(range.start >= 0 && range.end <= len as isize, "bug: a sweep touches {range:?} of {len}");
            }
        }
    }
}

/// Sums of a register tile: by row, block and vector.
type Sums<V, const MR: usize, const NB: usize, const NV: usize> = [[[V; NV]; NB]; MR];

/// Adds products over `steps` to the sums of a register tile whose rows begin at `a`; the next tile's are `ahead`.
#[inline(always)]
unsafe fn accumulate<S: Simd, const MR: usize, const NB: usize, const NV: usize, const FORM: u8>(
    s: &Sweep,
    steps: &[Step],
    a: &[*const f32; MR],
    ahead: isize,
    sums: &mut Sums<S::V, MR, NB, NV>,
) {
    // SAFETY: the caller promises that all of `s.reach()` may be touched.
    unsafe {
        let (ak, bk) = if FORM == UNIT { (1, BLOCK) } else { (s.ak as isize, s.bk) };
        for (number, step) in steps.iter().enumerate() {
            let mut at = step.a;
            let mut b = s.b.offset(step.b);
            macro_rules! one {
                ($j:expr) => {{
                    let mut lines = [[S::zero(); NV]; NB];
                    for (i, line) in lines.iter_mut().enumerate() {
                        for (v, part) in line.iter_mut().enumerate() {
                            *part = S::load(b.add(i * s.b_block + $j * bk + v * S::LANES));
                        }
                    }
                    for m in 0..MR {
                        let x = a[m].offset(at + $j as isize * ak);
                        for i in 0..NB {
                            for v in 0..NV {
                                sums[m][i][v] = S::fma(S::splat(*x), lines[i][v], sums[m][i][v]);
                            }
                        }
                    }
                }};
            }
            if FORM == UNIT {
                for row in a.iter().filter(|_| step.len >= BLOCK) {
                    S::prefetch(row.wrapping_offset(at + ahead + step.len as isize - 1));
                }
                for _ in 0..step.len / 4 {
                    one!(0);
                    one!(1);
                    one!(2);
                    one!(3);
                    at += 4;
                    b = b.add(4 * BLOCK);
                }
                for _ in 0..step.len % 4 {
                    one!(0);
                    at += 1;
                    b = b.add(BLOCK);
                }
            } else if NB > 1 && steps.len() > 1 {
                // Lines of several blocks come from the second-level cache: those of the next step now, and of the next tile's
                // first step with the last. The last row is the first to reach a new line of A.
                let (next, ahead) = steps.get(number + 1).map_or((&steps[0], ahead), |next| (next, 0));
                let mut next_a = a[MR - 1].wrapping_offset(next.a + ahead);
                let mut next_b = s.b.wrapping_offset(next.b);
                for _ in 0..step.len {
                    S::prefetch(next_a);
                    for i in 0..NB {
                        S::prefetch(next_b.wrapping_add(i * s.b_block));
                    }
                    one!(0);
                    (at, next_a) = (at + ak, next_a.wrapping_offset(ak));
                    (b, next_b) = (b.wrapping_add(bk), next_b.wrapping_add(bk));
                }
            } else {
                for _ in 0..step.len {
                    one!(0);
                    at += ak;
                    b = b.wrapping_add(bk);
                }
            }
        }
    }
}

/// One register tile: `MR` rows by the first `NB` blocks by `NV` vectors, which are 16 floats, or 8 of a narrow sweep.
#[inline(always)]
unsafe fn tile<S: Simd, const MR: usize, const NB: usize, const NV: usize, const FORM: u8>(s: &Sweep, r: usize) {
    // SAFETY: the caller promises that rows `r..r + MR` and the blocks exist and that all of `s.reach()` may be touched.
    unsafe {
        let a_off = |m: usize| *s.a_off.get_unchecked(r + m) as usize;
        let c = |m: usize, i: usize, v: usize| {
            s.c.add(*s.c_off.get_unchecked(r + m) as usize + i * s.c_block + v * S::LANES)
        };
        let mut a = [s.a; MR];
        for (m, a) in a.iter_mut().enumerate() {
            *a = s.a.add(a_off(m));
        }
        let mut sums = [[[S::zero(); NV]; NB]; MR];
        match s.start {
            Start::Zero => {}
            Start::Held => {
                for (m, row) in sums.iter_mut().enumerate() {
                    for (i, line) in row.iter_mut().enumerate() {
                        for (v, sum) in line.iter_mut().enumerate() {
                            *sum = S::load(c(m, i, v));
                        }
                    }
                }
            }
            Start::Line(line) => {
                for row in &mut sums {
                    for (i, part) in row.iter_mut().enumerate() {
                        for (v, sum) in part.iter_mut().enumerate() {
                            *sum = S::load(line.add(i * BLOCK + v * S::LANES));
                        }
                    }
                }
            }
        }
        // The next tile's lines of C now, its lines of A step by step: forward of resnet50 went from 77 to 83 % of peak.
        let next = (r + MR).min(s.a_off.len() - MR);
        for m in (0..MR).filter(|_| !s.stream) {
            for i in 0..NB {
                S::prefetch(s.c.add(*s.c_off.get_unchecked(next + m) as usize + i * s.c_block));
            }
        }
        let ahead = *s.a_off.get_unchecked(next) as isize - a_off(0) as isize;
        accumulate::<S, MR, NB, NV, FORM>(s, s.steps, &a, ahead, &mut sums);
        if let Some([low, high]) = s.clamp {
            for sum in sums.as_flattened_mut().as_flattened_mut() {
                *sum = S::clamp(*sum, low, high);
            }
        }
        for (m, row) in sums.iter().enumerate() {
            for (i, line) in row.iter().enumerate() {
                for (v, sum) in line.iter().enumerate() {
                    if s.stream {
                        S::stream(c(m, i, v), *sum);
                    } else {
                        S::store(c(m, i, v), *sum);
                    }
                }
                for v in (NV..BLOCK / S::LANES).filter(|_| s.start != Start::Held) {
                    S::store(c(m, i, v), S::zero());
                }
            }
        }
    }
}

/// All blocks, as many at a time as the instruction set's registers hold sums of.
///
/// # Safety
/// The instruction set is there; all of `s.reach()` may be read, and that of C written by nobody else.
#[inline(always)]
pub unsafe fn blocks<S: Simd, const NV: usize, const FORM: u8>(s: &Sweep) {
    let mut rest = *s;
    while rest.blocks > 0 {
        let together = rest.blocks.min(S::BLOCKS);
        // SAFETY: these blocks exist; the rest is the caller's promise.
        unsafe {
            match together {
                4 => rows::<S, 4, NV, FORM>(&rest),
                3 => rows::<S, 3, NV, FORM>(&rest),
                2 => rows::<S, 2, NV, FORM>(&rest),
                _ if NV == 1 => tall_rows::<S, NV, FORM>(&rest),
                _ => rows::<S, 1, NV, FORM>(&rest),
            }
        }
        rest = rest.without(together);
    }
}

/// All rows of the first blocks, in tiles of six. Below four rows a tile is bound by the latency of its few sums, so a short remainder
/// is evened out with the last full tile.
///
/// # Safety
/// As for [`blocks`].
#[inline(always)]
unsafe fn rows<S: Simd, const NB: usize, const NV: usize, const FORM: u8>(s: &Sweep) {
    debug_assert!(NV * S::LANES == BLOCK && !s.narrow && s.a_off.len() == s.c_off.len());
    let n = s.a_off.len();
    let mut r = 0;
    while r < n {
        let left = n - r;
        let m = match left {
            7 | 8 => 4,
            9 => 5,
            _ => left.min(6),
        };
        // SAFETY: rows r..r + m exist; the rest is the caller's promise.
        unsafe {
            match m {
                6 => tile::<S, 6, NB, NV, FORM>(s, r),
                5 => tile::<S, 5, NB, NV, FORM>(s, r),
                4 => tile::<S, 4, NB, NV, FORM>(s, r),
                3 => tile::<S, 3, NB, NV, FORM>(s, r),
                2 => tile::<S, 2, NB, NV, FORM>(s, r),
                _ => tile::<S, 1, NB, NV, FORM>(s, r),
            }
        }
        r += m;
    }
}

/// The same of one block whose rows have one vector, or the few of a narrow sweep, in tiles of eight: as many sums as hide the
/// latency, in as many registers as hold their rows.
///
/// # Safety
/// As for [`blocks`].
#[inline(always)]
pub unsafe fn tall_rows<S: Simd, const NV: usize, const FORM: u8>(s: &Sweep) {
    debug_assert!(s.blocks == 1 && s.a_off.len() == s.c_off.len());
    debug_assert!(match NV * S::LANES == BLOCK {
        true => !s.narrow,
        false => 2 * NV * S::LANES == BLOCK && s.narrow && !s.stream,
    });
    let n = s.a_off.len();
    let mut r = 0;
    while r < n {
        let m = match n - r {
            9..=11 => 6,
            5 | 7 => 4,
            3 => 2,
            left => left.min(8),
        };
        // SAFETY: rows r..r + m exist; the rest is the caller's promise.
        unsafe {
            match m {
                8 => tile::<S, 8, 1, NV, FORM>(s, r),
                6 => tile::<S, 6, 1, NV, FORM>(s, r),
                4 => tile::<S, 4, 1, NV, FORM>(s, r),
                2 => tile::<S, 2, 1, NV, FORM>(s, r),
                _ => tile::<S, 1, 1, NV, FORM>(s, r),
            }
        }
        r += m;
    }
}

/// A leaf of a folded sweep: its steps, and how many of the sums before it are added to its own (`fold::order`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub steps: Range<usize>,
    pub adds: usize,
}

/// Sums that a folded tile holds at most: more than the levels of any tree.
pub const LEVELS: usize = 32;

/// Whether leaves are single points, in whole subtrees of four: those are added without asking the tree, for between so few
/// products asking weighs more than adding.
fn quads(s: &Sweep, leaves: &[Leaf]) -> bool {
    let single = |leaf: &Leaf| s.steps[leaf.steps.clone()].iter().map(|step| step.len).eq([1]);
    let whole = |q: &[Leaf; 4]| [q[0].adds, q[1].adds, q[2].adds] == [0, 1, 0] && q[3].adds >= 2;
    let (quads, rest) = leaves.as_chunks();
    rest.is_empty() && quads.iter().all(whole) && leaves.iter().all(single)
}

/// A leaf's sums of a register tile whose rows begin at `a`; in quads ([`quads`]) the leaf is one point.
#[inline(always)]
unsafe fn leaf_sums<S: Simd, const MR: usize, const NB: usize, const NV: usize, const QUADS: bool>(
    s: &Sweep,
    leaf: &Leaf,
    a: &[*const f32; MR],
) -> Sums<S::V, MR, NB, NV> {
    // SAFETY: the caller promises that the leaf's steps exist and that all of `s.reach()` may be touched.
    unsafe {
        let mut sums = [[[S::zero(); NV]; NB]; MR];
        if QUADS {
            let step = s.steps.get_unchecked(leaf.steps.start);
            let mut lines = [[S::zero(); NV]; NB];
            for (i, line) in lines.iter_mut().enumerate() {
                for (v, part) in line.iter_mut().enumerate() {
                    *part = S::load(s.b.offset(step.b).add(i * s.b_block + v * S::LANES));
                }
            }
            for (a, row) in a.iter().zip(&mut sums) {
                let x = S::splat(*a.offset(step.a));
                for (sum, line) in row.as_flattened_mut().iter_mut().zip(lines.as_flattened()) {
                    *sum = S::fma(x, *line, S::zero());
                }
            }
        } else {
            accumulate::<S, MR, NB, NV, STRIDED>(s, s.steps.get_unchecked(leaf.steps.clone()), a, 0, &mut sums);
        }
        sums
    }
}

/// The sums of two subtrees, added.
#[inline(always)]
unsafe fn added<S: Simd, const MR: usize, const NB: usize, const NV: usize>(
    left: Sums<S::V, MR, NB, NV>,
    mut right: Sums<S::V, MR, NB, NV>,
) -> Sums<S::V, MR, NB, NV> {
    for (left, right) in left.as_flattened().as_flattened().iter().zip(right.as_flattened_mut().as_flattened_mut()) {
        // SAFETY: the caller's instruction set.
        *right = unsafe { S::add(*left, *right) };
    }
    right
}

/// One register tile of a folded sweep: leaves are summed one after the other and added as the tree says, all in registers and
/// the first-level cache.
#[inline(always)]
unsafe fn folded_tile<S: Simd, const MR: usize, const NB: usize, const NV: usize, const QUADS: bool>(
    s: &Sweep,
    leaves: &[Leaf],
    r: usize,
) {
    // SAFETY: the caller promises that rows `r..r + MR` and the blocks exist, that all of `s.reach()` may be touched, and that leaves
    // are in order.
    unsafe {
        let mut a = [s.a; MR];
        for (m, a) in a.iter_mut().enumerate() {
            *a = s.a.add(*s.a_off.get_unchecked(r + m) as usize);
        }
        let mut held = [MaybeUninit::<Sums<S::V, MR, NB, NV>>::uninit(); LEVELS];
        let mut level = 0;
        let mut sums = [[[S::zero(); NV]; NB]; MR];
        for some in leaves.chunks_exact(if QUADS { 4 } else { 1 }) {
            let adds;
            (sums, adds) = match some {
                [one, two, three, four] => {
                    let first = added::<S, _, _, _>(
                        leaf_sums::<S, _, _, _, QUADS>(s, one, &a),
                        leaf_sums::<S, _, _, _, QUADS>(s, two, &a),
                    );
                    let second = added::<S, _, _, _>(
                        leaf_sums::<S, _, _, _, QUADS>(s, three, &a),
                        leaf_sums::<S, _, _, _, QUADS>(s, four, &a),
                    );
                    (added::<S, _, _, _>(first, second), four.adds - 2)
                }
                _ => (leaf_sums::<S, _, _, _, QUADS>(s, &some[0], &a), some[0].adds),
            };
            for _ in 0..adds {
                level -= 1;
                sums = added::<S, _, _, _>(held[level].assume_init(), sums);
            }
            held[level].write(sums);
            level += 1;
        }
        for (m, row) in sums.iter().enumerate() {
            for (i, line) in row.iter().enumerate() {
                for (v, sum) in line.iter().enumerate() {
                    let c = *s.c_off.get_unchecked(r + m) as usize + i * s.c_block + v * S::LANES;
                    if s.stream {
                        S::stream(s.c.add(c), *sum);
                    } else {
                        S::store(s.c.add(c), *sum);
                    }
                }
            }
        }
    }
}

/// All blocks of a sweep that starts from zero, its steps leaf by leaf, folded.
///
/// # Safety
/// As for [`blocks`]; leaves are as `fold::order` gives them.
#[inline(always)]
pub unsafe fn folded<S: Simd, const NV: usize>(s: &Sweep, leaves: &[Leaf]) {
    debug_assert!(NV * S::LANES == BLOCK && s.a_off.len() == s.c_off.len());
    let quads = quads(s, leaves);
    let mut rest = *s;
    while rest.blocks > 0 {
        let together = if S::BLOCKS >= 4 && rest.blocks >= 4 { 4 } else { 1 };
        // SAFETY: these blocks exist; the rest is the caller's promise.
        unsafe {
            match (together, quads) {
                (4, true) => folded_rows::<S, 4, NV, true>(&rest, leaves),
                (4, false) => folded_rows::<S, 4, NV, false>(&rest, leaves),
                (_, true) => folded_rows::<S, 1, NV, true>(&rest, leaves),
                (_, false) => folded_rows::<S, 1, NV, false>(&rest, leaves),
            }
        }
        rest = rest.without(together);
    }
}

/// All rows of the first blocks.
///
/// # Safety
/// As for [`folded`].
#[inline(always)]
unsafe fn folded_rows<S: Simd, const NB: usize, const NV: usize, const QUADS: bool>(s: &Sweep, leaves: &[Leaf]) {
    let n = s.a_off.len();
    let mut r = 0;
    while r < n {
        let m = match n - r {
            // Sums of four leaves of two rows at once: as many as registers hold.
            left if QUADS => left.min(2),
            3 => 2,
            5 | 7 | 8 => 4,
            left => left.min(6),
        };
        // SAFETY: these rows exist; the rest is the caller's promise.
        unsafe {
            match m {
                6 => folded_tile::<S, 6, NB, NV, false>(s, leaves, r),
                4 => folded_tile::<S, 4, NB, NV, false>(s, leaves, r),
                2 => folded_tile::<S, 2, NB, NV, QUADS>(s, leaves, r),
                _ => folded_tile::<S, 1, NB, NV, QUADS>(s, leaves, r),
            }
        }
        r += m;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast::fold;
    use crate::fast::isa::{Set, at_most, isa};

    /// Leaves folded in registers have the bits of sweeps of one leaf each, added by the tree: of one point or of several, in whole
    /// subtrees or with leaves left out.
    #[test]
    fn folded_sweeps_are_sweeps_that_are_added() {
        const POINTS: usize = 40;
        const ROWS: usize = 9;
        const BLOCKS: usize = 5;
        let number = |i: usize| 1.0 / (1.0 + (i * 7919 % 1013) as f32);
        let a: Vec<f32> = (0..POINTS * BLOCK).map(number).collect();
        let b: Vec<f32> = (0..BLOCKS * POINTS * BLOCK).map(|i| number(i + 5)).collect();
        let a_off: Vec<u32> = (0..ROWS as u32).collect();
        let c_off: Vec<u32> = (0..ROWS as u32).map(|r| r * BLOCK as u32).collect();
        for (leaves, mask) in [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (8, 0), (8, 4), (8, 0b1111), (16, 0)] {
            for len in [1, 2] {
                let steps: Vec<Step> = (0..leaves)
                    .map(|l| Step { a: (l * len * BLOCK) as isize, b: (l * len * BLOCK) as isize, len })
                    .collect();
                let empty = |l: usize| mask >> l & 1 == 1;
                let order = fold::order(0..leaves, &empty);
                let order: Vec<Leaf> = order.into_iter().map(|(l, adds)| Leaf { steps: l..l + 1, adds }).collect();
                for set in [Set::Portable, Set::Together, Set::Avx2, Set::Avx512] {
                    at_most(set, || {
                        let sweep = |steps: &[Step], order: Option<&[Leaf]>, c: &mut [f32]| {
                            let sweep = Sweep {
                                a: a.as_ptr(),
                                a_off: &a_off,
                                b: b.as_ptr(),
                                steps,
                                ak: BLOCK,
                                bk: BLOCK,
                                c: c.as_mut_ptr(),
                                c_off: &c_off,
                                blocks: BLOCKS,
                                b_block: POINTS * BLOCK,
                                c_block: ROWS * BLOCK,
                                start: Start::Zero,
                                clamp: None,
                                narrow: false,
                                stream: false,
                            };
                            sweep.assert_inside(a.len(), b.len(), c.len());
                            // SAFETY: inside, as asserted; the sums are ours.
                            unsafe {
                                match order {
                                    Some(order) => isa().sweep_folded(&sweep, order),
                                    None => isa().sweep(&sweep),
                                }
                            }
                        };
                        let mut folded = vec![0.0; BLOCKS * ROWS * BLOCK];
                        sweep(&steps, Some(&order), &mut folded);
                        let mut levels = vec![vec![0.0; BLOCKS * ROWS * BLOCK]; 8];
                        let one = &mut |l: usize, into: &mut Vec<f32>| sweep(&steps[l..l + 1], None, into);
                        fold::tree(0..leaves, &mut levels, &empty, one, &|into, from| isa().add(into, from));
                        assert_eq!(folded, levels[0], "{leaves} leaves without {mask:b}, {len} points each, {set:?}");
                    });
                }
            }
        }
    }
}
