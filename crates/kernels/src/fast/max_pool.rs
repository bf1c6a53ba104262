//! Max pooling. Forward keeps each winner's place in its window; the gradient of an input gathers from the windows it won.
//!
//! Always true
//! - Of equal elements the first wins, in the order depth, height, width; a NaN wins over everything, the last one over all.
//! - Padding never wins: windows end where the tensor does, not where its margins do.
//!
//! Twin: `reference/max_pool.rs`.

use super::Fast;
use super::lines::{Line, Row, Rows, Source, Span, Target, View, both, output_gradient, points, wanted};
use super::wide::{Plain, Wide};
use super::window::{Lists, Window};
use crate::{BLOCK, Geometry, Kernel, Make, Mode, Operand, Operands, Pass, Stage, Work};
use convoy_net::{Axis, layers::MaxPool};

impl Fast for MaxPool {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        let pool = Pool::new(self, g);
        let mut stage = Stage {
            pass: Pass::Forward,
            reads: vec![Operand::Input(0)],
            writes: vec![Operand::Output],
            makes: vec![],
            tiles: pool.rows.tiles,
            scratch: pool.source.scratch(pool.seen()) + pool.target.scratch(points(pool.rows.columns())),
            work: Work {
                flops: (pool.rows.region.len() * pool.volume()) as f64,
                bytes: 4.0 * (g.region.len() + g.inputs[0].layout.stored.len()) as f64,
            },
        };
        if g.mode == Mode::Train {
            let bytes = pool.places();
            stage.writes.push(Operand::Internal(0));
            stage.makes.push(Make::Internal { number: 0, bytes });
            stage.work.bytes += bytes as f64;
        }
        vec![stage]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        if g.input_gradients[0].is_none() {
            return vec![];
        }
        let gradient = InputGradient::new(self, g);
        let pool = &gradient.pool;
        vec![Stage {
            pass: Pass::InputGradient(0),
            reads: vec![Operand::OutputGradient, Operand::Internal(0)],
            writes: vec![Operand::InputGradient(0)],
            makes: vec![],
            tiles: gradient.rows.tiles,
            scratch: gradient.source.scratch(gradient.seen())
                + gradient.target.scratch(points(gradient.rows.columns())),
            work: Work {
                flops: (g.region.len() * pool.volume()) as f64,
                bytes: 4.0 * (g.region.len() + gradient.rows.region.len()) as f64 + pool.places() as f64,
            },
        }]
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Box::new(Wide(Pool::new(self, g))),
            Pass::InputGradient(0) => Box::new(Wide(InputGradient::new(self, g))),
            _ => unreachable!("bug: max pooling has no {pass:?}"),
        }
    }
}

/// A winner's place in its window: a byte, or four for windows of more than 256.
trait Place: Copy {
    fn of(place: u32) -> Self;
    fn is(self, place: u32) -> bool;
}

impl Place for u8 {
    #[inline(always)]
    fn of(place: u32) -> u8 {
        place as u8
    }
    #[inline(always)]
    fn is(self, place: u32) -> bool {
        self == place as u8
    }
}

impl Place for u32 {
    #[inline(always)]
    fn of(place: u32) -> u32 {
        place
    }
    #[inline(always)]
    fn is(self, place: u32) -> bool {
        self == place
    }
}

/// The forward pass.
struct Pool {
    windows: [Window; 3],
    source: Source,
    target: Target,
    rows: Rows,
    /// For each column, the place among the columns seen and the number of every tap that lies inside.
    taps: Lists<(usize, usize)>,
    keep: bool,
}

impl Pool {
    fn new(layer: &MaxPool, g: &Geometry) -> Pool {
        let windows = Window::all(&layer.windows, g.inputs[0].shape);
        let columns = g.region.range(Axis::Width);
        let (w, seen) = (windows[2], seen(&windows[2], columns));
        let place = move |o, tap: usize| (w.start(o) + tap as isize * w.dilation - seen.0) as usize;
        Pool {
            windows,
            taps: Lists::new((columns.0..columns.1).map(|o| w.taps(o).map(move |tap| (place(o, tap), tap)))),
            source: Source::new(&g.inputs[0].layout, g.region.range(Axis::Channel)),
            target: Target::output(g),
            rows: Rows::new(&g.region, 1 + windows.iter().map(|w| w.stride as usize).product::<usize>()),
            keep: g.mode == Mode::Train,
        }
    }

    /// Elements of a window.
    fn volume(&self) -> usize {
        self.windows.iter().map(|w| w.kernel).product()
    }

    /// Bytes of all winners' places.
    fn places(&self) -> usize {
        let lanes = self.rows.count() * points(self.rows.columns()) * BLOCK;
        lanes * if self.volume() <= 256 { 1 } else { 4 }
    }

