//! The judge: runs a layer's fast stages as an engine would, on awkward memory, and compares with its reference twin.
//!
//! A [`Problem`] is a layer, its input shapes and a seed. Memory is poisoned with NaN before use, margins are wider than
//! needed and guards lie around every buffer, so that a kernel that reads what it should not, or writes outside its region, is
//! caught. Tiles run in shuffled orders.
//!
//! Every stage is run again in other ways, on several threads and on every instruction set that this processor has: with the same
//! bits.

use crate::fast::isa::{self, Set};
use crate::fast::norm::COLUMNS;
use crate::fast::strips::Strips;
use crate::fast::{self, fold};
use crate::reference::{self, Array, Call, Gradients};
use crate::{Geometry, Kernel, Layout, Make, Mode, Moment, Operand, Operands, Pass, Slot, Stage, Tensor, Winograd};
use convoy_net::{AXES, Axis, Edge, Init, Kind, Region, Role, Shape};
use std::collections::HashMap;
use std::sync::Barrier;
use std::thread;

/// A layer to judge.
#[derive(Clone, Debug)]
pub struct Problem {
    pub kind: Kind,
    pub inputs: Vec<Shape>,
    pub mode: Mode,
    pub seed: u64,
    /// Small whole numbers as values: sums are exact, so that fast and reference must agree to the bit.
    pub exact: bool,
    /// Largest allowed difference, relative to the largest element of the reference.
    pub tolerance: f64,
    /// Inputs stored as narrow images.
    pub image: bool,
    /// Points of margin beyond what is needed, on every side of space.
    pub extra: usize,
    /// Gradients of inputs are added to what is there.
    pub accumulate: bool,
    pub winograd: Winograd,
}

impl Problem {
    pub fn new(kind: Kind, inputs: &[Shape]) -> Problem {
        let inputs = inputs.to_vec();
        Problem {
            kind,
            inputs,
            mode: Mode::Train,
            seed: 1,
            exact: false,
            tolerance: 1e-5,
            image: false,
            extra: 1,
            accumulate: false,
            winograd: Winograd::Off,
        }
    }
}

/// What gradients hold before others are added.
const BEFORE: f64 = 1.0;

/// Numbers from a seed.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    /// Between −1 and 1, or a whole number from −3 to 3; exactly representable in single precision.
    pub fn value(&mut self, exact: bool) -> f64 {
        if exact { self.below(7) as f64 - 3.0 } else { (self.next() % 65536) as f64 / 32768.0 - 1.0 }
    }
}

/// What lies around every memory: a NaN that nothing computes.
const GUARD: u32 = 0x7fab_cdef;
/// Floats of it on each side, at least: four lines.
const GUARDS: usize = 64;

/// Floats that start as NaN, aligned to 64 bytes, between guards.
pub struct Memory {
    all: Vec<f32>,
    /// Guards before the first float.
    before: usize,
    floats: usize,
}

impl Memory {
    pub fn poisoned(floats: usize) -> Memory {
        let mut all = vec![f32::from_bits(GUARD); GUARDS + 15 + floats + GUARDS];
        let before = all.as_ptr().align_offset(64) + GUARDS;
        all[before..][..floats].fill(f32::NAN);
        Memory { all, before, floats }
    }
    /// Panics if a guard was written.
    pub fn assert_guarded(&self, what: &str) {
        let guards = self.all[..self.before].iter().chain(&self.all[self.before + self.floats..]);
        let written = guards.filter(|v| v.to_bits() != GUARD).count();
        assert_eq!(written, 0, "{what}: floats outside were written");
    }
    pub fn slice(&self) -> &[f32] {
        &self.all[self.before..][..self.floats]
    }
    pub fn slice_mut(&mut self) -> &mut [f32] {
        &mut self.all[self.before..][..self.floats]
    }
    pub fn slot(&mut self) -> Slot {
        Slot { data: self.slice_mut().as_mut_ptr() as *mut u8, bytes: self.floats * 4 }
    }
}

