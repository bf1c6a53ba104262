//! Agreement: before the first step, ranks find out whether they are about to do the same thing.
//!
//! Each rank writes down what all must have in common (version, data, job, strategy, start), all read it, and all refuse where
//! one differs from rank 0. Costs one message to each other rank.

use crate::trainer::{Setup, Start};
use crate::{Difference, Error, digest, text_digest};
use convoy_comm::{Communicator, Team, all_gather};

/// Refuses what this rank cannot start from, and what ranks do not have in common.
pub(crate) fn check(setup: &Setup, communicator: &Communicator) -> Result<(), Error> {
    setup.check_start()?;
    if setup.strategy.ranks != communicator.size() {
        return Err(Error::Ranks { strategy: setup.strategy.ranks, ranks: communicator.size() });
    }
    agree(communicator, &claims(setup))
}

/// Refuses what ranks do not have in common, each thing by its name. All ranks call it, with the same names.
pub fn agree(communicator: &Communicator, own: &[(&str, String)]) -> Result<(), Error> {
    // A value has a line of its own, whatever it is made of.
    let line = |(what, value): &(&str, String)| format!("{what}\t{}", value.replace('\n', " "));
    let text: Vec<String> = own.iter().map(line).collect();
    let all = all_gather(communicator, &Team::all(communicator), text.join("\n").as_bytes())?;
    let all: Vec<String> = all.into_iter().map(|text| String::from_utf8_lossy(&text).into_owned()).collect();
    let Some(rank) = (1..all.len()).find(|&rank| all[rank] != all[0]) else { return Ok(()) };
    let (what, values) = first_difference(&all[0], &all[rank]);
    let hosts = [0, rank].map(|rank| communicator.host(rank).to_string());
    Err(Error::Differs(Box::new(Difference { what, rank, hosts, values })))
}

/// What this rank is about to do, by name.
fn claims(setup: &Setup) -> Vec<(&'static str, String)> {
    let start = match &setup.start {
        Start::Fresh => "the seed".into(),
        Start::Weights(weights) => format!("weights {}", digest(weights)),
        Start::Checkpoint(checkpoint) => format!("step {}, weights {}", checkpoint.step, digest(&checkpoint.weights)),
    };
    let placements = text_digest(&format!("{:?}", setup.strategy.placements));
    let mut claims = vec![("version", env!("CARGO_PKG_VERSION").to_string())];
    claims.extend(setup.in_common.iter().cloned());
    claims.extend([
        ("job", setup.job_digest.clone()),
        ("number of steps", setup.steps.to_string()),
        ("strategy", format!("{}, {placements}", setup.strategy.name)),
        ("start", start),
    ]);
    claims
}

/// The first thing that two ranks do not have in common, and what each has.
fn first_difference(first: &str, other: &str) -> (String, [String; 2]) {
    let mut pairs = first.lines().zip(other.lines());
    let (first, other) = pairs.find(|(a, b)| a != b).unwrap_or((first, other));
    let parts = |line: &str| line.split_once('\t').map_or((line.into(), String::new()), |(a, b)| (a.into(), b.into()));
    let ((what, first), (_, other)): ((String, String), (String, String)) = (parts(first), parts(other));
    (what, [first, other])
}
