//! Folding: a job of few ranks that stands for one of thousands.
//!
//! Groups of neighbouring ranks that hold equal numbers of samples do the same, each with its own samples: only sums over the
//! batch go from one group to another. A job of few such groups has the same programs, but for how many ranks those sums are
//! over, and can be lowered in little time. A strategy whose samples are not cut has one group, and is itself.
//!
//! A group holds whole leaves or lies within one, and there are as many leaves as in the whole job, if either number divides the
//! other and a group has few ranks ([`MOST_LOWERED`]); then programs are equal, elsewhere nearly so: kernels' memory depends on how
//! many leaves there are.
//!
//! Where weights are divided over ranks, or sums go around a ring, what a rank sends and holds depends on how many ranks there are: such
//! jobs are not folded.
//!
//! Twin: the same simulation with every rank lowered; `tests/laws.rs` holds them together.

use convoy_net::{Axis, Network, Shape};
use convoy_program::{Division, Options, ParameterHome, SumOrder};
use convoy_split::{Grid, Placement, Rank, Strategy};
use std::collections::HashMap;

/// A job in which ranks that do the same stand once.
#[derive(Clone, Debug)]
pub struct Folded {
    /// Ranks of a group.
    pub period: usize,
    /// Groups in all.
    pub groups: usize,
    /// What is lowered: the ranks of the first group, in a job of few groups.
    pub strategy: Strategy,
    pub options: Options,
}

/// Whether ranks that do the same are simulated once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Folding {
    #[default]
    Alike,
    /// Every rank for itself: the slow twin.
    Nothing,
}

/// Ranks that the job which is lowered may have, if groups allow: lowering takes time with their square.
const MOST_LOWERED: usize = 32;

/// Finds the groups of a job.
pub fn fold(network: &Network, shapes: &[Shape], strategy: &Strategy, options: &Options, folding: Folding) -> Folded {
    let groups = match folding {
        Folding::Alike => groups(shapes, strategy, options),
        Folding::Nothing => 1,
    };
    debug_assert_eq!(network.layers.len(), strategy.placements.len());
    if groups == 1 {
        return Folded { period: strategy.ranks, groups, strategy: strategy.clone(), options: *options };
    }
    let period = strategy.ranks / groups;
    let kept = groups.min(options.leaves.clamp(2, (MOST_LOWERED / period).max(2)));
    let few = |grid: &Grid| Placement::over(Grid { sample: grid.sample / groups * kept, ..*grid });
    let folded = Strategy {
        ranks: period * kept,
        placements: strategy.placements.iter().map(|p| few(&p.grid)).collect(),
        name: strategy.name.clone(),
    };
    // A group that is a part of a leaf becomes one.
    let leaves = if groups > options.leaves { options.leaves.min(kept) } else { options.leaves * kept / groups };
    // Algorithms stay those of the whole job.
    let division = Division { leaf_samples: Some(options.leaf_samples()), ..options.division };
    let options = Options { batch: options.batch / groups * kept, leaves, division, ..*options };
    Folded { period, groups, strategy: folded, options }
}

/// Ranks that have different work under a strategy: those of one group.
pub fn unlike(shapes: &[Shape], strategy: &Strategy, options: &Options) -> usize {
    strategy.ranks / groups(shapes, strategy, options)
}

/// The most groups into which ranks can be cut, such that each has the same samples of every layer.
fn groups(shapes: &[Shape], strategy: &Strategy, options: &Options) -> usize {
    let (batch, division) = (options.batch, &options.division);
    if division.home != ParameterHome::Everywhere || division.sums == SumOrder::Ring {
        return 1;
    }
    let in_order = |p: &Placement| {
        p.grid.parts() == strategy.ranks && p.ranks.iter().enumerate().all(|(i, rank)| *rank == Rank(i))
    };
    if !strategy.placements.iter().all(in_order) {
        return 1;
    }
    let groups = strategy.placements.iter().fold(batch, |all, p| common(all, p.grid.sample));
    let (period, samples) = (strategy.ranks / groups, batch / groups);
    let alike = |p: &Placement, shape: Shape, rank: usize| {
        let (first, here) = (p.region(shape, rank % period), p.region(shape, rank));
        let by = (rank / period * samples) as isize;
        let (start, end) = first.range(Axis::Sample);
        here == first.with(Axis::Sample, start + by, end + by)
    };
    // A group has whole parts of samples, so that parts along other axes are those of the first; samples of many layers are cut alike.
    let cut = |p: &Placement, shape: &Shape| (p.grid.sample, p.shares.clone(), shape.samples());
    let different: HashMap<_, _> =
        strategy.placements.iter().zip(shapes).map(|(p, shape)| (cut(p, shape), (p, *shape))).collect();
    let periodic = different.values().all(|(p, shape)| (period..strategy.ranks).all(|rank| alike(p, *shape, rank)));
    if periodic { groups } else { 1 }
}

/// The greatest common divisor.
fn common(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common(b, a % b) }
}
