//! What some steps of a run took: by phase and by layer as a prediction says it, and everything that happened, for a trace.
//!
//! Ranks write down when tiles and messages began and ended ([`Recording`]); the programs say what these were. A message is on its
//! way from when its sender gave it away until its receiver had it. Time in which a worker has nothing to do is booked as the
//! simulator does it: to a halo that is on its way to the rank, else to a redistribution, else to a sum, else it is waiting.
//!
//! Clocks of several computers are taken as they are.

use convoy_engine::{Recording, Span};
use convoy_net::Network;
use convoy_predict::{Activity, Done, Event, LayerTimes, Phases, done};
use convoy_program::{Action, Program};
use std::collections::{BTreeMap, HashMap};

/// Steps of a run that are recorded.
pub const STEPS: u64 = 3;

/// What some steps took.
#[derive(Clone, Debug)]
pub struct Measured {
    pub steps: usize,
    /// From the first rank's start to the last rank's end, averaged over steps.
    pub step_seconds: f64,
    /// Of the busiest rank, as [`convoy_predict::Estimate`] has it.
    pub phases: Phases,
    pub layers: BTreeMap<usize, LayerTimes>,
    pub events: Vec<Event>,
    /// Spans that were not kept.
    pub lost: usize,
}

/// A message on its way to a rank.
struct Flight {
    activity: Activity,
    start: u64,
    end: u64,
}

/// One rank, before its numbers are put together.
#[derive(Default)]
struct Member {
    phases: Phases,
    layers: BTreeMap<usize, LayerTimes>,
}

impl Measured {
    /// What recordings of all ranks say; nothing where no step was recorded.
    pub fn new(recordings: &[Recording], programs: &[Program], network: &Network) -> Option<Measured> {
        let steps: Vec<&Span> =
            recordings.iter().flat_map(|r| r.lanes.last()).flatten().filter(|s| s.op == Span::STEP).collect();
        let zero = steps.iter().map(|s| s.start).min()?;
        let count = steps.iter().map(|s| s.step + 1).max()? as usize;
        let length = |step: u32| {
            let of = || steps.iter().filter(move |s| s.step == step);
            let (start, end) = (of().map(|s| s.start).min(), of().map(|s| s.end).max());
            end.unwrap_or(0).saturating_sub(start.unwrap_or(0))
        };
        let step_seconds = seconds((0..count as u32).map(length).sum::<u64>()) / count as f64;
        let names: Vec<Vec<Done>> = programs.iter().map(|program| done(program, network)).collect();
        let sent = sent(recordings, programs);
        let mut events = vec![];
        let mut members = vec![];
        for (rank, recording) in recordings.iter().enumerate() {
            let (program, names) = (&programs[rank], &names[rank]);
            let mut member = Member::default();
            let flights = flights(rank, recording, program, &sent, names);
            for (flight, op) in &flights {
                let done = &names[*op];
                let took = seconds(flight.end - flight.start) / count as f64;
                if let Some(layer) = done.layer {
                    let times = member.layers.entry(layer.0).or_default();
                    match flight.activity {
                        Activity::Halo => times.halo += took,
                        Activity::Redistribution => times.redistribution += took,
                        _ => times.reduction += took,
                    }
                }
                events.push(event(rank, None, flight.activity, done.name.clone(), (flight.start, flight.end), zero));
            }
            let flights: Vec<Flight> = flights.into_iter().map(|(flight, _)| flight).collect();
            let workers = recording.lanes.len() - 1;
            let share = 1.0 / (workers * count) as f64;
            for (worker, lane) in recording.lanes[..workers].iter().enumerate() {
                for span in lane {
                    let (activity, name) = match names.get(span.op as usize) {
                        Some(done) => {
                            member.work(done, seconds(span.end - span.start), share, count);
                            (done.activity, done.name.clone())
                        }
                        None => {
                            member.wait(span, &flights, share);
                            (Activity::Wait, "wait".into())
                        }
                    };
                    events.push(event(rank, Some(worker), activity, name, (span.start, span.end), zero));
                }
            }
            members.push(member);
        }
        let busiest = members.into_iter().reduce(|a, b| if b.phases.compute > a.phases.compute { b } else { a })?;
        let mut phases = busiest.phases;
        // What is between tiles, and waiting for the slowest rank before and after the step.
        phases.wait += (step_seconds - phases.named().iter().map(|(_, time)| time).sum::<f64>()).max(0.0);
        let lost = recordings.iter().map(|r| r.lost).sum();
        Some(Measured { steps: count, step_seconds, phases, layers: busiest.layers, events, lost })
    }
}