/// Per axis, over all inputs: what must be stored around `own` so that `map` finds it.
fn widen(region: Region, extra: usize) -> Region {
    Axis::SPACE.iter().fold(region, |r, &a| {
        let (start, end) = r.range(a);
        r.with(a, start - extra as isize, end + extra as isize)
    })
}

/// An array into a stored region: zeros (or the other end, along periodic axes) in the margins, zero filler.
pub fn store(array: &Array, layout: &Layout, periodic: [bool; AXES]) -> Memory {
    let mut memory = Memory::poisoned(layout.len);
    memory.slice_mut().fill(0.0);
    let s = &layout.stored;
    for n in s.start[0]..s.end[0] {
        for c in s.start[1]..s.end[1] {
            for d in s.start[2]..s.end[2] {
                for h in s.start[3]..s.end[3] {
                    for w in s.start[4]..s.end[4] {
                        let at = [n, c, d, h, w];
                        let from = std::array::from_fn(|a| {
                            if periodic[a] { at[a].rem_euclid(array.shape.0[a] as isize) } else { at[a] }
                        });
                        memory.slice_mut()[layout.index(n, c, d, h, w)] = array.get(from) as f32;
                    }
                }
            }
        }
    }
    memory
}

/// What a stored region holds of `region`, dense.
pub fn fetch(memory: &Memory, layout: &Layout, region: &Region) -> Array {
    let mut array = Array::zeros(region.shape());
    for at in array.indices() {
        let g: [isize; 5] = std::array::from_fn(|a| at[a] as isize + region.start[a]);
        let i = array.index(at);
        array.data[i] = memory.slice()[layout.index(g[0], g[1], g[2], g[3], g[4])] as f64;
    }
    array
}

/// What came out of a layer.
pub struct Outcome {
    pub output: Array,
    /// Those of the output, if forward made them.
    pub sums: Option<Vec<f64>>,
    pub gradients: Option<Gradients>,
    /// All parameters after the pass, in PyTorch's order.
    pub parameters: Vec<Vec<f64>>,
}

/// The values a problem is about.
pub struct Values {
    pub inputs: Vec<Array>,
    pub parameters: Vec<Vec<f64>>,
    pub dy: Array,
}

impl Problem {
    pub fn output(&self) -> Shape {
        self.kind.operation().infer(&self.inputs).expect("problems fit")
    }

    pub fn values(&self) -> Values {
        let mut numbers = Numbers::new(self.seed);
        let mut array =
            |shape: Shape| Array { shape, data: (0..shape.len()).map(|_| numbers.value(self.exact)).collect() };
        let inputs = self.inputs.iter().map(|&s| array(s)).collect();
        let dy = array(self.output());
        let parameters = self.kind.operation().parameters(&self.inputs);
        let parameters = parameters.iter().map(|p| {
            let mut values = array(Shape([1, 1, 1, 1, p.len()])).data;
            // Variances and scales stay positive.
            if matches!(p.init, Init::Constant(c) if c > 0.0) {
                values.iter_mut().for_each(|v| *v = v.abs() + 0.5);
            }
            values
        });
        let parameters = parameters.collect();
        Values { inputs, parameters, dy }
    }

