//! How fast the convolutions of a network are, per shape and pass, against the peak measured before.
//!
//! ```text
//! cargo run --release -p convoy-kernels --example convolutions -- \
//!     resnet50 16 [threads] [off|2x2|4x4] [only shapes with this in their line] [only this pass: 0, 1 or 2] [count]
//! ```
//!
//! Percent of all threads' peak of fused multiply-adds, counted with the operations of the definition: Winograd may pass 100. Times are
//! processor time of the threads (each tile's least of several runs), so that a shared machine disturbs little; what threads
//! lose to waiting does not show. With `count` every tile runs once and nothing is timed: for `scripts/instructions`.

use convoy_kernels::{
    Geometry, Kernel, Layout, Make, Mode, Moment, Operand, Operands, Pass, Slot, Stage, Tensor, Winograd, fast,
    fma_peak_gflops,
};
use convoy_net::{Axis, Kind, LayerId, Region, Shape, zoo};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |i: usize, default: &str| arguments.get(i).cloned().unwrap_or(default.to_string());
    let number = |i: usize, default: &str| argument(i, default).parse().expect("a number");
    let (name, batch, threads): (_, usize, usize) = (argument(0, "resnet50"), number(1, "16"), number(2, "1"));
    let winograd = match argument(3, "off").as_str() {
        "4x4" => Winograd::Four,
        "2x2" => Winograd::Two,
        _ => Winograd::Off,
    };
    let (only, pass) = (argument(4, ""), argument(5, "").parse().ok());
    let network = zoo::model(&name, Default::default()).expect("a network of the zoo");
    let shapes = network.shapes(batch).expect("shapes fit");

    let counts = argument(6, "") == "count";
    let most = if counts { 1 } else { 15 };
    // Others may be at work: the best of many.
    let rounds = if counts { 0 } else { 5 };
    let peak = (0..rounds).map(|_| fma_peak_gflops(threads)).fold(0.0, f64::max) * 1e9;
    let mut distinct: Vec<(Kind, Shape, bool, usize)> = vec![];
    for (i, layer) in network.layers.iter().enumerate() {
        let kind = &layer.kind;
        if !matches!(kind, Kind::Convolution(_) | Kind::FullyConnected(_) | Kind::TransposedConvolution(_)) {
            continue;
        }
        let input = network.input_shapes(LayerId(i), &shapes)[0];
        let first = matches!(network.layers[layer.inputs[0].0].kind, Kind::Input(_));
        match distinct.iter_mut().find(|(k, s, _, _)| k == kind && *s == input) {
            Some((_, _, _, count)) => *count += 1,
            None => distinct.push((kind.clone(), input, first, 1)),
        }
    }
    println!("{name}, batch {batch}, {threads} threads, winograd {winograd:?}, peak {:.1} GFLOP/s", peak / 1e9);
    println!("{:44} {:>5} | percent of peak, milliseconds: forward, input gradient, weight gradient", "layer", "times");
    let mut sums = [[0.0; 2]; 3];
    let mut operations = 0.0;
    for (kind, input, first, count) in distinct {
        let title = title(&kind, input);
        if !title.contains(&only) {
            continue;
        }
        let cells = measure(&kind, input, first, (threads, most), winograd, pass);
        let flops = kind.operation().flops(&[input], kind.operation().infer(&[input]).expect("fits")) as f64;
        print!("{title:44} {count:5} |");
        for (pass, cell) in cells.iter().enumerate() {
            match cell {
                None => print!("      -               "),
                Some((seconds, tiles)) => {
                    print!(" {:4.0} {:8.2} ({:4} tiles)", 100.0 * flops / seconds / peak, seconds * 1e3, tiles);
                    sums[pass][0] += flops / peak * count as f64;
                    operations += flops;
                    sums[pass][1] += seconds * count as f64;
                }
            }
        }
        println!();
    }
    print!("{:44} {:5} |", "all", "");
    sums.iter().for_each(|[best, real]| print!(" {:4.0} {:8.2}             ", 100.0 * best / real, real * 1e3));
    println!();
    if counts {
        println!("{operations} operations");
    }
}