    /// Input columns that the region's windows look at.
    fn columns(&self) -> Span {
        seen(&self.windows[2], self.rows.columns())
    }

    /// Most points that a row of the output looks at.
    fn seen(&self) -> usize {
        let extent = |w: &Window| ((w.kernel as isize - 1) * w.dilation + 1).min(w.input) as usize;
        extent(&self.windows[0]) * extent(&self.windows[1]) * points(self.columns())
    }

    #[inline(always)]
    fn tile<P: Place>(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let x = operands.floats(Operand::Input(0));
        let (seen, filled) = scratch.split_at_mut(self.source.scratch(self.seen()));
        let columns = self.rows.columns();
        for row in self.rows.of(tile) {
            let space = [self.windows[0].span(row.d), self.windows[1].span(row.h), self.columns()];
            let view = self.source.view(x, row.n, row.block, space, seen);
            let mut places: &mut [[P; BLOCK]] = &mut [];
            if self.keep {
                // SAFETY: places lie row by row, and rows are this tile's own.
                places = unsafe { &mut *places_of_row(operands, row.number, points(columns)) };
            }
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                self.row(row, view, space[2], self.target.open(operands, row, columns, filled), places);
                self.target.close(operands, row, columns, filled);
            }
        }
    }

    /// One row of the output; `places` may be empty.
    #[inline(always)]
    fn row<P: Place>(&self, row: Row, view: View, seen: Span, lines: &mut [Line], places: &mut [[P; BLOCK]]) {
        let [wd, wh, ww] = self.windows;
        let (deep, high) = (wd.taps(row.d), wh.taps(row.h));
        for (i, line) in lines.iter_mut().enumerate() {
            let taps = self.taps.of(i);
            let first = (deep.start * wh.kernel + high.start) * ww.kernel + taps.first().map_or(0, |t| t.1);
            let (mut best, mut place) = ([f32::NEG_INFINITY; BLOCK], [first as u32; BLOCK]);
            for kd in deep.clone() {
                for kh in high.clone() {
                    let d = wd.start(row.d) + kd as isize * wd.dilation;
                    let h = wh.start(row.h) + kh as isize * wh.dilation;
                    let inputs = view.row(d, h, seen);
                    for &(at, kw) in taps {
                        better(&inputs[at], ((kd * wh.kernel + kh) * ww.kernel + kw) as u32, &mut best, &mut place);
                    }
                }
            }
            *line = best;
            if let Some(kept) = places.get_mut(i) {
                *kept = place.map(P::of);
            }
        }
    }
}

/// The input columns from the first to past the last that windows of outputs `columns` look at.
fn seen(window: &Window, columns: Span) -> Span {
    let end = window.start(columns.1 - 1) + (window.kernel as isize - 1) * window.dilation + 1;
    both((window.start(columns.0), end), (0, window.input))
}

#[inline(always)]
fn better(line: &Line, here: u32, best: &mut Line, place: &mut [u32; BLOCK]) {
    for l in 0..BLOCK {
        let wins = (line[l] > best[l]) | line[l].is_nan();
        best[l] = if wins { line[l] } else { best[l] };
        place[l] = if wins { here } else { place[l] };
    }
}

impl Plain for Pool {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        if self.volume() <= 256 {
            self.tile::<u8>(tile, operands, scratch);
        } else {
            self.tile::<u32>(tile, operands, scratch);
        }
    }
}

/// The winners' places of one row.
fn places_of_row<P: Place>(operands: &Operands, row: usize, points: usize) -> *mut [[P; BLOCK]] {
    let slot = operands.slot(Operand::Internal(0));
    assert!((row + 1) * points * size_of::<[P; BLOCK]>() <= slot.bytes, "bug: no places for row {row}");
    std::ptr::slice_from_raw_parts_mut((slot.data as *mut [P; BLOCK]).wrapping_add(row * points), points)
}

/// Rows of outputs that are looked at together: as many as most windows over a row of inputs begin in.
const ROWS: usize = 4;

/// The gradient of the input.
struct InputGradient {
    pool: Pool,
    source: Source,
    target: Target,
    rows: Rows,
    /// Along each axis of space, for each input: the outputs whose windows lie over it, counted from the region's first, and the taps.
    over: [Lists<(usize, usize)>; 3],
}

