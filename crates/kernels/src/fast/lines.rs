//! Lines: how kernels that work point by point see stored tensors.
//!
//! A [`Line`] is one point's 16 channels. A kernel goes over the [`Rows`] of a region: a sample, a depth, a height and one
//! block of 16 channels, counted from the region's first channel. [`Source`] and [`Target`] hand out lines of such blocks.
//! Where a tensor's own blocks are those of the region (nearly always) they are the tensor's memory itself; elsewhere
//! (narrow images, channels cut within a block) they are copied through scratch.
//!
//! Always true
//! - Lanes past the region's last channel read as zero, and are written as zero where they are filler of the tensor.
//! - Channels and points outside the region are never written.

use super::isa::STREAM_BYTES;
use super::region;
use crate::{BLOCK, Geometry, Layout, Operand, Operands, Slot};
use convoy_net::{AXES, Axis, Region};

/// 16 channels of one point.
pub type Line = [f32; BLOCK];

/// A half-open range along one axis, in the tensor's coordinates.
pub type Span = (isize, isize);

/// The points of a span.
pub fn points((start, end): Span) -> usize {
    (end - start).max(0) as usize
}

/// What both spans hold.
pub fn both(a: Span, b: Span) -> Span {
    (a.0.max(b.0), a.1.min(b.1))
}

/// Bytes that a tile should read and write: some 100 microseconds of one core. Tests have small tensors.
pub const TILE_BYTES: usize = if cfg!(test) { 1 << 11 } else { 1 << 19 };

/// One row of a region: what a kernel computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub n: isize,
    pub d: isize,
    pub h: isize,
    pub block: usize,
    /// Its place in the order of all rows.
    pub number: usize,
}

impl Row {
    /// The box of space that it is, between these columns.
    #[inline(always)]
    pub fn space(&self, columns: Span) -> [Span; 3] {
        [(self.d, self.d + 1), (self.h, self.h + 1), columns]
    }
}

/// The rows of a region in the order of memory, cut into tiles of consecutive rows.
#[derive(Clone, Debug)]
pub struct Rows {
    pub region: Region,
    pub blocks: usize,
    pub tiles: usize,
}

impl Rows {
    /// `lines` is how many lines are read and written for each line of the region: it sizes the tiles.
    pub fn new(region: &Region, lines: usize) -> Rows {
        let blocks = region.size(Axis::Channel).div_ceil(BLOCK);
        let mut rows = Rows { region: *region, blocks, tiles: 1 };
        let bytes = rows.count() * region.size(Axis::Width) * lines.max(1) * size_of::<Line>();
        rows.tiles = bytes.div_ceil(TILE_BYTES).min(rows.count());
        rows
    }

    /// Rows that hold all channels of a point at once, as one block.
    pub fn of_all_channels(region: &Region, lines: usize) -> Rows {
        let rows = Rows::new(region, lines);
        let blocks = rows.blocks.min(1);
        Rows { tiles: rows.tiles.min(rows.count() / rows.blocks.max(1)), blocks, ..rows }
    }

    /// Rows in all; none if the region is empty.
    pub fn count(&self) -> usize {
        let [n, _, d, h, w] = self.region.shape().0;
        n * d * h * self.blocks * w.min(1)
    }

    /// Rows of one sample and block.
    pub fn heights(&self) -> usize {
        self.region.size(Axis::Depth) * self.region.size(Axis::Height)
    }

    /// First and past the last column.
    pub fn columns(&self) -> Span {
        self.region.range(Axis::Width)
    }

    /// The rows of a tile, in order.
    pub fn of(&self, tile: usize) -> impl Iterator<Item = Row> + use<> {
        let (count, tiles) = (self.count(), self.tiles);
        let [_, _, d, h, _] = self.region.shape().0;
        let (start, end, blocks) = (self.region.start, self.region.end, self.blocks);
        let numbers = tile * count / tiles..(tile + 1) * count / tiles;
        let first = numbers.start;
        let mut next = Row {
            n: start[0] + (first / (blocks * h * d)) as isize,
            d: start[2] + (first / (blocks * h) % d) as isize,
            h: start[3] + (first / blocks % h) as isize,
            block: first % blocks,
            number: first,
        };
        // Counted up: rows may be as short as divisions are slow.
        numbers.map(move |_| {
            let row = next;
            next.number += 1;
            next.block += 1;
            if next.block == blocks {
                (next.block, next.h) = (0, next.h + 1);
            }
            if next.h == end[3] {
                (next.h, next.d) = (start[3], next.d + 1);
            }
            if next.d == end[2] {
                (next.d, next.n) = (start[2], next.n + 1);
            }
            row
        })
    }
}

