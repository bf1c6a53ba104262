//! The world: where the ranks of a job are. All of them are threads of this process; or mpirun or Slurm started several
//! processes, and this one is one rank.
//!
//! Always true of processes
//! - Rank 0 alone makes folders, writes and reports.
//! - What goes wrong on one ends all, with one error and one exit code.

use crate::error::{Error, Errors};
use crate::job::Job;
use crate::links::hosts;
use crate::machine;
use crate::ready::{self, Ready};
use convoy_comm::{Communicator, Launch, Leave, Team, all_gather, barrier, broadcast, gather, tell};
use convoy_train::{Observer, Outcome, RunFolder, Setup, file_digest};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long ranks wait for each other when all end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Where the ranks of a job are.
#[derive(Debug, Default)]
pub struct World {
    /// This process' handle, where it is one rank of several.
    communicator: Option<Arc<Communicator>>,
}

impl World {
    /// Does `work` where this process was started to do it: by itself, or as one rank. The result is the exit code.
    pub fn enter(work: impl FnOnce(&World) -> Result<u8, Errors>) -> Result<u8, Errors> {
        let Some(launch) = Launch::found() else { return work(&World::default()) };
        let communicator = match launch.world() {
            Ok(communicator) => Arc::new(communicator),
            // All processes would say the same.
            Err(_) if launch.process > 0 => return Ok(1),
            Err(error) => return Err(Error::from(error).into()),
        };
        match work(&World { communicator: Some(communicator.clone()) }) {
            Ok(code) => {
                communicator.finish();
                Ok(code)
            }
            Err(errors) => Ok(leave(&communicator, &errors)),
        }
    }

    /// Refuses to be one of several processes: each would do everything. The first says so, the others get their exit code.
    pub fn alone(command: &str) -> Result<Option<u8>, Error> {
        match Launch::found().filter(|launch| launch.processes > 1) {
            Some(launch) if launch.process > 0 => Ok(Some(2)),
            Some(launch) => Err(Error::Usage(format!(
                "{} started {} processes, but `convoy {command}` is done by one\n  help: start it without {}",
                launch.by, launch.processes, launch.by
            ))),
            None => Ok(None),
        }
    }

    /// Whether this process writes and reports.
    pub fn is_first(&self) -> bool {
        self.communicator.as_ref().is_none_or(|communicator| communicator.rank() == 0)
    }

    /// Ranks, where they are given by the number of processes.
    pub fn ranks(&self) -> Option<usize> {
        self.communicator.as_ref().map(|communicator| communicator.size())
    }

    /// This process' handle to the others, where it is one rank of several.
    pub(crate) fn communicator(&self) -> Option<&Arc<Communicator>> {
        self.communicator.as_ref()
    }

    /// Ranks of a job on each computer, on that which has most.
    pub(crate) fn ranks_per_node(&self, ranks: usize) -> usize {
        let most = |communicator: &Arc<Communicator>| hosts(communicator).iter().map(Vec::len).max();
        self.communicator().and_then(most).unwrap_or(ranks)
    }

    /// Returns when all ranks are here.
    pub(crate) fn meet(&self) -> Result<(), Error> {
        let meet = |communicator| barrier(communicator, &Team::all(communicator)).map_err(Error::from);
        self.communicator.as_deref().map_or(Ok(()), meet)
    }

    /// The most of what all ranks have.
    pub(crate) fn most(&self, own: u64) -> Result<u64, Error> {
        let Some(communicator) = &self.communicator else { return Ok(own) };
        let all = all_gather(communicator, &Team::all(communicator), &own.to_le_bytes())?;
        Ok(all.iter().map(|bytes| number(bytes)).max().unwrap_or(own))
    }