impl InputGradient {
    fn new(layer: &MaxPool, g: &Geometry) -> InputGradient {
        let (_, region) = wanted(g, 0);
        assert_eq!(
            region.range(Axis::Channel),
            g.region.range(Axis::Channel),
            "bug: max pooling computes gradients of other channels than it computed"
        );
        let pool = Pool::new(layer, g);
        let over = [0, 1, 2].map(|space| {
            let (window, axis) = (pool.windows[space], Axis::SPACE[space]);
            let (outputs, inputs) = (pool.rows.region.range(axis), region.range(axis));
            let over = move |i| window.over(i, outputs).map(move |(o, tap)| ((o - outputs.0) as usize, tap));
            Lists::new((inputs.0..inputs.1).map(over))
        });
        InputGradient {
            pool,
            over,
            source: Source::new(output_gradient(g), g.region.range(Axis::Channel)),
            target: Target::input_gradient(g, 0),
            rows: Rows::new(region, 2),
        }
    }

    /// The outputs along an axis of space (0, 1, 2) that were computed here.
    fn outputs(&self, space: usize) -> Span {
        self.pool.rows.region.range(Axis::SPACE[space])
    }

    /// Most points of the output that a row of the input lies under.
    fn seen(&self) -> usize {
        let under = |i: usize| self.pool.windows[i].kernel.min(points(self.outputs(i)));
        under(0) * under(1) * points(self.outputs(2))
    }

    #[inline(always)]
    fn tile<P: Place>(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        let dy = operands.floats(Operand::OutputGradient);
        let (seen, filled) = scratch.split_at_mut(self.source.scratch(self.seen()));
        let (samples, columns) = (self.pool.rows.region.range(Axis::Sample), self.rows.columns());
        for row in self.rows.of(tile) {
            let mut over = [self.over(0, row.d), self.over(1, row.h)];
            if row.n < samples.0 || row.n >= samples.1 {
                over[0] = &[];
            }
            let space = [self.span(0, over[0]), self.span(1, over[1]), self.outputs(2)];
            let view = self.source.view(dy, row.n, row.block, space, seen);
            // SAFETY: `Rows` gives each row to one tile.
            unsafe {
                let lines = self.target.open(operands, row, columns, filled);
                self.row::<P>(operands, row, view, over, lines);
                self.target.close(operands, row, columns, filled);
            }
        }
    }

    /// The outputs whose windows lie over input `i` along an axis of space.
    #[inline(always)]
    fn over(&self, space: usize, i: isize) -> &[(usize, usize)] {
        self.over[space].of((i - self.rows.region.range(Axis::SPACE[space]).0) as usize)
    }

    /// From the first to past the last of them.
    #[inline(always)]
    fn span(&self, space: usize, over: &[(usize, usize)]) -> Span {
        let start = self.outputs(space).0;
        match (over.first(), over.last()) {
            (Some(first), Some(last)) => (start + first.0 as isize, start + last.0 as isize + 1),
            _ => (0, 0),
        }
    }

    /// One row of the input's gradient from the outputs whose windows lie over it along depth and height, some rows of these at a time.
    #[inline(always)]
    fn row<P: Place>(
        &self,
        operands: &Operands,
        row: Row,
        view: View,
        over: [&[(usize, usize)]; 2],
        lines: &mut [Line],
    ) {
        let [_, wh, ww] = self.pool.windows;
        let r = &self.pool.rows;
        let [_, _, depth, height, width] = r.region.shape().0;
        let columns = self.outputs(2);
        let mut over = over[0].iter().flat_map(|&(d, kd)| over[1].iter().map(move |&(h, kh)| (d, kd, h, kh)));
        let mut held = self.target.add;
        loop {
            let (mut rows, mut count) = ([(&[] as &[Line], &[] as &[[P; BLOCK]], 0); ROWS], 0);
            for (into, (d, kd, h, kh)) in rows.iter_mut().zip(&mut over) {
                let number = (row.n - r.region.start[0]) as usize * depth + d;
                let number = (number * height + h) * r.blocks + row.block;
                // SAFETY: forward, which wrote the places, is over; all tiles only read them.
                let places = unsafe { &*places_of_row::<P>(operands, number, width) };
                let [d, h] = [(d, 2), (h, 3)].map(|(at, axis)| r.region.start[axis] + at as isize);
                *into = (view.row(d, h, columns), places, (kd * wh.kernel + kh) * ww.kernel);
                count += 1;
            }
            if let (Some(over), 1, false) = (self.over[2].single(), count, held) {
                // One window over each: nothing to search for, nothing to add up.
                let (dy, places, first) = rows[0];
                for (line, &(at, kw)) in lines.iter_mut().zip(over) {
                    let mut sum = [0.0; BLOCK];
                    won(&dy[at], &places[at], (first + kw) as u32, &mut sum);
                    *line = sum;
                }
                return;
            }
            for (i, line) in lines.iter_mut().enumerate() {
                let mut sum = if held { *line } else { [0.0; BLOCK] };
                for (dy, places, first) in &rows[..count] {
                    for &(at, kw) in self.over[2].of(i) {
                        won(&dy[at], &places[at], (first + kw) as u32, &mut sum);
                    }
                }
                *line = sum;
            }
            held = true;
            if count < ROWS {
                return;
            }
        }
    }
}

