//! Regions in memory: copied or added from one stored tensor to another, cleared, and exchanged with dense arrays.
//!
//! A message is a stored tensor as well: packing is a copy into a layout of just its region, unpacking a copy out of it.
//!
//! Always true
//! - Whoever copies a tensor's last stored channel writes the filler behind it as zeros.
//! - Nothing outside the region is written.
//!
//! Twin: the tests, element by element.

use crate::{Layout, Slot};
use convoy_net::{AXES, Axis, Region};

/// Copies `region` of one stored tensor to `region + shift` of another, or adds it there. Source and target may be the same
/// tensor as long as the two places share no element.
///
/// # Safety
/// The slots hold the floats of their layouts. Meanwhile nobody else writes the elements that are read, nor touches those
/// that are written (filler behind the target's last channel included).
pub unsafe fn copy(
    (from, source): (Slot, &Layout),
    (into, target): (Slot, &Layout),
    region: &Region,
    shift: [isize; AXES],
    add: bool,
) {
    if region.is_empty() {
        return;
    }
    let moved = region.shifted(shift);
    assert!(source.stored.contains(region), "bug: {region} is not stored, {} is", source.stored);
    assert!(target.stored.contains(&moved), "bug: {moved} is not stored, {} is", target.stored);
    assert!(from.bytes / 4 >= source.len && into.bytes / 4 >= target.len, "bug: a slot too small for its layout");
    let (s, t) = (first(from, source, region), first(into, target, &moved));
    // SAFETY: both regions are stored, so all elements lie within the slots, which the caller promises to be valid.
    unsafe {
        if in_whole_lines(source, region, target, &moved) {
            copy_lines((s, source), (t, target), region, add);
        } else {
            copy_lanes((s, source), (t, target), region, &moved, add);
        }
    }
}

/// Where the block that holds a region's first element begins.
fn first(slot: Slot, layout: &Layout, region: &Region) -> *mut f32 {
    let [n, c, d, h, w] = region.start;
    let block = (c - layout.stored.start[1]) as usize / layout.block;
    (slot.data as *mut f32).wrapping_add(layout.offset(n, block, d, h, w))
}

/// Whether whole lines of one are whole lines of the other.
fn in_whole_lines(source: &Layout, region: &Region, target: &Layout, moved: &Region) -> bool {
    let starts =
        |layout: &Layout, r: &Region| ((r.start[1] - layout.stored.start[1]) as usize).is_multiple_of(layout.block);
    let ends = |layout: &Layout, r: &Region| r.end[1] == layout.stored.end[1];
    source.block == target.block
        && starts(source, region)
        && starts(target, moved)
        && (region.size(Axis::Channel).is_multiple_of(source.block) || ends(source, region) && ends(target, moved))
}

/// Copies whole lines, in pieces as long as they are contiguous in both.
///
/// # Safety
/// As for `copy`; `s` and `t` are the first elements.
unsafe fn copy_lines(
    (mut s, source): (*mut f32, &Layout),
    (mut t, target): (*mut f32, &Layout),
    region: &Region,
    add: bool,
) {
    let [n, c, d, h, w] = region.shape().0;
    // Number and distances, from the inside out: blocks, rows, depths, samples.
    let mut loops = [
        (c.div_ceil(source.block), source.plane, target.plane),
        (h, source.row, target.row),
        (d, source.depth, target.depth),
        (n, source.sample, target.sample),
    ];
    let mut run = w * source.block;
    for level in &mut loops {
        let (count, a, b) = *level;
        if count > 1 && (a != run || b != run) {
            break;
        }
        run *= count;
        *level = (1, 0, 0);
    }
    let start = (s, t);
    for i in 0..loops.iter().map(|l| l.0).product::<usize>() {
        let mut rest = i;
        (s, t) = start;
        for (count, a, b) in loops {
            (s, t) = (s.wrapping_add(rest % count * a), t.wrapping_add(rest % count * b));
            rest /= count;
        }
        // SAFETY: a contiguous piece of both regions.
        unsafe {
            if add {
                (0..run).for_each(|i| *t.add(i) += *s.add(i));
            } else {
                std::ptr::copy(s, t, run);
            }
        }
    }
}