impl Member {
    /// A tile.
    fn work(&mut self, done: &Done, took: f64, share: f64, steps: usize) {
        match done.activity {
            Activity::Reduction => self.phases.reduction += took * share,
            _ => self.phases.compute += took * share,
        }
        if let (Some(layer), Activity::Compute) = (done.layer, done.activity) {
            let times = self.layers.entry(layer.0).or_default();
            *times.compute.entry(done.part).or_insert(0.0) += took / steps as f64;
        }
    }

    /// A worker had nothing to do while messages were on their way, or not.
    fn wait(&mut self, span: &Span, flights: &[Flight], share: f64) {
        let mut cuts = vec![span.start, span.end];
        let during: Vec<&Flight> = flights.iter().filter(|f| f.start < span.end && span.start < f.end).collect();
        cuts.extend(during.iter().flat_map(|f| [f.start, f.end]).filter(|t| (span.start..span.end).contains(t)));
        cuts.sort_unstable();
        for pair in cuts.windows(2) {
            let is = |activity: Activity| {
                during.iter().any(|f| f.activity == activity && f.start <= pair[0] && pair[1] <= f.end)
            };
            let took = seconds(pair[1] - pair[0]) * share;
            if is(Activity::Halo) {
                self.phases.halo += took;
            } else if is(Activity::Redistribution) {
                self.phases.redistribution += took;
            } else if is(Activity::Reduction) {
                self.phases.reduction += took;
            } else {
                self.phases.wait += took;
            }
        }
    }
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-9
}

fn event(
    rank: usize,
    worker: Option<usize>,
    activity: Activity,
    name: String,
    (start, end): (u64, u64),
    zero: u64,
) -> Event {
    let [start_seconds, end_seconds] = [start, end].map(|time| seconds(time.saturating_sub(zero)));
    Event { rank, worker, activity, name, start_seconds, end_seconds }
}

/// By step, source, target and tag: when a message left.
type Sent = HashMap<(u32, usize, usize, u64), u64>;

fn sent(recordings: &[Recording], programs: &[Program]) -> Sent {
    let mut sent = Sent::new();
    for (rank, recording) in recordings.iter().enumerate() {
        for span in recording.lanes.last().into_iter().flatten() {
            if let Some(Action::Send { to, tag, .. }) = action(&programs[rank], span) {
                sent.insert((span.step, rank, to.0, *tag), span.end);
            }
        }
    }
    sent
}

/// Messages that came to a rank, each with the op that received it.
fn flights(rank: usize, recording: &Recording, program: &Program, sent: &Sent, names: &[Done]) -> Vec<(Flight, usize)> {
    let mut flights = vec![];
    for span in recording.lanes.last().into_iter().flatten() {
        let left = match action(program, span) {
            Some(Action::Receive { from, tag, .. }) => sent.get(&(span.step, from.0, rank, *tag)).copied(),
            Some(Action::AllReduce { .. }) => None,
            _ => continue,
        };
        let activity = names[span.op as usize].activity;
        let start = left.unwrap_or(span.start).min(span.end);
        flights.push((Flight { activity, start, end: span.end }, span.op as usize));
    }
    flights
}

fn action<'a>(program: &'a Program, span: &Span) -> Option<&'a Action> {
    program.ops.get(span.op as usize).map(|op| &op.action)
}