/// Adds the gradients of the outputs that this place won.
#[inline(always)]
fn won<P: Place>(dy: &Line, places: &[P; BLOCK], here: u32, sum: &mut Line) {
    for l in 0..BLOCK {
        // A mask of bits rather than a choice: this becomes vector code.
        let mask = 0u32.wrapping_sub(places[l].is(here) as u32);
        sum[l] += f32::from_bits(dy[l].to_bits() & mask);
    }
}

impl Plain for InputGradient {
    #[inline(always)]
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        if self.pool.volume() <= 256 {
            self.tile::<u8>(tile, operands, scratch);
        } else {
            self.tile::<u32>(tile, operands, scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast::window::random;
    use crate::twin::{Problem, check, compare, halves};
    use convoy_net::{Kind, Operation, Shape, layers::Windows};

    /// Random windows over random shapes of one, two and three dimensions.
    fn problem(seed: u64) -> Option<Problem> {
        let (windows, shape, mut numbers) = random(seed, 2);
        let layer = MaxPool { windows, ceil: numbers.below(2) == 1 };
        layer.infer(&[shape]).ok()?;
        let (image, extra, accumulate) = (numbers.below(3) == 0, numbers.below(3), numbers.below(3) == 0);
        Some(Problem { seed, exact: true, image, extra, accumulate, ..Problem::new(Kind::MaxPool(layer), &[shape]) })
    }

    #[test]
    fn agrees_with_its_reference() {
        let problems: Vec<Problem> = (0..150).filter_map(problem).collect();
        assert!(problems.len() > 60);
        problems.iter().for_each(check);
        problems.iter().step_by(4).for_each(halves);
    }

    #[test]
    fn large_windows_keep_wide_places() {
        let layer = MaxPool { ceil: true, ..MaxPool::new(&[7, 7, 7]) };
        check(&Problem { exact: true, ..Problem::new(Kind::MaxPool(layer), &[Shape([1, 17, 9, 10, 15])]) });
    }

    /// What is not a number is seen in the output, and gets the gradient.
    #[test]
    fn nan_wins() {
        let layer = MaxPool { windows: Windows { stride: vec![1, 1], ..Windows::new(&[2, 3]) }, ceil: false };
        let problem = Problem::new(Kind::MaxPool(layer), &[Shape([1, 20, 1, 6, 7])]);
        let mut values = problem.values();
        values.inputs[0].data.iter_mut().step_by(11).for_each(|x| *x = f64::NAN);
        let (fast, reference) = (problem.fast(&values), problem.reference(&values));
        assert!(reference.output.data.iter().any(|y| y.is_nan()));
        for (fast, reference) in fast.output.data.iter().zip(&reference.output.data) {
            assert!(fast == reference || fast.is_nan() && reference.is_nan(), "{fast}, not {reference}");
        }
        let (fast, reference) = (fast.gradients.unwrap(), reference.gradients.unwrap());
        compare(&problem, "input gradient", &fast.inputs[0].data, &reference.inputs[0].data);
    }

    /// A byte for each element of the output, filler included; four where a window has more than 256 elements.
    #[test]
    fn places_are_bytes() {
        let shape = Shape([3, 20, 9, 17, 20]);
        for (window, stride, bytes) in [([1, 2, 2], 2, 1), ([1, 3, 3], 1, 1), ([1, 16, 16], 4, 1), ([2, 12, 12], 3, 4)]
        {
            let windows = Windows { stride: vec![stride; 3], ..Windows::new(&window) };
            let layer = MaxPool { windows, ceil: true };
            let problem = Problem::new(Kind::MaxPool(layer.clone()), &[shape]);
            let [samples, _, depth, height, width] = problem.output().0;
            let elements = samples * 2 * BLOCK * depth * height * width;
            let kept = layer.forward(&problem.geometry()).into_iter().flat_map(|stage| stage.makes);
            assert_eq!(kept.collect::<Vec<_>>(), [Make::Internal { number: 0, bytes: bytes * elements }], "{window:?}");
        }
    }

    #[test]
    fn evaluation_keeps_nothing() {
        let shape = Shape([2, 20, 1, 9, 9]);
        let problem = Problem { mode: Mode::Evaluate, ..Problem::new(Kind::MaxPool(MaxPool::new(&[2, 2])), &[shape]) };
        check(&Problem { exact: true, ..problem.clone() });
        let stages = MaxPool::new(&[2, 2]).forward(&problem.geometry());
        assert_eq!(stages[0].makes, []);
    }
}