/// Copies channels that lie differently in source and target, in runs within a block of both.
///
/// # Safety
/// As for `copy`; `s` and `t` are the starts of the first blocks.
unsafe fn copy_lanes(
    (s, source): (*mut f32, &Layout),
    (t, target): (*mut f32, &Layout),
    region: &Region,
    moved: &Region,
    add: bool,
) {
    let [samples, channels, depths, rows, columns] = region.shape().0;
    let lane = |layout: &Layout, r: &Region| (r.start[1] - layout.stored.start[1]) as usize % layout.block;
    let (first_s, first_t) = (lane(source, region), lane(target, moved));
    let last = moved.end[1] == target.stored.end[1];
    let filler = if last && !add { (target.block - (first_t + channels) % target.block) % target.block } else { 0 };
    for i in 0..samples * depths * rows {
        let (n, d, h) = (i / (depths * rows), i / rows % depths, i % rows);
        let s = s.wrapping_add(n * source.sample + d * source.depth + h * source.row);
        let t = t.wrapping_add(n * target.sample + d * target.depth + h * target.row);
        let at = |layout: &Layout, lane: usize| lane / layout.block * layout.plane + lane % layout.block;
        let mut c = 0;
        while c < channels {
            let (lane_s, lane_t) = (first_s + c, first_t + c);
            let room = (source.block - lane_s % source.block).min(target.block - lane_t % target.block);
            let count = room.min(channels - c);
            let (s, t) = (s.wrapping_add(at(source, lane_s)), t.wrapping_add(at(target, lane_t)));
            for w in 0..columns {
                let (s, t) = (s.wrapping_add(w * source.block), t.wrapping_add(w * target.block));
                for l in 0..count {
                    // SAFETY: an element of both regions.
                    unsafe { *t.add(l) = if add { *t.add(l) + *s.add(l) } else { *s.add(l) } };
                }
            }
            c += count;
        }
        let t = t.wrapping_add(at(target, first_t + channels - 1) + 1);
        for w in 0..columns {
            for l in 0..filler {
                // SAFETY: the lanes behind the last channel of a stored point.
                unsafe { *t.wrapping_add(w * target.block).add(l) = 0.0 };
            }
        }
    }
}

/// Zeroes everything stored outside `keep`: margins, before they are relied on as padding. Filler within it stays.
///
/// # Safety
/// The slot holds the layout's floats; meanwhile nobody else touches those outside `keep`.
pub unsafe fn clear_outside(slot: Slot, layout: &Layout, keep: &Region) {
    assert!(slot.bytes / 4 >= layout.len, "bug: a slot too small for its layout");
    let data = slot.data as *mut f32;
    let stored = &layout.stored;
    // SAFETY: offsets of stored points, which lie within the slot.
    let zero = |at: usize, count: usize| unsafe { std::ptr::write_bytes(data.add(at), 0, count) };
    let keep = keep.intersect(stored);
    if keep.is_empty() {
        return zero(0, layout.len);
    }
    let inside = |axis: usize, at: isize| keep.start[axis] <= at && at < keep.end[axis];
    let (first, last) = (keep.start[4] - stored.start[4], stored.end[4] - keep.end[4]);
    let some_channels = keep.range(Axis::Channel) != stored.range(Axis::Channel);
    for n in stored.start[0]..stored.end[0] {
        for d in stored.start[2]..stored.end[2] {
            for h in stored.start[3]..stored.end[3] {
                let row = layout.offset(n, 0, d, h, stored.start[4]);
                if !(inside(0, n) && inside(2, d) && inside(3, h)) {
                    zero(row, layout.row);
                    continue;
                }
                // The end of a block's row and the start of the next one's lie side by side.
                let mut end = row;
                for block in 0..layout.blocks {
                    let plane = row + block * layout.plane;
                    zero(end, plane + first as usize * layout.block - end);
                    end = plane + layout.plane - last as usize * layout.block;
                    if !some_channels {
                        continue;
                    }
                    let channel = stored.start[1] + (block * layout.block) as isize;
                    for c in (channel..stored.end[1].min(channel + layout.block as isize)).filter(|&c| !inside(1, c)) {
                        (keep.start[4]..keep.end[4]).for_each(|w| zero(layout.index(n, c, d, h, w), 1));
                    }
                }
                zero(end, row + layout.blocks * layout.plane - end);
            }
        }
    }
}

/// Calls `each` with the offset in a dense array `[n][c][d][h][w]` of `region` and the offset in a layout, for every row of
/// every channel.
fn rows_of(region: &Region, layout: &Layout, mut each: impl FnMut(usize, usize)) {
    assert!(layout.stored.contains(region), "bug: {region} is not stored, {} is", layout.stored);
    let [samples, channels, depths, rows, columns] = region.shape().0;
    let r = region.start;
    for n in 0..samples {
        for d in 0..depths {
            for h in 0..rows {
                // Channels last: a block's row stays in cache while its channels come and go.
                for c in 0..channels {
                    let dense = (((n * channels + c) * depths + d) * rows + h) * columns;
                    let [n, c, d, h] = [n, c, d, h].map(|i| i as isize);
                    each(dense, layout.index(r[0] + n, r[1] + c, r[2] + d, r[3] + h, r[4]));
                }
            }
        }
    }
}

