//! The world: where the ranks of a job are. All of them are threads of this process; or mpirun or Slurm started several
//! processes, and this one is one rank.
//!
//! Always true of processes
//! - Rank 0 alone makes folders, writes and reports.
//! - What goes wrong on one ends all, with one error and one exit code.
//! - Before anything else they find out whether they are the same program with the same job: what they do together next
//!   depends on it.
//! - They wait for each other with a deadline from the moment they meet.

use crate::error::{Error, Errors, Place};
use crate::job::{Job, Sums};
use crate::links::hosts;
use crate::machine;
use crate::ready::{self, Ready};
use convoy_comm::{Communicator, Launch, Leave, Team, all_gather, barrier, broadcast, gather, tell};
use convoy_train::{Observer, Outcome, RunFolder, Setup, UNMEASURED, agree, file_digest, panic_text};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
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
    /// Does `work` where this process was started to do it: by itself, or as one rank. The result is the exit code. `asked` is
    /// what all ranks must have been asked, by name.
    pub fn enter(asked: &[(&str, String)], work: impl FnOnce(&World) -> Result<u8, Errors>) -> Result<u8, Errors> {
        let Some(launch) = Launch::found() else { return work(&World::default()) };
        let communicator = match launch.world() {
            Ok(communicator) => Arc::new(communicator),
            // All processes would say the same.
            Err(_) if launch.process > 0 => return Ok(1),
            Err(error) => return Err(Error::from(error).into()),
        };
        match World::of(communicator.clone(), UNMEASURED).work_with(asked, work) {
            Ok(code) => {
                communicator.finish();
                Ok(code)
            }
            Err(errors) => Ok(leave(&communicator, &errors)),
        }
    }

    /// One rank of several, which have just met and wait so long for each other.
    fn of(communicator: Arc<Communicator>, deadline: Duration) -> World {
        communicator.set_deadline(deadline);
        World { communicator: Some(communicator) }
    }

    /// Does `work` if the others are the same program and were asked the same; a panic is an error like any other.
    fn work_with(
        &self,
        asked: &[(&str, String)],
        work: impl FnOnce(&World) -> Result<u8, Errors>,
    ) -> Result<u8, Errors> {
        // Another build of the same version may round differently.
        let program = std::env::current_exe().ok().and_then(|path| file_digest(&path).ok());
        let mut claims =
            vec![("version", env!("CARGO_PKG_VERSION").into()), ("program", program.unwrap_or("unknown".into()))];
        claims.extend_from_slice(asked);
        self.agree(&claims)?;
        catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or_else(|panic| {
            let (rank, host) = self.communicator().map_or((0, ""), |c| (c.rank(), c.host(c.rank())));
            let text = panic_text(&*panic);
            Err(Error::from(convoy_train::Error::Panic { rank, host: host.into(), step: None, text }).into())
        })
    }

    /// Refuses what ranks do not have in common, each thing by its name.
    fn agree(&self, claims: &[(&str, String)]) -> Result<(), Error> {
        self.communicator().map_or(Ok(()), |communicator| agree(communicator, claims)).map_err(Error::from)
    }

    /// Refuses ranks that were given different jobs, or go on with different runs: by the first field that differs. From here
    /// on, a rank waits for another at least as long as the job says.
    pub(crate) fn agree_on(&self, job: &Job, resumed: Option<&Path>) -> Result<(), Error> {
        let Some(communicator) = self.communicator() else { return Ok(()) };
        let nothing = || "nothing".to_string();
        let fields = job.fields().map(|(key, value)| (Place::Field(key.into()).to_string(), value));
        let resumed = ("run to resume".to_string(), resumed.map(|path| path.display().to_string()));
        let claims: Vec<_> = std::iter::once(resumed).chain(fields).collect();
        let claims: Vec<_> =
            claims.iter().map(|(name, value)| (&**name, value.clone().unwrap_or_else(nothing))).collect();
        self.agree(&claims)?;
        communicator.set_deadline(UNMEASURED.max(Duration::from_secs(job.parallel.deadline)));
        Ok(())
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
        let has_library = self.communicator().is_some_and(|communicator| communicator.has_library());
        if job.parallel.sums == Sums::Library && job.parallel.ranks > 1 && !has_library {
            let flaw = format!(
                "ranks are threads of one process here, there is no MPI library\n  \
                 help: mpirun -n {} with a convoy built with --features mpi; or ring",
                job.parallel.ranks
            );
            return Err(Error::at("parallel.sums", flaw));
        }
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
        setup: Setup,
        stop: &AtomicBool,
        observer: &mut dyn Observer,
    ) -> Result<Outcome, convoy_train::Error> {
        match &self.communicator {
            None => convoy_train::train(&setup, stop, observer),
            Some(communicator) => convoy_train::train_rank(&setup, communicator.clone(), stop, observer),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Draft;
    use std::sync::Mutex;

    /// What a rank does.
    type Work<'a> = &'a (dyn Fn(&World) -> Result<u8, Errors> + Sync);

    /// What ranks say, each of which does its own.
    fn on_ranks<const N: usize>(work: [Work; N]) -> [String; N] {
        let said = |world: World, work: Work| {
            let result = world.work_with(&[("command", "test".into())], work);
            // As at the door: the others hear of it.
            let errors = result.expect_err("an error was due");
            world.communicator().expect("a rank").end(&errors.to_string());
            errors.to_string()
        };
        std::thread::scope(|scope| {
            let world = |c: Communicator| World::of(Arc::new(c), Duration::from_secs(60));
            let all: Vec<_> = convoy_comm::threads(N)
                .into_iter()
                .zip(work)
                .map(|(c, work)| scope.spawn(move || said(world(c), work)))
                .collect();
            let all: Vec<String> = all.into_iter().map(|rank| rank.join().expect("no panic gets out")).collect();
            all.try_into().expect("as many as ranks")
        })
    }

    fn host() -> String {
        convoy_comm::threads(1)[0].host(0).into()
    }

    fn job(fields: &[(&str, &str)]) -> Job {
        let mut draft = Draft::default();
        fields.iter().for_each(|(key, value)| draft.set(key, value));
        draft.job().expect("a job")
    }

    #[test]
    fn ranks_with_different_jobs_refuse_before_they_do_anything_together() {
        let ranks = ("parallel.ranks", "2");
        let (threads, strategy) = (("parallel.threads", "1"), ("parallel.strategy", "data"));
        let cases = [
            (&[ranks, threads][..], &[ranks][..], "[parallel].threads", ["1", "nothing"]),
            (&[ranks], &[ranks, strategy], "[parallel].strategy", ["\"auto\"", "\"data\""]),
            (&[ranks, ("network.file", "a.toml")], &[ranks], "[network].model", ["nothing", "\"lenet\""]),
            (&[ranks, ("train.seed", "1")], &[ranks, ("train.seed", "2")], "[train].seed", ["1", "2"]),
        ];
        for (first, other, what, [has, has_not]) in cases {
            let [first, other] = [job(first), job(other)];
            let begin = |job: &Job, world: &World| {
                world.agree_on(job, None)?;
                world.fit(job)?;
                panic!("went on");
            };
            let host = host();
            let wanted = format!(
                "ranks do not have the same {what}: rank 0 on host {host} has {has}, rank 1 on host {host} has {has_not}\n  \
                 help: the same program, job and data on every host"
            );
            assert_eq!(on_ranks([&|world| begin(&first, world), &|world| begin(&other, world)]), [&*wanted, &*wanted]);
        }
    }

    #[test]
    fn ranks_that_resume_different_runs_refuse() {
        let job = job(&[("parallel.ranks", "2")]);
        let begin = |world: &World, run: Option<&Path>| Ok(world.agree_on(&job, run).map(|()| 0)?);
        let said = on_ranks([&|world| begin(world, Some(Path::new("runs/a"))), &|world| begin(world, None)]);
        assert_eq!(said[0], said[1]);
        assert!(said[0].contains("the same run to resume: rank 0 on host "), "{}", said[0]);
        assert!(said[0].contains(" has runs/a, rank 1 on host ") && said[0].contains(" has nothing\n"), "{}", said[0]);
    }

    #[test]
    fn a_panic_before_training_ends_all_ranks_and_names_its_own() {
        let panics = |_: &World| -> Result<u8, Errors> { panic!("bug: somebody's mistake") };
        let waits = |world: &World| Ok(world.meet().map(|()| 0)?);
        let host = host();
        let wanted = format!("rank 1 on host {host} ended\n  cause: bug: a panic: bug: somebody's mistake");
        let said = on_ranks([&waits, &panics, &waits]);
        assert_eq!(said[1], wanted);
        assert!([0, 2].iter().all(|&rank| said[rank] == format!("rank 1 on host {host} ended: {wanted}")), "{said:?}");
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let mut ranks = convoy_comm::threads(2);
        let (_silent, first) = (ranks.pop(), ranks.pop().expect("a rank"));
        let began = Mutex::new(false);
        let error = World::of(Arc::new(first), Duration::from_millis(2)).work_with(&[], |_| {
            *began.lock().expect("a lock") = true;
            Ok(0)
        });
        let (text, host) = (error.expect_err("nobody else is there").to_string(), host());
        assert!(text.starts_with(&format!("rank 0 on host {host} waited 0 s for rank 1 on host {host}: ")), "{text}");
        assert!(!*began.lock().expect("a lock"));
    }
}
