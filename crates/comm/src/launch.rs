//! Launches: whether this process is one of several that mpirun or Slurm started, as the environment says.

use crate::{Communicator, Error};

/// Who started this process, how many of them, and which one this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    pub by: &'static str,
    pub processes: usize,
    pub process: usize,
}

/// Variables that launchers set for each process they start: how many there are, which one it is.
const VARIABLES: [(&str, &str, &str); 3] = [
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    // MPICH's mpiexec and its relatives.
    ("mpirun", "PMI_SIZE", "PMI_RANK"),
    // Only inside a step: a batch script is one process, whatever was allocated.
    ("Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
];

impl Launch {
    /// How this process was started; nothing where it stands alone.
    pub fn found() -> Option<Launch> {
        Launch::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Launch> {
        let number = |name: &str| variable(name)?.parse().ok();
        let found = VARIABLES.iter().find_map(|(by, processes, process)| {
            Some(Launch { by, processes: number(processes)?, process: number(process).unwrap_or(0) })
        });
        // One task of Slurm needs no MPI.
        found.filter(|launch| launch.processes > 1 || launch.by != "Slurm")
    }

    /// The communicator of all processes that were started together, each one rank. Called once, by the main thread.
    #[cfg(feature = "mpi")]
    pub fn world(self) -> Result<Communicator, Error> {
        let world = crate::mpi::world(crate::mpi::PIECE_BYTES)?;
        match world.size() {
            size if size == self.processes => Ok(world),
            size => Err(Error::World { launch: self, size }),
        }
    }

    /// There is no world without MPI: more than one process would each do everything.
    #[cfg(not(feature = "mpi"))]
    pub fn world(self) -> Result<Communicator, Error> {
        match self.processes {
            1 => Ok(crate::threads(1).remove(0)),
            _ => Err(Error::WithoutMpi { launch: self }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Option<(&'static str, usize)> {
        let variable = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
        Launch::of(variable).map(|launch| (launch.by, launch.processes))
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "4")]), Some(("mpirun", 4)));
        assert_eq!(of(&[("PMI_SIZE", "1")]), Some(("mpirun", 1)));
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "3"), ("SLURM_NTASKS", "3")]), Some(("Slurm", 3)));
        // mpirun inside of a step of Slurm.
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "2"), ("OMPI_COMM_WORLD_SIZE", "8")]), Some(("mpirun", 8)));
        // A batch script, an interactive shell.
        assert_eq!(of(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")]), None);
        assert_eq!(of(&[("SLURM_STEP_NUM_TASKS", "1")]), None);
        assert_eq!(of(&[("PMI_SIZE", "many")]), None);
    }

    #[cfg(not(feature = "mpi"))]
    #[test]
    fn without_mpi_several_processes_are_refused() {
        let error = Launch { by: "mpirun", processes: 4, process: 0 }.world().unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("mpirun started 4 processes, but this convoy was built without MPI"), "{text}");
        assert_eq!(Launch { by: "mpirun", processes: 1, process: 0 }.world().unwrap().size(), 1);
    }
}