/// Stores a dense array `[n][c][d][h][w]` of `region`.
///
/// # Safety
/// The slot holds the layout's floats; meanwhile nobody else touches those of the region, nor the filler behind it.
pub unsafe fn load(dense: &[f32], region: &Region, (into, layout): (Slot, &Layout)) {
    if region.is_empty() {
        return;
    }
    assert_eq!(dense.len(), region.len(), "bug: a dense array of another size than {region}");
    assert!(into.bytes / 4 >= layout.len, "bug: a slot too small for its layout");
    let (data, width) = (into.data as *mut f32, region.size(Axis::Width));
    rows_of(region, layout, |at, place| {
        for (w, value) in dense[at..at + width].iter().enumerate() {
            // SAFETY: a stored element.
            unsafe { *data.add(place + w * layout.block) = *value };
        }
    });
    if region.end[1] == layout.stored.end[1] {
        let filler = layout.blocks * layout.block - layout.stored.size(Axis::Channel);
        let last = region.with(Axis::Channel, region.end[1] - 1, region.end[1]);
        rows_of(&last, layout, |_, place| {
            for w in 0..width {
                // SAFETY: the lanes behind the last channel of a stored point.
                (1..=filler).for_each(|lane| unsafe { *data.add(place + w * layout.block + lane) = 0.0 });
            }
        });
    }
}