    /// What rank 0 says, on all ranks.
    pub(crate) fn told(&self, own: Option<Vec<u8>>) -> Result<Vec<u8>, Error> {
        let mut bytes = own.unwrap_or_default();
        if let Some(communicator) = &self.communicator {
            broadcast(communicator, &Team::all(communicator), 0, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// The same of a number.
    pub(crate) fn told_number(&self, own: u64) -> Result<u64, Error> {
        self.told(Some(own.to_le_bytes().to_vec())).map(|bytes| number(&bytes))
    }

    /// The job as it can be done here: with as many ranks as there are processes, and threads for those that share a computer.
    pub(crate) fn fit(&self, job: &Job) -> Result<Job, Error> {
        let mut job = job.clone();
        let Some(communicator) = &self.communicator else { return Ok(job) };
        let (ranks, processes) = (job.parallel.ranks, communicator.size());
        if ranks != processes {
            let flaw = format!(
                "{ranks} ranks, but there are {processes} processes, each one rank\n  \
                 help: mpirun -n {ranks}; or leave it out, it follows from mpirun"
            );
            return Err(Error::at("parallel.ranks", flaw));
        }
        if job.parallel.threads.is_none() {
            job.parallel.threads = Some(threads(communicator)?);
        }
        Ok(job)
    }

    /// Bytes that each rank will hold; an error where those of this computer are more than can be had.
    pub(crate) fn planned_bytes(&self, ready: &Ready) -> Result<Vec<u64>, Error> {
        let Some(communicator) = &self.communicator else { return ready.planned_bytes() };
        let own = ready.setup()?.planned_bytes_of(communicator.rank())?;
        let all = all_gather(communicator, &Team::all(communicator), &own.to_le_bytes())?;
        let planned: Vec<u64> = all.iter().map(|bytes| number(bytes)).collect();
        ready.check_budget(&planned)?;
        let here = neighbours(communicator).map(|rank| planned[rank]).sum();
        ready::check_memory(ready.job.train.batch, here)?;
        Ok(planned)
    }

    /// The folder that rank 0 makes.
    pub(crate) fn folder(&self, make: impl FnOnce() -> Result<RunFolder, Error>) -> Result<RunFolder, Error> {
        if self.communicator.is_none() {
            return make();
        }
        let made = if self.is_first() { Some(make()?) } else { None };
        let path = self.told(made.as_ref().map(|folder| folder.path().as_os_str().as_encoded_bytes().to_vec()))?;
        Ok(made.unwrap_or_else(|| RunFolder::of_another(PathBuf::from(String::from_utf8_lossy(&path).as_ref()))))
    }

    /// Trains: all ranks, or the one that this process is.
    pub fn train(
        &self,
        mut setup: Setup,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, convoy_train::Error> {
        match &self.communicator {
            None => convoy_train::train(&setup, stop, observer),
            Some(communicator) => {
                // Another build of the same version may round differently.
                let program = std::env::current_exe().ok().and_then(|path| file_digest(&path).ok());
                setup.in_common.insert(0, ("program", program.unwrap_or("unknown".into())));
                convoy_train::train_rank(&setup, communicator.clone(), stop, observer)
            }
        }
    }

    /// The most memory that each process had in use: on rank 0, where the system says.
    pub fn peak_rss_bytes(&self) -> Result<Option<Vec<u64>>, Error> {
        let own = machine::peak_rss_bytes();
        let Some(communicator) = &self.communicator else { return Ok(own.map(|bytes| vec![bytes])) };
        let bytes = own.unwrap_or(0).to_le_bytes();
        let all = gather(communicator, &Team::all(communicator), 0, &bytes)?;
        Ok(all.map(|all| all.iter().map(|bytes| number(bytes)).collect()))
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("bug: eight bytes are a number"))
}

/// Ranks of this computer.
fn neighbours(communicator: &Communicator) -> impl Iterator<Item = usize> {
    let host = communicator.host(communicator.rank());
    (0..communicator.size()).filter(move |&rank| communicator.host(rank) == host)
}

/// Threads for each rank of this computer: the cores that any of them may use, divided by them.
fn threads(communicator: &Communicator) -> Result<usize, Error> {
    let (hosts, cores) = (hosts(communicator), cores_by_host(communicator)?);
    let here = hosts.iter().position(|ranks| ranks.contains(&communicator.rank())).expect("bug: a rank without a host");
    Ok((cores[here] / hosts[here].len()).clamp(1, machine::cores().max(1)))
}

/// By computer: the cores that any of its ranks may use; told to all ranks.
pub(crate) fn cores_by_host(communicator: &Communicator) -> Result<Vec<usize>, Error> {
    let own: Vec<u8> = machine::allowed_cores().iter().flat_map(|core| (*core as u64).to_le_bytes()).collect();
    let all = all_gather(communicator, &Team::all(communicator), &own)?;
    let cores = |ranks: &Vec<usize>| {
        let cores: BTreeSet<&[u8]> = ranks.iter().flat_map(|&rank| all[rank].chunks(8)).collect();
        if cores.is_empty() { machine::cores() } else { cores.len() }
    };
    Ok(hosts(communicator).iter().map(cores).collect())
}

/// Ends all ranks; one tells why.
fn leave(communicator: &Communicator, errors: &Errors) -> u8 {
    communicator.end(&errors.to_string());
    let leave = Leave { code: errors.exit_code(), patience: FAREWELL };
    leave.together(communicator, |silent| {
        errors.0.iter().for_each(|error| tell(&format!("error: {error}")));
        for &rank in silent {
            tell(&format!("  silent: rank {rank} on host {}", communicator.host(rank)));
        }
    })
}
