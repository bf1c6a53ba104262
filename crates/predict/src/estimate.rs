//! Estimates: what a simulation says.

use crate::script::PassGroup;
use std::collections::BTreeMap;

/// A prediction of one training step.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    pub step_seconds: f64,
    /// Where the busiest rank's time goes; sums up to the step.
    pub phases: Phases,
    /// By layer's number, of the busiest rank; what belongs to no layer (the loss) is not listed.
    pub layers: BTreeMap<usize, LayerTimes>,
    /// Bytes and messages that all ranks send together.
    pub sent_bytes: f64,
    pub messages: f64,
    /// What the heaviest rank's engine holds.
    pub memory_bytes: usize,
    /// Memory that the node with the least of it has for each of its ranks.
    pub memory_limit_bytes: f64,
    /// Share of all workers' time in which they compute.
    pub efficiency: f64,
    /// What takes most of the time.
    pub bottleneck: String,
    pub ranks: usize,
    /// Ranks that were told apart and simulated.
    pub simulated_ranks: usize,
    pub threads: usize,
}

/// Seconds of a step by what a rank's workers do or wait for, averaged over them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    pub compute: f64,
    pub halo: f64,
    pub reduction: f64,
    pub redistribution: f64,
    /// For other ranks, for other workers, or for a core.
    pub wait: f64,
}

impl Phases {
    /// Each with its name.
    pub fn named(&self) -> [(&'static str, f64); 5] {
        [
            ("compute", self.compute),
            ("halo", self.halo),
            ("reduction", self.reduction),
            ("redistribution", self.redistribution),
            ("wait", self.wait),
        ]
    }
}

/// What one layer costs on one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerTimes {
    /// Seconds of all workers, by pass.
    pub compute: BTreeMap<PassGroup, f64>,
    /// Seconds for which its messages and sums are on their way, overlapped or not.
    pub halo: f64,
    pub reduction: f64,
    pub redistribution: f64,
    pub sent_bytes: f64,
}

/// One thing that happened in a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub rank: usize,
    /// The rank's worker, or none for what the network does.
    pub worker: Option<usize>,
    pub name: String,
    pub start_seconds: f64,
    pub end_seconds: f64,
}

/// Events as a Chrome trace (chrome://tracing, ui.perfetto.dev): a process for each rank, a thread for each worker and one for
/// the network.
pub fn chrome_trace(events: &[Event]) -> String {
    let mut text = String::from("[\n");
    let mut ranks: Vec<usize> = events.iter().map(|e| e.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    for rank in ranks {
        text += &format!(
            "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{rank},\"args\":{{\"name\":\"rank {rank}\"}}}},\n\
             {{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{rank},\"tid\":1000,\"args\":{{\"name\":\"network\"}}}},\n"
        );
    }
    for event in events {
        let (start, length) = (event.start_seconds * 1e6, (event.end_seconds - event.start_seconds) * 1e6);
        let name = event.name.replace('\\', "/").replace('"', "'");
        text += &format!(
            "{{\"ph\":\"X\",\"name\":\"{name}\",\"pid\":{},\"tid\":{},\"ts\":{start:.3},\"dur\":{length:.3}}},\n",
            event.rank,
            event.worker.unwrap_or(1000)
        );
    }
    let end = text.trim_end_matches([',', '\n']).len();
    text.truncate(end);
    text + "\n]\n"
}