    /// What the reference twin is given.
    pub fn call<'a>(&self, values: &'a Values) -> Call<'a> {
        let (inputs, parameters) = (&values.inputs[..], &values.parameters[..]);
        Call { inputs, parameters, mode: self.mode, seed: self.seed, layer: 7, step: 3 }
    }

    pub fn reference(&self, values: &Values) -> Outcome {
        let twin = reference::twin(&self.kind);
        let call = self.call(values);
        let trains = self.mode == Mode::Train;
        Outcome {
            sums: None,
            output: twin.forward(&call),
            gradients: trains.then(|| twin.backward(&call, &values.dy)),
            parameters: if trains { twin.running(&call) } else { values.parameters.clone() },
        }
    }

    /// How one rank would store this layer's tensors.
    pub fn geometry(&self) -> Geometry {
        self.part(Region::whole(self.output()))
    }

    /// How a rank that computes only `own` of the output would store this layer's tensors.
    pub fn part(&self, own: Region) -> Geometry {
        let op = self.kind.operation();
        let output = self.output();
        let mut dy_stored = own;
        let mut inputs = vec![];
        let mut input_gradients = vec![];
        for (i, &shape) in self.inputs.iter().enumerate() {
            let maps = op.maps(&self.inputs, output, i);
            let whole = Region::whole(shape);
            let mut read = Region::EMPTY;
            for (a, map) in maps.iter().enumerate() {
                (read.start[a], read.end[a]) = map.reads((own.start[a], own.end[a]), shape.0[a]);
            }
            // Along a periodic axis all that is read is stored, also what lies beyond the ends.
            let mut inside = whole;
            for (a, _) in maps.iter().enumerate().filter(|(_, map)| map.edge() == Edge::Periodic) {
                (inside.start[a], inside.end[a]) = (read.start[a], read.end[a]);
            }
            let owned = if own == Region::whole(output) { whole } else { inside.intersect(&read) };
            let mut computed = owned;
            let mut reached = Region::EMPTY;
            for (a, map) in maps.iter().enumerate() {
                if map.edge() == Edge::Periodic {
                    (computed.start[a], computed.end[a]) =
                        (owned.start[a].min(read.start[a]), owned.end[a].max(read.end[a]));
                }
                (reached.start[a], reached.end[a]) = map.reaches((computed.start[a], computed.end[a]), output.0[a]);
            }
            dy_stored = dy_stored.hull(&reached);
            let stored = widen(owned.hull(&read), self.extra);
            let layout = if self.image { Layout::image(stored) } else { Layout::blocked(stored) };
            input_gradients.push(Some((Layout::blocked(widen(computed, self.extra)), computed)));
            inputs.push(Tensor { shape, layout });
        }
        Geometry {
            layer: 7,
            mode: self.mode,
            leaves: 8,
            leaf_samples: self.output().samples().div_ceil(8),
            accumulate: vec![self.accumulate; inputs.len()],
            winograd: self.winograd,
            inputs,
            output: Tensor { shape: output, layout: Layout::blocked(widen(own, self.extra)) },
            region: own,
            normed: output.len() / output.channels(),
            summed: false,
            rectified: false,
            output_gradient: Some(Layout::blocked(widen(dy_stored, self.extra))),
            input_gradients,
        }
    }

    /// All stages of the fast twin, in order.
    pub fn stages(&self) -> Vec<Stage> {
        let (twin, g) = (fast::twin(&self.kind), self.geometry());
        let backward = if self.mode == Mode::Train { twin.backward(&g) } else { vec![] };
        twin.forward(&g).into_iter().chain(backward).collect()
    }

    pub fn fast(&self, values: &Values) -> Outcome {
        self.fast_with(values, &self.geometry())
    }

    /// The fast twin on a given geometry: forward, then backward.
    pub fn fast_with(&self, values: &Values, g: &Geometry) -> Outcome {
        let twin = fast::twin(&self.kind);
        let op = self.kind.operation();
        let mut memory: HashMap<Operand, Memory> = HashMap::new();
        for (i, array) in values.inputs.iter().enumerate() {
            let maps = op.maps(&self.inputs, g.output.shape, i);
            memory
                .insert(Operand::Input(i), store(array, &g.inputs[i].layout, maps.map(|m| m.edge() == Edge::Periodic)));
        }
        for (p, values) in values.parameters.iter().enumerate() {
            let packing = twin.packing(p, g);
            let mut m = Memory::poisoned(packing.len);
            m.slice_mut().fill(0.0);
            packing.places.iter().zip(values).for_each(|(&at, &v)| m.slice_mut()[at as usize] = v as f32);
            memory.insert(Operand::Parameter(p), m);
            memory.insert(Operand::ParameterGradient(p), Memory::poisoned(packing.len));
        }
        memory.insert(Operand::Output, Memory::poisoned(g.output.layout.len));
        let strips = Strips::new(g.output.shape, &g.region, 1);
        let sums = g.region.size(Axis::Sample) * strips.count * strips.blocks * COLUMNS;
        memory.insert(Operand::OutputSums, Memory::poisoned(2 * sums));
        let forward = twin.forward(g);
        run_all(&mut memory, &forward, g, self.seed, &|pass| twin.prepare(pass, g));
        let made = forward.iter().any(|stage| stage.writes.contains(&Operand::OutputSums));
        let sums = made.then(|| {
            let (pairs, _) = memory[&Operand::OutputSums].slice().as_chunks::<2>();
            pairs
                .iter()
                .map(|pair| f64::from_bits(u64::from(pair[1].to_bits()) << 32 | u64::from(pair[0].to_bits())))
                .collect()
        });
        let output = &memory[&Operand::Output];
        outside_untouched(output, &g.output.layout, &g.region, f32::NAN, "output");
        let output = fetch(output, &g.output.layout, &g.region);
        let mut gradients = None;
        if self.mode == Mode::Train {
            let dy = g.output_gradient.as_ref().expect("training");
            memory.insert(Operand::OutputGradient, store(&values.dy, dy, [false; AXES]));
            let before = |i: usize| if g.accumulate[i] { BEFORE as f32 } else { f32::NAN };
            for (i, gradient) in g.input_gradients.iter().enumerate() {
                if let Some((layout, computed)) = gradient {
                    memory.insert(Operand::InputGradient(i), held(layout, computed, before(i)));
                }
            }
            run_all(&mut memory, &twin.backward(g), g, self.seed, &|pass| twin.prepare(pass, g));
            let inputs = g.input_gradients.iter().enumerate().map(|(i, gradient)| {
                let (layout, computed) = gradient.as_ref().expect("wanted");
                let memory = &memory[&Operand::InputGradient(i)];
                outside_untouched(memory, layout, computed, before(i), "input gradient");
                let mut array = fetch(memory, layout, computed);
                if g.accumulate[i] {
                    array.data.iter_mut().for_each(|v| *v -= BEFORE);
                }
                wrap(array, computed, self.inputs[i])
            });
            let inputs = inputs.collect();
            let parameters = op.parameters(&self.inputs);
            let parameters = parameters.iter().enumerate().map(|(p, parameter)| match parameter.role {
                Role::Trained => unpack(&memory[&Operand::ParameterGradient(p)], &twin.packing(p, g)),
                Role::Running => vec![],
            });
            gradients = Some(Gradients { inputs, parameters: parameters.collect() });
        }
        let parameters = 0..values.parameters.len();
        let parameters = parameters.map(|p| unpack(&memory[&Operand::Parameter(p)], &twin.packing(p, g))).collect();
        Outcome { output, sums, gradients, parameters }
    }
}