/// Reads `region` into a dense array `[n][c][d][h][w]`.
///
/// # Safety
/// The slot holds the layout's floats; meanwhile nobody writes those of the region.
pub unsafe fn unload((from, layout): (Slot, &Layout), region: &Region, dense: &mut [f32]) {
    if region.is_empty() {
        return;
    }
    assert_eq!(dense.len(), region.len(), "bug: a dense array of another size than {region}");
    assert!(from.bytes / 4 >= layout.len, "bug: a slot too small for its layout");
    let (data, width) = (from.data as *const f32, region.size(Axis::Width));
    rows_of(region, layout, |at, place| {
        for (w, value) in dense[at..at + width].iter_mut().enumerate() {
            // SAFETY: a stored element.
            *value = unsafe { *data.add(place + w * layout.block) };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Memory, Numbers};
    use std::collections::HashMap;

    /// A box of random sizes at a random place.
    fn random_region(numbers: &mut Numbers) -> Region {
        let start: [isize; AXES] = std::array::from_fn(|_| numbers.below(9) as isize - 4);
        let most = [3, 40, 3, 4, 6];
        Region { start, end: std::array::from_fn(|a| start[a] + 1 + numbers.below(most[a]) as isize) }
    }

    /// A layout that stores `region` with margins or without, its channels in line with blocks or not.
    fn random_layout(numbers: &mut Numbers, region: &Region) -> Layout {
        let mut stored = *region;
        for a in 0..AXES {
            let scale = if a == 1 { [1, 16][numbers.below(2)] } else { 1 };
            if numbers.below(2) == 0 {
                stored.start[a] -= (numbers.below(3) * scale) as isize;
            }
            if numbers.below(2) == 0 {
                stored.end[a] += (numbers.below(3) * scale) as isize;
            }
        }
        if numbers.below(3) == 0 { Layout::image(stored) } else { Layout::blocked(stored) }
    }

    fn random_memory(numbers: &mut Numbers, layout: &Layout) -> Memory {
        let mut memory = Memory::poisoned(layout.len);
        memory.slice_mut().iter_mut().for_each(|v| *v = numbers.value(true) as f32 + 0.5);
        memory
    }

    /// Every element of a region, and the place where it is stored.
    fn places(region: &Region, layout: &Layout) -> HashMap<[isize; AXES], usize> {
        let shape = region.shape();
        let array = crate::reference::Array::zeros(shape);
        array
            .indices()
            .map(|at| std::array::from_fn(|a| at[a] as isize + region.start[a]))
            .map(|at: [isize; AXES]| (at, layout.index(at[0], at[1], at[2], at[3], at[4])))
            .collect()
    }

    /// The filler behind a region's points, if the region holds the last stored channel.
    fn filler(region: &Region, layout: &Layout) -> Vec<usize> {
        let count = layout.blocks * layout.block - layout.stored.size(Axis::Channel);
        let last = region.with(Axis::Channel, layout.stored.end[1] - 1, layout.stored.end[1]);
        let last = last.intersect(region);
        places(&last, layout).values().flat_map(|place| (1..=count).map(move |lane| place + lane)).collect()
    }

    #[test]
    fn copies_and_adds_element_by_element() {
        let mut in_lines = 0;
        for seed in 0..600 {
            let mut numbers = Numbers::new(seed);
            let region = random_region(&mut numbers);
            let shift = std::array::from_fn(|_| numbers.below(9) as isize - 4);
            let shift = if numbers.below(2) == 0 { [0; AXES] } else { shift };
            let source = random_layout(&mut numbers, &region);
            let target = random_layout(&mut numbers, &region.shifted(shift));
            let add = numbers.below(2) == 0;
            let (mut from, mut into) = (random_memory(&mut numbers, &source), random_memory(&mut numbers, &target));
            // The filler of a source is zero, as always.
            filler(&source.stored, &source).into_iter().for_each(|i| from.slice_mut()[i] = 0.0);
            let mut expected = into.slice().to_vec();
            if !add {
                filler(&region.shifted(shift), &target).into_iter().for_each(|i| expected[i] = 0.0);
            }
            let to = places(&region.shifted(shift), &target);
            for (at, place) in places(&region, &source) {
                let there = &mut expected[to[&std::array::from_fn(|a| at[a] + shift[a])]];
                *there = from.slice()[place] + if add { *there } else { 0.0 };
            }
            in_lines += in_whole_lines(&source, &region, &target, &region.shifted(shift)) as usize;
            // SAFETY: memories of their own, as long as the layouts say.
            unsafe { copy((from.slot(), &source), (into.slot(), &target), &region, shift, add) };
            assert!(into.slice() == expected, "seed {seed}: {region} by {shift:?}, {source:?} to {target:?}, {add}");
        }
        assert!(in_lines > 100 && in_lines < 500, "{in_lines} of 600 in whole lines");
    }

    #[test]
    fn a_periodic_edge_is_copied_within_its_tensor() {
        let layout = Layout::blocked(Region { start: [0, 0, 0, -2, 0], end: [1, 20, 1, 8, 5] });
        let mut memory = random_memory(&mut Numbers::new(3), &layout);
        let before = memory.slice().to_vec();
        let bottom = Region { start: [0, 0, 0, 6, 0], end: [1, 20, 1, 8, 5] };
        let slot = memory.slot();
        // SAFETY: one memory, whose two places share no element.
        unsafe { copy((slot, &layout), (slot, &layout), &bottom, [0, 0, 0, -8, 0], false) };
        assert_eq!(memory.slice()[..2 * layout.row], before[8 * layout.row..10 * layout.row]);
        assert_eq!(memory.slice()[2 * layout.row..], before[2 * layout.row..]);
    }

    #[test]
    fn clears_all_but_what_is_kept() {
        for seed in 0..200 {
            let mut numbers = Numbers::new(seed);
            let keep = random_region(&mut numbers);
            let layout = random_layout(&mut numbers, &keep);
            // What is kept may also reach beyond what is stored, or be nothing.
            let keep = match numbers.below(4) {
                0 => keep.shifted([0, 0, 0, 2, -2]),
                1 => keep.with(Axis::Height, 0, 0),
                _ => keep,
            };
            let mut memory = random_memory(&mut numbers, &layout);
            let before = memory.slice().to_vec();
            // SAFETY: a memory of its own.
            unsafe { clear_outside(memory.slot(), &layout, &keep) };
            for (at, place) in places(&layout.stored, &layout) {
                let inside = (0..AXES).all(|a| keep.start[a] <= at[a] && at[a] < keep.end[a]);
                assert_eq!(memory.slice()[place], if inside { before[place] } else { 0.0 }, "seed {seed}, {at:?}");
            }
        }
    }

    #[test]
    fn dense_arrays_come_and_go() {
        for seed in 0..200 {
            let mut numbers = Numbers::new(seed);
            let region = random_region(&mut numbers);
            let layout = random_layout(&mut numbers, &region);
            let mut memory = random_memory(&mut numbers, &layout);
            let dense: Vec<f32> = (0..region.len()).map(|i| i as f32).collect();
            let mut expected = memory.slice().to_vec();
            filler(&region, &layout).into_iter().for_each(|i| expected[i] = 0.0);
            for (at, place) in places(&region, &layout) {
                let [n, c, d, h, w]: [usize; 5] = std::array::from_fn(|a| (at[a] - region.start[a]) as usize);
                let s = region.shape().0;
                expected[place] = ((((n * s[1] + c) * s[2] + d) * s[3] + h) * s[4] + w) as f32;
            }
            // SAFETY: a memory of its own.
            unsafe { load(&dense, &region, (memory.slot(), &layout)) };
            assert!(memory.slice() == expected, "seed {seed}: {region} into {layout:?}");
            let mut back = vec![0.0; region.len()];
            // SAFETY: as above.
            unsafe { unload((memory.slot(), &layout), &region, &mut back) };
            assert_eq!(back, dense, "seed {seed}: {region} from {layout:?}");
        }
    }
}