/// The first of a tensor's blocks whose lines are those of blocks of `channels`, if they are.
fn aligned(layout: &Layout, channels: Span) -> Option<usize> {
    let stored = layout.stored.range(Axis::Channel);
    let before = channels.0 - stored.0;
    let starts = before >= 0 && before % BLOCK as isize == 0;
    let ends = channels.1 == stored.1 || channels.1 < stored.1 && points(channels).is_multiple_of(BLOCK);
    (layout.block == BLOCK && starts && ends).then_some(before as usize / BLOCK)
}

/// The channels of block `block`.
fn lanes(channels: Span, block: usize) -> Span {
    let first = channels.0 + (block * BLOCK) as isize;
    (first, channels.1.min(first + BLOCK as isize))
}

/// A tensor that is read by lines.
#[derive(Clone, Debug)]
pub struct Source {
    layout: Layout,
    channels: Span,
    direct: Option<usize>,
}

impl Source {
    /// Lines of blocks of `channels`. Channels that are not stored read as zero.
    pub fn new(layout: &Layout, channels: Span) -> Source {
        Source { layout: layout.clone(), channels, direct: aligned(layout, channels) }
    }

    /// Floats of scratch for views of so many points.
    pub fn scratch(&self, points: usize) -> usize {
        if self.direct.is_some() { 0 } else { points * BLOCK }
    }

    /// Lines of one block of one sample in a box of space, which must be stored. `data` is the whole tensor, `scratch` as
    /// long as `scratch()` said for the box.
    #[inline]
    pub fn view<'a>(
        &self,
        data: &'a [f32],
        n: isize,
        block: usize,
        space: [Span; 3],
        scratch: &'a mut [f32],
    ) -> View<'a> {
        let start = space.map(|s| s.0);
        if space.iter().any(|s| s.1 <= s.0) {
            return View { data: &[], start, depth: 0, row: 0 };
        }
        match self.direct {
            Some(first) => {
                let at = self.layout.offset(n, first + block, start[0], start[1], start[2]);
                View { data: &data[at..], start, depth: self.layout.depth, row: self.layout.row }
            }
            None => self.gather(data, n, block, space, scratch),
        }
    }

    /// Lines of all blocks of one row, which must be stored. `scratch` is as long as `scratch()` said for the points of so
    /// many rows as there are blocks.
    #[inline(always)]
    pub fn blocks<'a>(&self, data: &'a [f32], row: Row, columns: Span, scratch: &'a mut [f32]) -> Blocks<'a> {
        let count = points(self.channels).div_ceil(BLOCK);
        if let Some(first) = self.direct {
            let at = self.layout.offset(row.n, first, row.d, row.h, columns.0);
            let end = at + (count - 1) * self.layout.plane + points(columns) * BLOCK;
            return Blocks { lines: data[at..end].as_chunks().0, distance: self.layout.plane / BLOCK };
        }
        for (block, part) in scratch.chunks_exact_mut(points(columns) * BLOCK).take(count).enumerate() {
            self.gather(data, row.n, block, row.space(columns), part);
        }
        Blocks { lines: scratch[..count * points(columns) * BLOCK].as_chunks().0, distance: points(columns) }
    }

    fn gather<'a>(
        &self,
        data: &[f32],
        n: isize,
        block: usize,
        [d, h, w]: [Span; 3],
        scratch: &'a mut [f32],
    ) -> View<'a> {
        let (first, end) = lanes(self.channels, block);
        let seen = Region { start: [n, first, d.0, h.0, w.0], end: [n + 1, end, d.1, h.1, w.1] };
        let stored = both((first, end), self.layout.stored.range(Axis::Channel));
        let box_of_lines = Layout::dense(seen);
        let scratch = &mut scratch[..box_of_lines.len];
        if stored != (first, end) {
            scratch.fill(0.0);
        }
        let from = Slot { data: data.as_ptr() as *mut u8, bytes: size_of_val(data) };
        let into = Slot { data: scratch.as_mut_ptr() as *mut u8, bytes: size_of_val(scratch) };
        let part = seen.with(Axis::Channel, stored.0, stored.1);
        // SAFETY: both are slices; the first is only read.
        unsafe { region::copy((from, &self.layout), (into, &box_of_lines), &part, [0; AXES], false) };
        View { data: scratch, start: [d.0, h.0, w.0], depth: box_of_lines.depth, row: box_of_lines.row }
    }
}

