//! `convoy check`: whether a job can be trained, in seconds, with everything that is wrong at once.

use super::train::{about_network, draft};
use super::{field_arguments, path_argument, say, warn};
use crate::draft::Draft;
use crate::error::{Error, Errors, Place};
use crate::machine;
use crate::ready::{self, Ready};
use crate::words::{bytes, count};
use clap::{ArgMatches, Command};

pub fn definition() -> Command {
    Command::new("check")
        .about("Check job, data, memory and machine without training; all errors at once")
        .arg(path_argument("JOB").help("a job, such as job.toml"))
        .args(field_arguments(|_| true))
}

pub fn run(matches: &ArgMatches) -> Result<(), Errors> {
    let draft = draft(matches)?;
    let job = draft.job();
    let ready = match &job {
        Ok(job) => Ready::new(job).map(Some),
        Err(_) => ready_in_part(&draft).map(|()| None),
    };
    let ready = ready.map_err(|errors| draft.located(errors));
    let all = [job.err(), ready.as_ref().err().cloned()].into_iter().flatten().flat_map(|errors| errors.0);
    let errors: Vec<Error> = all.collect();
    match ready {
        Ok(Some(ready)) if errors.is_empty() => tell(&ready).map_err(|errors| draft.located(errors)),
        _ => Err(Errors(errors).by_line()),
    }
}

/// What else is wrong, when the draft itself is: as far as it can be told from the fields that are sound.
fn ready_in_part(draft: &Draft) -> Result<(), Errors> {
    let (broken, job) = (draft.broken(), draft.sound_job()?);
    let decides_network = |key: &&str| key.starts_with("network.") || key.starts_with("data.");
    let mut errors = match broken.iter().any(decides_network) {
        true => ready::apart(&job),
        false => Ready::new(&job).err().map_or(vec![], |errors| errors.0),
    };
    // A default that stands in for a broken field is nobody's fault.
    errors.retain(
        |error| !matches!(error, Error::Field { place: Place::Field(key), .. } if broken.contains(&key.as_str())),
    );
    if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
}

/// What would be done, and whether this machine is large enough.
fn tell(ready: &Ready) -> Result<(), Errors> {
    let total: u64 = ready.planned_bytes()?.iter().sum();
    let (ranks, threads) = (ready.job.parallel.ranks, ready.job.parallel.threads.unwrap_or(1));
    if ranks * threads > machine::cores() {
        let wanted = count((ranks * threads) as u64, "thread");
        warn(&format!("{wanted} share {}", count(machine::cores() as u64, "core")));
    }
    say(&about_network(ready)?)?;
    let steps = count(ready.steps(), "step");
    say(&format!("{steps}, strategy {}, {} planned: ready to train", ready.strategy.name, bytes(total)))?;
    Ok(())
}