/// A parameter in PyTorch's order; filler must be zero.
fn unpack(memory: &Memory, packing: &fast::Packing) -> Vec<f64> {
    let mut filler = vec![true; packing.len];
    packing.places.iter().for_each(|&at| filler[at as usize] = false);
    for (i, _) in filler.iter().enumerate().filter(|(_, f)| **f) {
        assert_eq!(memory.slice()[i], 0.0, "filler of a parameter or its gradient is not zero at {i}");
    }
    packing.places.iter().map(|&at| memory.slice()[at as usize] as f64).collect()
}

/// Adds what lies beyond periodic ends back to where it belongs: the adjoint of wrapping.
fn wrap(array: Array, region: &Region, shape: Shape) -> Array {
    let mut out = Array::zeros(shape);
    for at in array.indices() {
        let to: [usize; 5] =
            std::array::from_fn(|a| (at[a] as isize + region.start[a]).rem_euclid(shape.0[a] as isize) as usize);
        let i = out.index(to);
        out.data[i] += array.data[array.index(at)];
    }
    out
}

/// What a float of a stored tensor is to a region of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A margin, or between rows or samples.
    Outside,
    Element,
    /// Behind the last channel of one of its points.
    Filler,
}

/// What every float of a layout is.
fn places(layout: &Layout, region: &Region) -> Vec<Place> {
    let mut places = vec![Place::Outside; layout.len];
    let s = &layout.stored;
    for n in s.start[0]..s.end[0] {
        for d in s.start[2]..s.end[2] {
            for h in s.start[3]..s.end[3] {
                for w in s.start[4]..s.end[4] {
                    let point = Region { start: [n, s.start[1], d, h, w], end: [n + 1, s.end[1], d + 1, h + 1, w + 1] };
                    if !region.contains(&point) {
                        continue;
                    }
                    for c in 0..layout.blocks * layout.block {
                        let i = layout.offset(n, c / layout.block, d, h, w) + c % layout.block;
                        places[i] = if c < s.size(Axis::Channel) { Place::Element } else { Place::Filler };
                    }
                }
            }
        }
    }
    places
}

