//! Forward's adjoint: planes of the output's gradient back to windows of the input's, which overlap.
//!
//! Forward reads a window and writes a tile; its adjoint reads a tile and adds a window. Its tiles are those of the output: without
//! padding fewer than the input has, 16 instead of 36 for windows of 5 x 5 on 12 x 12 points.
//!
//! Always true
//! - Windows are added to a point in the order of their tiles: whole planes of a sample are one worker's, whatever blocks of tiles it
//!   takes them in.
//! - Only points of the output that reach the region are read: the others of a tile count as zero, and what a window has outside of
//!   the region is left out.

use super::convolve::NEAR_WEIGHTS;
use super::{Convolution, Grid, MOST_POINTS, PAIR, Size, even, parts};
use crate::fast::isa::{MOST_BLOCKS, isa};
use crate::fast::tiles;
use crate::fast::transforms::{After, Transforms};
use crate::{BLOCK, Layout, Slot};
use convoy_net::{Axis, Region};
use std::ops::Range;

/// Tiles in parts of whole planes, about `most` in each, and how many target blocks a part has: all, unless planes are few or weights
/// many. The source is brought to planes again for others.
pub fn cut(grid: &Grid, size: Size, most: usize, (inner, outer): (usize, usize)) -> (Vec<Range<usize>>, usize) {
    let per_plane = grid.per_plane();
    let planes = grid.len() / per_plane.max(1);
    let of_block = size.planes() * inner * PAIR;
    let wanted = tiles::enough(tiles::of_flops(2.0 * (grid.len() * of_block * outer) as f64));
    let at_once = (most / per_plane.max(1)).min(planes / wanted).max(1);
    let parts = whole_planes(grid, at_once);
    let near = (NEAR_WEIGHTS / (4 * of_block)).max(MOST_BLOCKS);
    let times = wanted.div_ceil(parts.len().max(1)).max(outer.div_ceil(near));
    (parts, even(outer, outer.div_ceil(times)))
}

/// Tiles in parts of so many whole planes.
pub fn whole_planes(grid: &Grid, planes: usize) -> Vec<Range<usize>> {
    let per_plane = grid.per_plane();
    let all = parts(0..grid.len() / per_plane.max(1), planes);
    all.map(|planes| planes.start * per_plane..planes.end * per_plane).collect()
}

/// How planes become windows that are added to a stored tensor.
pub struct Overlaps {
    layout: Layout,
    region: Region,
    transforms: &'static Transforms,
    /// Points of a window along an axis, from one point's of a tile to the next's, and how far before the first it begins along height and width.
    window: usize,
    stride: isize,
    before: [isize; 2],
    accumulate: bool,
}

impl Overlaps {
    pub fn new(spec: &Convolution) -> Overlaps {
        assert_eq!(spec.tiled.is_empty(), spec.region.is_empty(), "bug: inputs that no window reads");
        Overlaps {
            layout: spec.target.1.clone(),
            region: *spec.region,
            transforms: spec.size.transforms(isa()),
            window: spec.size.window(),
            stride: spec.size.stride() as isize,
            before: spec.before,
            accumulate: spec.accumulate,
        }
    }

    /// Adds the windows of some tiles in one block, from planes `distance` apart whose first line is `from`'s. A plane of a sample
    /// begins as zero with its first tile, unless it holds something already.
    ///
    /// # Safety
    /// The region's points of this block in these tiles' planes may be written, by nobody else.
    pub unsafe fn add(
        &self,
        grid: &Grid,
        block: usize,
        tiles: Range<usize>,
        (from, distance): (&[f32], usize),
        to: Slot,
    ) {
        let target = to.data as *mut f32;
        let len = self.window as isize;
        // Only for windows at edges.
        let mut copy = None;
        for (i, t) in tiles.enumerate() {
            let at = grid.place(t);
            let offset = |h: isize, w: isize| self.layout.offset(at.n, block, at.d, h, w);
            // SAFETY: rows of the region are inside the target; the rest is the caller's promise.
            let held = |h: isize, (start, end): (isize, isize)| unsafe {
                let (at, len) = (offset(h, start), (end - start) as usize * BLOCK);
                debug_assert!(at + len <= to.bytes / 4, "bug: targets outside");
                std::slice::from_raw_parts_mut(target.add(at), len)
            };
            if !self.accumulate && t.is_multiple_of(grid.per_plane()) {
                let (first, end) = self.region.range(Axis::Height);
                (first..end).for_each(|h| held(h, self.region.range(Axis::Width)).fill(0.0));
            }
            let from = &from[i * BLOCK..];
            debug_assert!((self.window * self.window - 1) * distance + BLOCK <= from.len(), "bug: a tile outside");
            let from = (from.as_ptr(), (self.window * distance, distance));
            let start = [0, 1].map(|a| self.stride * at.start[a] - self.before[a]);
            let inside =
                [0, 1].map(|a| (start[a].max(self.region.start[3 + a]), (start[a] + len).min(self.region.end[3 + a])));
            if inside == start.map(|start| (start, start + len)) {
                let to = offset(start[0], start[1]);
                // SAFETY: the window is in the region; the rest is the caller's promise.
                unsafe {
                    let (to, distances) = (target.add(to), (self.layout.row, BLOCK));
                    (self.transforms.input_gradient_added)(from.0, from.1, to, distances)
                };
                continue;
            }
            let copy = copy.get_or_insert([0f32; MOST_POINTS * BLOCK]);
            let (to, distances) = (copy.as_mut_ptr(), (self.window * BLOCK, BLOCK));
            // SAFETY: the copy is as large as the largest window.
            unsafe { (self.transforms.input_gradient)(from.0, from.1, to, distances, &After::NOTHING) };
            for h in inside[0].0..inside[0].1 {
                let first = (h - start[0]) as usize * self.window + (inside[1].0 - start[1]) as usize;
                let held = held(h, inside[1]);
                held.iter_mut().zip(&copy[first * BLOCK..]).for_each(|(a, b)| *a += b);
            }
        }
    }
}
