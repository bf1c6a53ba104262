//! Predicted beside measured: what some steps of a run took, by phase and by layer, and what the simulator says of them.

use crate::calibration;
use crate::error::Error;
use crate::links::Transport;
use crate::measured::Measured;
use crate::run::Run;
use crate::words::table;
use crate::world::World;
use convoy_kernels::Mode;
use convoy_net::Network;
use convoy_predict::{Collectives, Estimate, Folding, LayerTimes, Phases, Question, simulate};
use convoy_program::lower;
use convoy_split::Rank;
use convoy_train::{Outcome, UNRECORDED};
use serde_json::{Value, json};

/// Layers that are shown to people: those that take most.
const SHOWN: usize = 8;

/// What some steps took, and should have taken.
pub struct Times {
    pub measured: Measured,
    /// Where this computer was calibrated.
    predicted: Option<Estimate>,
}

impl Times {
    /// Of a run that is over; nothing where no step was recorded.
    pub fn new(run: &Run, world: &World, outcome: &Outcome) -> Result<Option<Times>, Error> {
        let setup = run.setup()?;
        let options = setup.options(setup.batch, Mode::Train);
        let mut programs = vec![];
        for rank in 0..outcome.recordings.len() {
            programs.push(lower(&setup.network, &setup.strategy, Rank(rank), &options)?);
        }
        let Some(measured) = Measured::new(&outcome.recordings, &programs, &setup.network) else { return Ok(None) };
        let machine = run.ready().machine.clone().or_else(|| {
            let cached = |transport| calibration::cached(transport).filter(|(_, flaw)| flaw.is_none());
            let processes = world.ranks().is_some_and(|ranks| ranks > 1);
            let measured = processes.then(|| cached(Transport::Mpi)).flatten().or_else(|| cached(Transport::Threads));
            measured.map(|(machine, _)| machine)
        });
        let predicted = machine.and_then(|machine| {
            let question = Question {
                network: &setup.network,
                strategy: &setup.strategy,
                options: &options,
                machine: &machine,
                threads: Some(setup.threads),
                ranks_per_node: Some(world.ranks_per_node(setup.strategy.ranks)),
                collectives: Collectives::Direct,
                folding: Folding::Alike,
            };
            // More unlike ranks than a simulation takes: then there is no prediction.
            simulate(&question, false).ok().map(|found| found.estimate)
        });
        Ok(Some(Times { measured, predicted }))
    }

    /// Tables for people.
    pub fn words(&self, network: &Network) -> String {
        let phases = self.measured.phases.named().into_iter();
        let predicted = |at: usize| self.predicted.as_ref().map_or(String::new(), |e| ms(e.phases.named()[at].1));
        let mut rows: Vec<Vec<String>> =
            phases.enumerate().map(|(i, (name, time))| vec![name.to_string(), predicted(i), ms(time)]).collect();
        let step = self.predicted.as_ref().map_or(String::new(), |e| ms(e.step_seconds));
        rows.push(vec!["step".into(), step, ms(self.measured.step_seconds)]);
        let mut layers: Vec<(usize, [f64; 2])> = self.layers(network.layers.len());
        layers.sort_by(|a, b| b.1[1].total_cmp(&a.1[1]));
        let by_layer = layers.iter().take(SHOWN).map(|(layer, [predicted, measured])| {
            let predicted = self.predicted.as_ref().map_or(String::new(), |_| ms(*predicted));
            vec![network.layers[*layer].name.clone(), predicted, ms(*measured)]
        });
        let by_layer: Vec<Vec<String>> = by_layer.collect();
        let missing = match self.predicted {
            Some(_) => "",
            None => "; `convoy calibrate` lets the next run say what was predicted",
        };
        let lost = match self.measured.lost {
            0 => String::new(),
            lost => format!("; {lost} tiles and messages were too many to be recorded"),
        };
        format!(
            "\n{}\n\n{}\n\nMilliseconds of a step, of the busiest rank, over steps {} to {}; layers: computing by all its workers, \
             the {} that take most{missing}{lost}.",
            table(&["phase", "predicted", "measured"], &[], rows),
            table(&["layer", "predicted", "measured"], &[], by_layer),
            UNRECORDED + 1,
            UNRECORDED + self.measured.steps as u64,
            layers.len().min(SHOWN),
        )
    }

    /// By layer: seconds that workers computed for it, predicted and measured.
    fn layers(&self, count: usize) -> Vec<(usize, [f64; 2])> {
        let compute = |times: Option<&LayerTimes>| times.map_or(0.0, |t| t.compute.values().sum::<f64>());
        let both = |layer: usize| {
            let predicted = self.predicted.as_ref().and_then(|e| e.layers.get(&layer));
            [compute(predicted), compute(self.measured.layers.get(&layer))]
        };
        (0..count).map(|layer| (layer, both(layer))).filter(|(_, times)| times[1] > 0.0).collect()
    }

    /// All of it for programs.
    pub fn object(&self, network: &Network) -> Value {
        let phases = |p: &Phases| Value::Object(p.named().iter().map(|(n, t)| (n.to_string(), json!(t))).collect());
        let layers = self.layers(network.layers.len()).into_iter().map(|(layer, [predicted, measured])| {
            let moved = |times: Option<&LayerTimes>| {
                times.map(|t| json!({ "halo": t.halo, "reduction": t.reduction, "redistribution": t.redistribution }))
            };
            let estimated = self.predicted.as_ref().and_then(|e| e.layers.get(&layer));
            json!({
                "layer": network.layers[layer].name,
                "measured_compute_seconds": measured,
                "predicted_compute_seconds": self.predicted.as_ref().map(|_| predicted),
                "measured_moving_seconds": moved(self.measured.layers.get(&layer)),
                "predicted_moving_seconds": moved(estimated),
            })
        });
        json!({
            "steps": self.measured.steps,
            "measured_step_seconds": self.measured.step_seconds,
            "predicted_step_seconds": self.predicted.as_ref().map(|e| e.step_seconds),
            "measured": phases(&self.measured.phases),
            "predicted": self.predicted.as_ref().map(|e| phases(&e.phases)),
            "layers": layers.collect::<Vec<_>>(),
        })
    }
}

fn ms(seconds: f64) -> String {
    format!("{:.3}", 1e3 * seconds)
}