/// Lines of one block of one sample in a box of space.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    data: &'a [f32],
    start: [isize; 3],
    depth: usize,
    row: usize,
}

impl<'a> View<'a> {
    /// The lines of a row, in the tensor's coordinates.
    #[inline(always)]
    pub fn row(&self, d: isize, h: isize, columns: Span) -> &'a [Line] {
        let at = (d - self.start[0]) as usize * self.depth
            + (h - self.start[1]) as usize * self.row
            + (columns.0 - self.start[2]) as usize * BLOCK;
        self.data[at..at + points(columns) * BLOCK].as_chunks().0
    }
}

/// Lines of all blocks of one row.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    lines: &'a [Line],
    /// Lines between one block and the next.
    distance: usize,
}

impl<'a> Blocks<'a> {
    /// A block's line of one point, counted from the first column.
    #[inline(always)]
    pub fn line(&self, block: usize, point: usize) -> &'a Line {
        &self.lines[block * self.distance + point]
    }
}

/// A tensor that is written by lines.
#[derive(Clone, Debug)]
pub struct Target {
    pub operand: Operand,
    layout: Layout,
    channels: Span,
    direct: Option<usize>,
    /// Whether lines are added to what is there.
    pub add: bool,
    /// Whether they are written past the caches.
    stream: bool,
}

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Over,
    Add,
    /// Over, and past the caches: the line begins at a multiple of 16 bytes.
    Stream,
}

impl Target {
    /// Lines of blocks of `channels`, all of which must be stored.
    pub fn new(operand: Operand, layout: &Layout, channels: Span, add: bool) -> Target {
        Target { operand, layout: layout.clone(), channels, direct: aligned(layout, channels), add, stream: false }
    }

    /// The same, past the caches where it is more than the last of them holds. For kernels that are run by [`Wide`](super::wide::Wide).
    pub fn streamed(mut self) -> Target {
        let whole_lines = self.direct.is_some() && points(self.channels).is_multiple_of(BLOCK);
        self.stream = whole_lines && !self.add && self.layout.len > STREAM_BYTES / 4;
        self
    }

    /// How lines are written.
    #[inline(always)]
    pub fn store(&self) -> Store {
        match (self.add, self.stream) {
            (true, _) => Store::Add,
            (false, true) => Store::Stream,
            (false, false) => Store::Over,
        }
    }

    /// The output of a layer over its region.
    pub fn output(geometry: &Geometry) -> Target {
        Target::new(Operand::Output, &geometry.output.layout, geometry.region.range(Axis::Channel), false)
    }

    /// The gradient of an input over the region wanted.
    pub fn input_gradient(geometry: &Geometry, input: usize) -> Target {
        let (layout, region) = wanted(geometry, input);
        let add = geometry.accumulate[input];
        Target::new(Operand::InputGradient(input), layout, region.range(Axis::Channel), add)
    }

    /// Floats of scratch for rows of so many points.
    pub fn scratch(&self, points: usize) -> usize {
        if self.direct.is_some() { 0 } else { points * BLOCK }
    }