/// A gradient that holds `before` already, or nothing (NaN). Filler of what holds something is zero.
pub fn held(layout: &Layout, region: &Region, before: f32) -> Memory {
    let mut memory = Memory::poisoned(layout.len);
    for (value, place) in memory.slice_mut().iter_mut().zip(places(layout, region)) {
        *value = if place == Place::Filler && !before.is_nan() { 0.0 } else { before };
    }
    memory
}

/// All outside the region was `before` and must still be; filler channels inside must be zero.
pub fn outside_untouched(memory: &Memory, layout: &Layout, region: &Region, before: f32, what: &str) {
    for (i, (v, place)) in memory.slice().iter().zip(places(layout, region)).enumerate() {
        match place {
            Place::Outside => {
                assert_eq!(
                    v.to_bits(),
                    before.to_bits(),
                    "{what}: float {i}, outside {region}, was written: {layout:?}"
                )
            }
            Place::Filler => assert_eq!(*v, 0.0, "{what}: float {i}, filler of {region}, is not zero: {layout:?}"),
            Place::Element => {}
        }
    }
}

/// Runs stages in order, tiles of each in shuffled orders; partial sums are folded after the stage that made them.
pub fn run_all(
    memory: &mut HashMap<Operand, Memory>,
    stages: &[Stage],
    g: &Geometry,
    seed: u64,
    prepare: &dyn Fn(Pass) -> Box<dyn Kernel>,
) {
    run_at(memory, stages, g, Moment { seed, step: 3, learning_rate: 0.1 }, prepare)
}

/// As `run_all`, in a given step.
pub fn run_at(
    memory: &mut HashMap<Operand, Memory>,
    stages: &[Stage],
    g: &Geometry,
    moment: Moment,
    prepare: &dyn Fn(Pass) -> Box<dyn Kernel>,
) {
    let mut numbers = Numbers::new(moment.seed + 17);
    for stage in stages {
        for make in &stage.makes {
            let (operand, floats) = match *make {
                Make::Internal { number, bytes } => (Operand::Internal(number), bytes.div_ceil(4)),
                Make::Partial { number, strips, columns } => {
                    (Operand::Partial(number), g.region.size(Axis::Sample) * strips * columns * 2)
                }
            };
            memory.insert(operand, Memory::poisoned(floats));
        }
        run_in_all_ways(memory, stage, moment, &mut numbers, prepare);
        for make in &stage.makes {
            if let Make::Partial { number, strips, columns } = *make {
                let samples = g.region.start[0] as usize..g.region.end[0] as usize;
                let partial = memory.get_mut(&Operand::Partial(number)).expect("made").slot();
                // SAFETY: the memory is a whole number of doubles, aligned to 64 bytes.
                let partial = unsafe { std::slice::from_raw_parts(partial.data as *const f64, partial.bytes / 8) };
                let mut sums = vec![0.0; columns];
                fold::fold(partial, samples, (g.output.shape.samples(), g.leaves), strips, &mut sums);
                let mut m = Memory::poisoned(columns * 2);
                let slot = m.slot();
                // SAFETY: as above.
                unsafe { std::slice::from_raw_parts_mut(slot.data as *mut f64, columns) }.copy_from_slice(&sums);
                memory.insert(Operand::Sum(number), m);
            }
        }
    }
}

/// How the tiles of a stage are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    threads: usize,
    set: Set,
}

/// Operations of a stage that are also done by other instruction sets: without a fused multiply-add a call is made for each, and
/// larger products are compared by tests of their own.
const FEW_FLOPS: f64 = 4e5;

