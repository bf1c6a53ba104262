//! The bed on which `convoy bench --validate` tests: ranks that run steps in memory, and what tells how fast the computer is meanwhile.

use super::bench::{LEARNING_RATE, SEED, WARM_UP, batch_of};
use crate::error::{Error, Errors};
use crate::links::Transport;
use crate::words::median;
use crate::world::World;
use crate::yardstick::Yardstick;
use convoy_engine::{Batch, Engine, Settings};
use convoy_kernels::Moment;
use convoy_net::{Network, Region};
use convoy_predict::{Machine, Ratios};
use convoy_program::{Options, lower};
use convoy_split::{Rank, Strategy};
use convoy_train::state;
use std::sync::Arc;
use std::time::Instant;

/// Steps of each of two that run in turn.
const TURNS: usize = 7;

/// This computer, its calibration, and the yardstick.
pub struct Bed<'a> {
    pub world: &'a World,
    pub transport: Transport,
    pub machine: Machine,
    pub yardstick: Yardstick<'a>,
    /// How long steps are measured, three at least.
    pub seconds: f64,
}

/// The ranks of this process: all, or the one it is.
pub struct Crew {
    members: Vec<Member>,
    /// Cores that all ranks together use.
    cores: usize,
    steps: u64,
}

/// A rank and its part of the batch.
struct Member {
    engine: Engine,
    images: Vec<f32>,
    targets: Vec<f32>,
}

/// What steps of all ranks together took.
pub struct StepTimes {
    /// Of each step.
    pub seconds: Vec<f64>,
    /// Beside each step: how much faster the yardstick was than when the computer was calibrated.
    pub speeds: Vec<f64>,
    /// Of the heaviest rank.
    pub planned_bytes: usize,
}

impl Bed<'_> {
    pub fn crew(
        &self,
        network: &Network,
        strategy: &Strategy,
        options: &Options,
        threads: usize,
    ) -> Result<Crew, Errors> {
        let communicators = match self.world.communicator() {
            None => convoy_comm::threads(strategy.ranks).into_iter().map(Arc::new).collect(),
            Some(communicator) => vec![communicator.clone()],
        };
        let mut members = vec![];
        for communicator in communicators {
            let program = lower(network, strategy, Rank(communicator.rank()), options).map_err(Error::from)?;
            let (images, targets) = batch_of(network, &program)?;
            let images = part(&images, &program.images, network, options.batch)?;
            let targets = targets[..program.targets.min(targets.len())].to_vec();
            let mut engine = Engine::new(network, vec![program], threads, communicator, Settings::default());
            state::put_initial_weights(&mut engine, network, SEED);
            members.push(Member { engine, images, targets });
        }
        Ok(Crew { members, cores: (strategy.ranks * threads).min(self.machine.groups[0].cores), steps: 0 })
    }

    pub fn measure(&mut self, crew: &mut Crew) -> Result<StepTimes, Errors> {
        // With the batches that a run would hold, which are part of what is predicted.
        let held = |member: &Member| member.engine.bytes() + member.engine.program(0).fed_bytes(1);
        let own = crew.members.iter().map(held).max().unwrap_or(0);
        let planned_bytes = self.world.most(own as u64)? as usize;
        let (mut seconds, mut speeds) = (vec![], vec![]);
        let began = Instant::now();
        for _ in 0..WARM_UP {
            self.step(crew)?;
        }
        let mut before = self.speed(crew.cores)?;
        loop {
            seconds.push(self.step(crew)?);
            let after = self.speed(crew.cores)?;
            speeds.push((before + after) / 2.0);
            before = after;
            let enough = seconds.len() >= 3 && began.elapsed().as_secs_f64() > self.seconds;
            if self.world.told_number(u64::from(enough))? == 1 {
                return Ok(StepTimes { seconds, speeds, planned_bytes });
            }
        }
    }

    /// How much longer steps of one take than those of another, while they run in turn.
    pub fn ratio(&self, one: &mut Crew, other: &mut Crew) -> Result<f64, Errors> {
        let mut seconds = [vec![], vec![]];
        for turn in 0..WARM_UP + TURNS {
            for (crew, seconds) in [&mut *one, &mut *other].into_iter().zip(&mut seconds) {
                let took = self.step(crew)?;
                seconds.extend((turn >= WARM_UP).then_some(took));
            }
        }
        let [one, other] = seconds.map(median);
        Ok(one / other)
    }

    /// Seconds of one step, until all ranks have done it.
    fn step(&self, crew: &mut Crew) -> Result<f64, Errors> {
        let moment = Moment { seed: SEED, step: crew.steps, learning_rate: LEARNING_RATE };
        crew.steps += 1;
        self.world.meet()?;
        let start = Instant::now();
        let ends: Vec<_> = std::thread::scope(|scope| {
            let run =
                |m: &mut Member| m.engine.step(0, Batch { images: &m.images, targets: &m.targets }, moment).map(drop);
            let ranks: Vec<_> = crew.members.iter_mut().map(|rank| scope.spawn(move || run(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("bug: a rank panicked")).collect()
        });
        ends.into_iter().collect::<Result<(), _>>().map_err(Error::from)?;
        self.world.meet()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// How much faster the yardstick is than when the computer was calibrated, with so many cores.
    fn speed(&mut self, cores: usize) -> Result<f64, Errors> {
        let now = self.yardstick.seconds(cores)?;
        let then = Ratios { alone: self.machine.yardstick_seconds[0], together: self.machine.yardstick_seconds[1] };
        Ok(then.with(cores, self.machine.groups[0].cores) / now)
    }
}

/// A rank's region of a batch of whole images.
fn part(images: &[f32], region: &Region, network: &Network, batch: usize) -> Result<Vec<f32>, Error> {
    let shape = network.shapes(batch)?[0];
    let [_, c, d, h, w] = shape.0;
    let mut part = Vec::with_capacity(region.len());
    for n in region.start[0]..region.end[0] {
        for ch in region.start[1]..region.end[1] {
            for z in region.start[2]..region.end[2] {
                for y in region.start[3]..region.end[3] {
                    let row = (((n as usize * c + ch as usize) * d + z as usize) * h + y as usize) * w;
                    part.extend(&images[row + region.start[4] as usize..row + region.end[4] as usize]);
                }
            }
        }
    }
    Ok(part)
}