    /// The lines of a row, to be written and then closed. Where lines are added they hold what is there, otherwise anything.
    /// `scratch` is as long as `scratch()` said for the row.
    ///
    /// # Safety
    /// Until the row is closed, no other tile touches this block's channels of it.
    #[inline(always)]
    pub unsafe fn open<'a>(
        &self,
        operands: &Operands<'a>,
        row: Row,
        columns: Span,
        scratch: &'a mut [f32],
    ) -> &'a mut [Line] {
        match self.direct {
            Some(first) => {
                let at = self.layout.offset(row.n, first + row.block, row.d, row.h, columns.0);
                // SAFETY: the lines of this block of this row, which the caller promises to be this tile's.
                let floats = unsafe { operands.floats_mut(self.operand, at..at + points(columns) * BLOCK) };
                floats.as_chunks_mut().0
            }
            None => {
                if self.add {
                    // SAFETY: as the caller promises.
                    unsafe { self.exchange(operands, row, columns, scratch, Way::Out) };
                }
                scratch[..points(columns) * BLOCK].as_chunks_mut().0
            }
        }
    }

    /// Ends what `open` began, with the same arguments.
    ///
    /// # Safety
    /// As for `open`; the lines are no longer used.
    #[inline(always)]
    pub unsafe fn close(&self, operands: &Operands, row: Row, columns: Span, scratch: &mut [f32]) {
        let used = points(lanes(self.channels, row.block));
        // SAFETY: as the caller promises.
        unsafe {
            match self.direct {
                Some(_) if used < BLOCK => {
                    let lines = self.open(operands, row, columns, &mut []);
                    lines.iter_mut().for_each(|line| line[used..].fill(0.0));
                }
                Some(_) => {}
                None => self.exchange(operands, row, columns, scratch, Way::In),
            }
        }
    }

    /// Copies a row between scratch and tensor.
    ///
    /// # Safety
    /// As for `open`.
    unsafe fn exchange(&self, operands: &Operands, row: Row, columns: Span, scratch: &mut [f32], way: Way) {
        let tensor = (operands.slot(self.operand), &self.layout);
        let (first, end) = lanes(self.channels, row.block);
        let Row { n, d, h, .. } = row;
        let part = Region { start: [n, first, d, h, columns.0], end: [n + 1, end, d + 1, h + 1, columns.1] };
        let lines = Layout::dense(part);
        let scratch = &mut scratch[..lines.len];
        let lines = (Slot { data: scratch.as_mut_ptr() as *mut u8, bytes: size_of_val(scratch) }, &lines);
        let (from, into) = match way {
            Way::Out => (tensor, lines),
            Way::In => (lines, tensor),
        };
        // SAFETY: the tensor's elements are this tile's, as the caller promises, and scratch always is.
        unsafe { region::copy(from, into, &part, [0; AXES], false) };
    }
}

/// Which way a row goes: out of its tensor or into it.
enum Way {
    Out,
    In,
}

/// A line, lane by lane: a loop that becomes vector code, which `std::array::from_fn` does not.
#[inline(always)]
pub fn each(lane: impl Fn(usize) -> f32) -> Line {
    let mut line = [0.0; BLOCK];
    for (l, value) in line.iter_mut().enumerate() {
        *value = lane(l);
    }
    line
}

/// Writes a line over, or adds it to, another.
#[inline(always)]
pub fn put(into: &mut Line, line: &Line, add: bool) {
    if add {
        into.iter_mut().zip(line).for_each(|(a, b)| *a += b);
    } else {
        *into = *line;
    }
}

/// The same, or past the caches.
#[inline(always)]
pub fn write(into: &mut Line, line: &Line, store: Store) {
    match store {
        Store::Stream => stream(into, line),
        Store::Over => put(into, line, false),
        Store::Add => put(into, line, true),
    }
}

/// Writes a line past the caches.
#[inline(always)]
fn stream(into: &mut Line, line: &Line) {
    debug_assert!(into.as_ptr().addr().is_multiple_of(16), "bug: a part of a line is streamed");
    #[cfg(target_arch = "x86_64")]
    for i in (0..BLOCK).step_by(4) {
        use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
        // SAFETY: four floats of each; every processor of this kind has the instruction, and lines of tensors are aligned.
        unsafe { _mm_stream_ps(into.as_mut_ptr().add(i), _mm_loadu_ps(line.as_ptr().add(i))) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        *into = *line;
    }
}

/// How the gradient of an input is stored and which part is wanted.
pub fn wanted(geometry: &Geometry, input: usize) -> &(Layout, Region) {
    geometry.input_gradients[input].as_ref().expect("bug: a stage for a gradient that nobody wants")
}

/// How the gradient of the output is stored.
pub fn output_gradient(geometry: &Geometry) -> &Layout {
    geometry.output_gradient.as_ref().expect("bug: a backward pass without the output's gradient")
}
