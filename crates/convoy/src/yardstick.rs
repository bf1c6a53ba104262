//! The yardstick: a fixed step that tells how fast this computer is right now.
//!
//! One block of resnet50 on each core, which computes and moves memory as steps of networks do. `convoy calibrate` runs it between
//! layers and keeps what it takes; `convoy bench --validate` runs it beside each measured step. Where it takes longer than it did then,
//! others use the computer, or clocks fell.

use crate::error::{Error, Errors};
use crate::words::median;
use crate::world::World;
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::Moment;
use convoy_net::layers::{Activation, BatchNorm, Convolution, FullyConnected, GlobalAveragePool};
use convoy_net::{Kind, Network};
use convoy_program::{Options, lower};
use convoy_split::{Rank, Strategy};
use convoy_train::state;
use std::time::Instant;

const SAMPLES: usize = 4;
const STEPS: usize = 3;

/// An engine for each core; of several processes on a computer each has its share of them.
pub struct Yardstick<'a> {
    world: &'a World,
    /// Of a computer.
    cores: usize,
    engines: Vec<Engine>,
    /// What was seen so far, on one core and on all.
    looks: [Vec<f64>; 2],
    images: Vec<f32>,
    targets: Vec<f32>,
}

impl Yardstick<'_> {
    pub fn new(world: &World, cores: usize) -> Result<Yardstick<'_>, Errors> {
        let network = block();
        let options = Options::plain(SAMPLES);
        let program = lower(&network, &Strategy::single(&network), Rank(0), &options).map_err(Error::from)?;
        let images = (0..program.images.len()).map(|i| (i % 17) as f32 / 17.0 - 0.5).collect();
        let targets = vec![0.0; program.targets];
        let engine = |communicator| {
            let mut engine = Engine::new(&network, vec![program.clone()], 1, communicator, Settings::default());
            state::put_initial_weights(&mut engine, &network, 1);
            engine
        };
        let share = (cores / world.ranks_per_node(1)).max(1);
        let engines = (0..share).flat_map(|_| convoy_comm::threads(1)).map(engine).collect();
        let mut yardstick = Yardstick { world, cores, engines, looks: Default::default(), images, targets };
        // The first touch of memory is like no other.
        yardstick.own_seconds(share)?;
        Ok(yardstick)
    }

    /// Seconds of a step on each of so many cores of a computer, at the same time, as rank 0 sees it. All processes call it together.
    pub fn seconds(&mut self, cores: usize) -> Result<f64, Errors> {
        self.world.meet()?;
        match self.world.communicator() {
            Some(communicator) if communicator.rank() >= cores => Ok(f64::NAN),
            _ => self.own_seconds((cores / self.world.ranks_per_node(1)).max(1)),
        }
    }

    /// The same of this process alone: on average over some, of which the first finds others' data in the caches.
    fn own_seconds(&mut self, cores: usize) -> Result<f64, Errors> {
        let batch = Batch { images: &self.images, targets: &self.targets };
        let moment = Moment { seed: 1, step: 1, learning_rate: 0.0 };
        let began = Instant::now();
        let steps: Vec<_> = std::thread::scope(|scope| {
            let step = |engine: &'_ mut Engine| (0..STEPS).try_for_each(|_| engine.step(0, batch, moment).map(drop));
            let threads: Vec<_> =
                self.engines.iter_mut().take(cores).map(|engine| scope.spawn(move || step(engine))).collect();
            threads.into_iter().map(|thread| thread.join().expect("bug: a yardstick panicked")).collect()
        });
        steps.into_iter().collect::<Result<Vec<()>, _>>().map_err(Error::from)?;
        Ok(began.elapsed().as_secs_f64() / STEPS as f64)
    }

    /// Looks once, on one core and on all.
    pub fn look(&mut self) -> Result<(), Errors> {
        for (place, cores) in [1, self.cores].into_iter().enumerate() {
            let seconds = self.seconds(cores)?;
            self.looks[place].push(seconds);
        }
        Ok(())
    }

    /// The middle of all looks, on one core and on all.
    pub fn medians(&self) -> Vec<f64> {
        self.looks.iter().filter(|looks| !looks.is_empty()).map(|looks| median(looks.iter().copied())).collect()
    }
}

fn block() -> Network {
    let mut network = Network::new("yardstick", &[256, 56, 56]);
    for (i, (filters, window)) in [(64, 1), (64, 3), (256, 1)].into_iter().enumerate() {
        let mut convolution = Convolution::new(filters, &[window, window]);
        convolution.windows = convolution.windows.padded(window / 2);
        network.push(format!("conv{i}"), Kind::Convolution(convolution));
        network.push(format!("bn{i}"), Kind::BatchNorm(BatchNorm::default()));
        network.push(format!("relu{i}"), Kind::Activation(Activation::Relu));
    }
    network.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
    network.push("end", Kind::FullyConnected(FullyConnected::new(10)));
    network.fused()
}
