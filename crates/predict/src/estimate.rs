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

/// What a worker or the network is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Activity {
    Compute,
    Halo,
    Reduction,
    Redistribution,
    Wait,
}

impl Activity {
    /// As [`Phases::named`] says it.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Compute => "compute",
            Activity::Halo => "halo",
            Activity::Reduction => "reduction",
            Activity::Redistribution => "redistribution",
            Activity::Wait => "wait",
        }
    }
}

/// One thing that happened in a simulation or in a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub rank: usize,
    /// The rank's worker, or none for what the network does.
    pub worker: Option<usize>,
    pub activity: Activity,
    pub name: String,
    pub start_seconds: f64,
    pub end_seconds: f64,
}

/// Threads of a trace from which on it is messages and sums that are on their way to a rank, as many as there are at a time.
const NETWORK: usize = 1000;

/// Events as a Chrome trace (chrome://tracing, ui.perfetto.dev): a process for each rank, a thread for each worker, and as many for
/// the network as messages are on their way at a time. Every event has the name of its activity as its category.
pub fn chrome_trace(events: &[Event]) -> String {
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by(|a, b| a.start_seconds.total_cmp(&b.start_seconds).then(a.end_seconds.total_cmp(&b.end_seconds)));
    let mut lines = vec![];
    // By rank: when each thread of its network is free.
    let mut free: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut threads: BTreeMap<(usize, usize), String> = BTreeMap::new();
    for event in events {
        let free = free.entry(event.rank).or_default();
        let thread = event.worker.unwrap_or_else(|| {
            let first = free.iter().position(|end| *end <= event.start_seconds).unwrap_or(free.len());
            free.resize(free.len().max(first + 1), 0.0);
            free[first] = event.end_seconds;
            NETWORK + first
        });
        let name = event.worker.map_or("network".into(), |worker| format!("worker {worker}"));
        threads.insert((event.rank, thread), name);
        let (start, length) = (event.start_seconds * 1e6, (event.end_seconds - event.start_seconds) * 1e6);
        let name = event.name.replace('\\', "/").replace('"', "'");
        lines.push(format!(
            "{{\"ph\":\"X\",\"name\":\"{name}\",\"cat\":\"{}\",\"pid\":{},\"tid\":{thread},\"ts\":{start:.3},\"dur\":{length:.3}}}",
            event.activity.name(),
            event.rank,
        ));
    }
    let mut heads: Vec<String> = vec![];
    for rank in free.keys() {
        heads.push(format!(
            "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{rank},\"args\":{{\"name\":\"rank {rank}\"}}}}"
        ));
    }
    for ((rank, thread), name) in &threads {
        heads.push(format!(
            "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{rank},\"tid\":{thread},\"args\":{{\"name\":\"{name}\"}}}}"
        ));
    }
    heads.extend(lines);
    format!("[\n{}\n]\n", heads.join(",\n"))
}