fn title(kind: &Kind, input: Shape) -> String {
    let [_, c, d, h, w] = input.0;
    let size = if d > 1 { format!("{d}x{h}x{w}") } else { format!("{h}x{w}") };
    match kind {
        Kind::Convolution(l) => {
            let extra = if l.groups > 1 { format!(" groups {}", l.groups) } else { String::new() };
            format!("{c}->{} {size} kernel {:?} stride {}{extra}", l.filters, l.windows.kernel, l.windows.along(2).1)
        }
        Kind::TransposedConvolution(l) => format!("{c}->{} {size} transposed {:?}", l.filters, l.windows.kernel),
        Kind::FullyConnected(l) => format!("{c}x{size}->{} fully connected", l.outputs),
        _ => unreachable!("only windowed layers are measured"),
    }
}

/// Per pass: least processor seconds of all its stages, and tiles of the main one.
fn measure(
    kind: &Kind,
    input: Shape,
    first: bool,
    (threads, most): (usize, usize),
    winograd: Winograd,
    only: Option<usize>,
) -> [Option<(f64, usize)>; 3] {
    let geometry = geometry(kind, input, first, winograd);
    let twin = fast::twin(kind);
    let mut memory: HashMap<Operand, Memory> = HashMap::new();
    memory.insert(Operand::Input(0), Memory::new(geometry.inputs[0].layout.len));
    memory.insert(Operand::Output, Memory::new(geometry.output.layout.len));
    let gradient = geometry.output_gradient.as_ref().expect("training");
    memory.insert(Operand::OutputGradient, Memory::new(gradient.len));
    if let Some((layout, _)) = &geometry.input_gradients[0] {
        memory.insert(Operand::InputGradient(0), Memory::new(layout.len));
    }
    for (p, _) in kind.operation().parameters(&[input]).iter().enumerate() {
        let len = twin.packing(p, &geometry).len;
        memory.insert(Operand::Parameter(p), Memory::new(len));
        memory.insert(Operand::ParameterGradient(p), Memory::new(len));
    }
    // Stages that bring weights or inputs into another form belong to the pass that follows.
    let (forward, backward) = (twin.forward(&geometry), twin.backward(&geometry));
    let weights = backward.iter().rposition(|s| matches!(s.pass, Pass::WeightGradient(_))).expect("weights");
    let passes = backward.into_iter().enumerate().map(|(i, stage)| (if i <= weights { 2 } else { 1 }, stage));
    let stages: Vec<(usize, Stage)> = forward.into_iter().map(|stage| (0, stage)).chain(passes).collect();
    let mut cells: [Option<(f64, usize)>; 3] = [None; 3];
    for (cell, stage) in &stages {
        let cell = *cell;
        if stage.pass == Pass::WeightGradient(1) || only.is_some_and(|only| only != cell) {
            continue;
        }
        for make in &stage.makes {
            if let Make::Internal { number, bytes } = make {
                memory.insert(Operand::Internal(*number), Memory::new(bytes / 4));
            }
        }
        let used = stage.reads.iter().chain(&stage.writes);
        let slots: Vec<(Operand, Slot)> = used.map(|o| (*o, memory.get_mut(o).expect("made before").slot())).collect();
        // SAFETY: the slots are the operands' own memory; tiles write disjoint elements.
        let operands = unsafe { Operands::new(&slots, Moment::default()) };
        let kernel = twin.prepare(stage.pass, &geometry);
        let seconds = time(kernel.as_ref(), stage, &operands, (threads, most));
        let (sum, tiles) = cells[cell].unwrap_or((0.0, 0));
        cells[cell] = Some((sum + seconds, tiles.max(stage.tiles)));
    }
    cells
}

