//! Links: how fast ranks send to each other and add up, measured between them.
//!
//! All ranks of a communicator call [`measure`] together, and rank 0 is told. Messages go between rank 0 and a rank of its own
//! computer, then one of another computer. Of some rounds the best counts: in the others somebody else had the core.

use crate::error::Error;
use convoy_comm::{Communicator, Kind};
use convoy_predict::Level;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How ranks talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// They are threads of one process.
    Threads,
    Mpi,
}

impl Transport {
    pub fn word(self) -> &'static str {
        match self {
            Transport::Threads => "threads",
            Transport::Mpi => "mpi",
        }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Links {
    /// Inside a computer, if ranks share one; between computers, if there are several.
    pub levels: Vec<Level>,
    /// Bytes a second that a rank reads and writes while it adds what another one sent.
    pub add_bandwidth: f64,
}

impl Links {
    /// One rank alone, which talks to nobody.
    pub fn none() -> Links {
        let level = Level {
            name: "none".into(),
            nodes: 1,
            latency_seconds: 0.0,
            bandwidth: 1e9,
            message_seconds: 0.0,
            links: None,
            by_cores: true,
        };
        Links { levels: vec![level], add_bandwidth: 1e9 }
    }
}

const ROUNDS: usize = 5;
/// Beyond caches, as gradients are.
const LONG: usize = 32 << 20;
/// Short messages of a round.
const SHORT: usize = 100;
/// No message takes so long.
const LATE: Duration = Duration::from_secs(5);
const TAG: u64 = Kind::Other.tag() | 0x11c5;

/// Measures the links between two ranks or more; by all of them at once. Ranks other than 0 get what does not matter.
pub fn measure(communicator: &Communicator, transport: Transport) -> Result<Links, Error> {
    let host = communicator.host(0);
    let near = (1..communicator.size()).find(|&rank| communicator.host(rank) == host);
    let far = (1..communicator.size()).find(|&rank| communicator.host(rank) != host);
    let mut levels = vec![];
    if let Some(peer) = near {
        levels.push(level(communicator, peer, transport, 1)?);
    }
    if let Some(peer) = far {
        levels.push(level(communicator, peer, transport, hosts(communicator).len())?);
    }
    let add_bandwidth = add_bandwidth(communicator, near.or(far).unwrap_or(0))?;
    Ok(Links { levels, add_bandwidth })
}

/// Computers in the order of their first ranks, each with its ranks.
pub fn hosts(communicator: &Communicator) -> Vec<Vec<usize>> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut hosts: Vec<Vec<usize>> = vec![];
    for rank in 0..communicator.size() {
        let place = *places.entry(communicator.host(rank)).or_insert(hosts.len());
        if place == hosts.len() {
            hosts.push(vec![]);
        }
        hosts[place].push(rank);
    }
    hosts
}

fn level(communicator: &Communicator, peer: usize, transport: Transport, nodes: usize) -> Result<Level, Error> {
    let trip = |bytes: usize, times: usize| trip(communicator, peer, bytes, times);
    let short = trip(8, SHORT)?;
    let message_seconds = burst(communicator, peer)?.clamp(1e-7, short.max(1e-7));
    let latency_seconds = (short - message_seconds).max(1e-8);
    let long = trip(LONG, 2)? - latency_seconds;
    // Inside a computer a send copies in and a receive copies out, each by a core: the bandwidth of each is twice that of both.
    let by_cores = nodes == 1;
    let bandwidth = if by_cores { 2.0 } else { 1.0 } * LONG as f64 / long.max(1e-9);
    let name = match (transport, by_cores) {
        (Transport::Threads, _) => "threads",
        (Transport::Mpi, true) => "MPI inside a node",
        (Transport::Mpi, false) => "MPI between nodes",
    };
    let links = (!by_cores).then_some(1);
    Ok(Level { name: name.into(), nodes, latency_seconds, bandwidth, message_seconds, links, by_cores })
}

/// Seconds one way of a message that goes to and fro, at best.
fn trip(communicator: &Communicator, peer: usize, bytes: usize, times: usize) -> Result<f64, Error> {
    let mut message = vec![0; bytes];
    let rounds = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        for _ in 0..times {
            if communicator.rank() == 0 {
                communicator.send(peer, TAG, &message);
                receive(communicator, peer, &mut message)?;
            } else if communicator.rank() == peer {
                receive(communicator, 0, &mut message)?;
                communicator.send(0, TAG, &message);
            }
        }
        Ok(began.elapsed().as_secs_f64() / (2 * times) as f64)
    });
    best(rounds)
}

/// Seconds of each of many short messages that follow each other.
fn burst(communicator: &Communicator, peer: usize) -> Result<f64, Error> {
    let mut message = [0; 8];
    let rounds = (0..ROUNDS).map(|_| {
        let began = Instant::now();
        if communicator.rank() == 0 {
            (0..SHORT).for_each(|_| communicator.send(peer, TAG, &message));
            receive(communicator, peer, &mut message)?;
        } else if communicator.rank() == peer {
            for _ in 0..SHORT {
                receive(communicator, 0, &mut message)?;
            }
            communicator.send(0, TAG, &message);
        }
        Ok(began.elapsed().as_secs_f64() / (SHORT + 1) as f64)
    });
    best(rounds)
}

/// Bytes a second that a rank reads and writes while it adds what came to what it has, at best.
fn add_bandwidth(communicator: &Communicator, peer: usize) -> Result<f64, Error> {
    let (mut message, mut sums) = (vec![0; LONG], vec![0.0f32; LONG / 4]);
    let rounds = (0..ROUNDS).map(|_| {
        if communicator.rank() == peer {
            communicator.send(0, TAG, &message);
        }
        if communicator.rank() > 0 {
            return Ok(1.0);
        }
        receive(communicator, peer, &mut message)?;
        let began = Instant::now();
        for (sum, part) in sums.iter_mut().zip(message.as_chunks().0) {
            *sum += f32::from_le_bytes(*part);
        }
        Ok(began.elapsed().as_secs_f64())
    });
    let seconds = best(rounds)?;
    Ok(std::hint::black_box(sums).len() as f64 * 12.0 / seconds.max(1e-9))
}

/// Waits as a rank does in a step: between looks it yields. What takes longer than any message is waited for as anything else
/// is, with a deadline.
fn receive(communicator: &Communicator, from: usize, into: &mut [u8]) -> Result<(), Error> {
    let began = Instant::now();
    while !communicator.try_receive(from, TAG, into)? {
        if began.elapsed() > LATE {
            return Ok(communicator.receive(from, TAG, into, "a message whose time is measured")?);
        }
        communicator.look_around()?;
        std::thread::yield_now();
    }
    Ok(())
}

fn best(rounds: impl Iterator<Item = Result<f64, Error>>) -> Result<f64, Error> {
    rounds.collect::<Result<Vec<f64>, Error>>().map(|all| all.into_iter().fold(f64::INFINITY, f64::min))
}