impl Way {
    /// The first is as an engine with one worker would.
    fn all(stage: &Stage) -> Vec<Way> {
        let best = isa::set();
        let threads = (1..=stage.tiles.clamp(1, 3)).map(|threads| Way { threads, set: best });
        let sets = [Set::Avx2, Set::Together, Set::Portable].into_iter();
        let sets = sets.filter(|set| *set < best && stage.work.flops <= FEW_FLOPS);
        threads.chain(sets.map(|set| Way { threads: 1, set })).collect()
    }

    /// Runs tiles, in order on each thread.
    fn run(self, stage: &Stage, kernel: &dyn Kernel, operands: &Operands, tiles: &[usize]) {
        let share = |first: usize| {
            let mut scratch = Memory::poisoned(stage.scratch);
            for &tile in tiles.iter().skip(first).step_by(self.threads) {
                scratch.slice_mut().fill(f32::NAN);
                kernel.run(tile, operands, scratch.slice_mut());
                scratch.assert_guarded("scratch");
            }
        };
        if self.threads == 1 {
            return isa::at_most(self.set, || share(0));
        }
        let (share, together) = (&share, &Barrier::new(self.threads));
        thread::scope(|scope| {
            for first in 0..self.threads {
                scope.spawn(move || {
                    together.wait();
                    isa::at_most(self.set, || share(first));
                });
            }
        });
    }
}

/// Runs a stage in one way after the other from the same memory. All give the same bits, write inside what they write, and leave
/// alone what they only read.
fn run_in_all_ways(
    memory: &mut HashMap<Operand, Memory>,
    stage: &Stage,
    moment: Moment,
    numbers: &mut Numbers,
    prepare: &dyn Fn(Pass) -> Box<dyn Kernel>,
) {
    let mut used: Vec<Operand> = stage.reads.iter().chain(&stage.writes).copied().collect();
    used.sort();
    used.dedup();
    let missing = |o: &Operand| -> ! { panic!("{:?} uses {o:?}, which is not there", stage.pass) };
    let copies = |memory: &HashMap<Operand, Memory>| -> Vec<Vec<f32>> {
        used.iter().map(|o| memory.get(o).unwrap_or_else(|| missing(o)).slice().to_vec()).collect()
    };
    let before = copies(memory);
    let mut first: Option<Vec<Vec<f32>>> = None;
    for way in Way::all(stage) {
        for (operand, before) in used.iter().zip(&before) {
            memory.get_mut(operand).expect("there").slice_mut().copy_from_slice(before);
        }
        let mut order: Vec<usize> = (0..stage.tiles).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, numbers.below(i + 1));
        }
        let kernel = isa::at_most(way.set, || prepare(stage.pass));
        let slots: Vec<(Operand, Slot)> = used.iter().map(|o| (*o, memory.get_mut(o).expect("there").slot())).collect();
        // SAFETY: slots are the operands' own memory, which this stage's tiles alone use: their writes are disjoint.
        let operands = unsafe { Operands::new(&slots, moment) };
        way.run(stage, &*kernel, &operands, &order);
        let after = copies(memory);
        for (i, operand) in used.iter().enumerate() {
            let what = format!("{operand:?} of {:?}, {way:?}", stage.pass);
            memory[operand].assert_guarded(&what);
            if !stage.writes.contains(operand) {
                assert!(same_bits(&before[i], &after[i]), "{what}: written, though it is only read");
            } else if let Some(first) = &first {
                let same = if way.set == isa::set() { same_bits } else { same_values };
                assert!(same(&first[i], &after[i]), "{what}: not the bits of one thread, of {} tiles", stage.tiles);
            }
        }
        first.get_or_insert(after);
    }
    for (operand, first) in used.iter().zip(first.iter().flatten()) {
        memory.get_mut(operand).expect("there").slice_mut().copy_from_slice(first);
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The same, but for the signs of zeros and what is in a NaN, which are nobody's.
fn same_values(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a == b || a.is_nan() && b.is_nan())
}