/// One rank's geometry of the whole layer.
fn geometry(kind: &Kind, input: Shape, first: bool, winograd: Winograd) -> Geometry {
    let output = kind.operation().infer(&[input]).expect("fits");
    let maps = kind.operation().maps(&[input], output, 0);
    let (mut read, mut reached) = (Region::EMPTY, Region::EMPTY);
    for (a, map) in maps.iter().enumerate() {
        (read.start[a], read.end[a]) = map.reads((0, output.0[a] as isize), input.0[a]);
        (reached.start[a], reached.end[a]) = map.reaches((0, input.0[a] as isize), output.0[a]);
    }
    let (x, y) = (Region::whole(input), Region::whole(output));
    let stored = x.hull(&read);
    let layout = if first { Layout::image(stored) } else { Layout::blocked(stored) };
    // Outputs have the margin that a 3 x 3 window after them would ask for.
    let margin = |r: Region| Axis::SPACE.iter().skip(1).fold(r, |r, &a| r.with(a, r.range(a).0 - 1, r.range(a).1 + 1));
    Geometry {
        layer: 0,
        mode: Mode::Train,
        leaves: 8,
        leaf_samples: output.samples().div_ceil(8),
        inputs: vec![Tensor { shape: input, layout }],
        output: Tensor { shape: output, layout: Layout::blocked(margin(y)) },
        region: y,
        normed: y.len() / output.channels(),
        summed: false,
        rectified: false,
        output_gradient: Some(Layout::blocked(y.hull(&reached))),
        input_gradients: vec![(!first).then(|| (Layout::blocked(margin(x)), x))],
        accumulate: vec![false],
        winograd,
    }
}

/// Floats aligned to a huge page, with some small numbers in them.
struct Memory {
    data: *mut f32,
    layout: std::alloc::Layout,
}

unsafe extern "C" {
    fn madvise(address: *mut u8, len: usize, advice: i32) -> i32;
    fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
}

impl Memory {
    fn new(floats: usize) -> Memory {
        let layout = std::alloc::Layout::from_size_align(floats * 4 + 4096, 1 << 21).expect("a possible size");
        // SAFETY: the size is not zero; the floats are inside what was allocated.
        unsafe {
            let data = std::alloc::alloc(layout) as *mut f32;
            madvise(data as *mut u8, layout.size(), 14);
            (0..layout.size() / 4).for_each(|i| data.add(i).write((i * 7919 % 127) as f32 / 64.0 - 1.0));
            Memory { data, layout }
        }
    }
    fn slot(&mut self) -> Slot {
        Slot { data: self.data as *mut u8, bytes: self.layout.size() - 4096 }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated so.
        unsafe { std::alloc::dealloc(self.data as *mut u8, self.layout) }
    }
}

/// Processor seconds of this thread so far.
fn processor_seconds() -> f64 {
    let mut time = [0i64; 2];
    // SAFETY: CLOCK_THREAD_CPUTIME_ID writes seconds and nanoseconds.
    unsafe { clock_gettime(3, &mut time) };
    time[0] as f64 + time[1] as f64 * 1e-9
}

/// One tile. A function of its own: `scripts/instructions` counts what happens in it.
#[inline(never)]
fn run_tile(kernel: &dyn Kernel, tile: usize, operands: &Operands, scratch: &mut [f32]) {
    kernel.run(tile, operands, scratch);
}

/// Processor seconds of a stage, divided by threads: at perfect balance. Each tile's are the least of at most so many runs.
fn time(kernel: &dyn Kernel, stage: &Stage, operands: &Operands, (threads, most): (usize, usize)) -> f64 {
    let mut scratch: Vec<Memory> = (0..threads).map(|_| Memory::new(stage.scratch)).collect();
    let mut best = vec![f64::MAX; stage.tiles];
    let start = std::time::Instant::now();
    let mut runs = 0;
    while runs < most.min(3) || (runs < most && start.elapsed().as_secs_f64() < 0.5) {
        let next = AtomicUsize::new(0);
        let times: Vec<(usize, f64)> = std::thread::scope(|scope| {
            let handles: Vec<_> = scratch
                .iter_mut()
                .map(|memory| {
                    // SAFETY: the memory is as long, and this thread's alone.
                    let scratch = unsafe { std::slice::from_raw_parts_mut(memory.data, stage.scratch) };
                    let next = &next;
                    scope.spawn(move || {
                        let mut times = vec![];
                        let mut before = processor_seconds();
                        loop {
                            let tile = next.fetch_add(1, Ordering::Relaxed);
                            if tile >= stage.tiles {
                                return times;
                            }
                            run_tile(kernel, tile, operands, scratch);
                            let after = processor_seconds();
                            times.push((tile, after - before));
                            before = after;
                        }
                    })
                })
                .collect();
            handles.into_iter().flat_map(|h| h.join().expect("no thread fails")).collect()
        });
        times.into_iter().for_each(|(tile, seconds)| best[tile] = best[tile].min(seconds));
        runs += 1;
    }
    best.iter().sum::<f64>() / threads as f64
}
