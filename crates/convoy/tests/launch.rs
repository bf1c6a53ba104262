//! One of several processes, as the environment says: a program without MPI refuses, so that not each of them does everything.
#![cfg(not(feature = "mpi"))]

mod program;

use program::{Place, Ran, finish};

fn started(place: &Place, words: &str, variables: &[(&str, &str)]) -> Ran {
    finish(place.command(words).envs(variables.iter().copied()))
}

#[test]
fn several_processes_need_mpi() {
    let place = Place::new();
    let cases: [(&str, &[(&str, &str)]); 3] = [
        ("mpirun", &[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "0")]),
        ("mpirun", &[("PMI_SIZE", "4"), ("PMI_RANK", "0")]),
        ("Slurm", &[("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "0")]),
    ];
    for (launcher, variables) in cases {
        let ran = started(&place, "train --steps 1", variables);
        let wanted = format!(
            "error: {launcher} started 4 processes, but this convoy was built without MPI and each would do everything\n  \
             help: build it with --features mpi; or start it once, with --ranks 4\n"
        );
        assert_eq!((ran.code, ran.err.as_str(), ran.out.as_str()), (Some(1), wanted.as_str(), ""));
    }
    // One of them says it.
    let ran = started(&place, "train --steps 1", &[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "2")]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""));
    assert!(place.runs().is_empty());
}

#[test]
fn other_commands_are_done_by_one_process() {
    let place = Place::new();
    let ran = started(&place, "models", &[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")]);
    let wanted =
        "error: mpirun started 2 processes, but `convoy models` is done by one\n  help: start it without mpirun\n";
    assert_eq!((ran.code, ran.err.as_str()), (Some(2), wanted));
    let ran = started(&place, "models", &[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1")]);
    assert_eq!((ran.code, ran.err.as_str(), ran.out.as_str()), (Some(2), "", ""));
}

#[test]
fn one_process_is_a_process_like_any_other() {
    let place = Place::new();
    let words = "train --data synthetic:1x28x28:32 --batch 16 --test-data none --steps 2";
    let alone = started(&place, words, &[]);
    let launched = started(&place, words, &[("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "0")]);
    assert_eq!((alone.code, launched.code), (Some(0), Some(0)), "{launched:?}");
    assert_eq!(place.runs().len(), 2);
}