/// Fast and reference agree.
pub fn check(problem: &Problem) {
    let values = problem.values();
    let (fast, reference) = (problem.fast(&values), problem.reference(&values));
    compare(problem, "output", &fast.output.data, &reference.output.data);
    for (p, (a, b)) in fast.parameters.iter().zip(&reference.parameters).enumerate() {
        compare(problem, &format!("parameter {p} afterwards"), a, b);
    }
    if let (Some(fast), Some(reference)) = (fast.gradients, reference.gradients) {
        for (i, (a, b)) in fast.inputs.iter().zip(&reference.inputs).enumerate() {
            compare(problem, &format!("gradient of input {i}"), &a.data, &b.data);
        }
        for (p, (a, b)) in fast.parameters.iter().zip(&reference.parameters).enumerate() {
            compare(problem, &format!("gradient of parameter {p}"), a, b);
        }
    }
}

/// Two halves of the output, computed apart, have the bits of the whole, and their gradients sum up to the whole's. Along
/// every axis that can be cut, but not along channels if there are parameters; only for layers whose output needs no sums.
pub fn halves(problem: &Problem) {
    let parameters = problem.kind.operation().parameters(&problem.inputs);
    let axes = Axis::ALL.into_iter().filter(|&axis| axis != Axis::Channel || parameters.is_empty());
    halves_along(problem, &axes.collect::<Vec<_>>());
}

/// The same along some axes.
pub fn halves_along(problem: &Problem, axes: &[Axis]) {
    let values = problem.values();
    let whole = problem.fast(&values);
    let output = problem.output();
    for &axis in axes.iter().filter(|&&a| output.along(a) > 1) {
        let (middle, end) = ((output.along(axis) / 2) as isize, output.along(axis) as isize);
        let mut summed: Option<Gradients> = None;
        for own in [(0, middle), (middle, end)].map(|(a, b)| Region::whole(output).with(axis, a, b)) {
            let mut dy = Array::zeros(output);
            let part = Array::zeros(own.shape());
            let places = part.indices().map(|at| std::array::from_fn(|a| at[a] + own.start[a] as usize));
            let places: Vec<[usize; 5]> = places.collect();
            places.iter().for_each(|&at| dy[at] = values.dy[at]);
            let values = Values { inputs: values.inputs.clone(), parameters: values.parameters.clone(), dy };
            let outcome = problem.fast_with(&values, &problem.part(own));
            for (value, &at) in outcome.output.data.iter().zip(&places) {
                let whole = whole.output[at];
                assert_eq!(value.to_bits(), whole.to_bits(), "{axis:?}, at {at:?}: {value}, not {whole}\n{problem:#?}");
            }
            match (&mut summed, outcome.gradients) {
                (Some(sum), Some(more)) => {
                    let add = |a: &mut Vec<f64>, b: &Vec<f64>| a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
                    sum.inputs.iter_mut().zip(&more.inputs).for_each(|(a, b)| add(&mut a.data, &b.data));
                    sum.parameters.iter_mut().zip(&more.parameters).for_each(|(a, b)| add(a, b));
                }
                (sum, more) => *sum = more,
            }
        }
        if let (Some(summed), Some(whole)) = (summed, &whole.gradients) {
            for (i, (a, b)) in summed.inputs.iter().zip(&whole.inputs).enumerate() {
                compare(problem, &format!("{axis:?}: gradient of input {i}"), &a.data, &b.data);
            }
            for (p, (a, b)) in summed.parameters.iter().zip(&whole.parameters).enumerate() {
                compare(problem, &format!("{axis:?}: gradient of parameter {p}"), a, b);
            }
        }
    }
}

/// Largest difference against the largest element of the reference.
pub fn compare(problem: &Problem, what: &str, fast: &[f64], reference: &[f64]) {
    assert_eq!(fast.len(), reference.len(), "{what}: sizes differ\n{problem:#?}");
    let scale = reference.iter().fold(1e-30f64, |m, v| m.max(v.abs()));
    let limit = if problem.exact { 0.0 } else { problem.tolerance * scale };
    for (i, (a, b)) in fast.iter().zip(reference).enumerate() {
        assert!(
            a == b || (a - b).abs() <= limit,
            "{what}, element {i}: fast {a}, reference {b}, limit {limit:e}\n{problem:#?}"
        );
    }
}
