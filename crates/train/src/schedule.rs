//! Schedules: the learning rate of each step, as a function of the step alone.
//!
//! Always true
//! - Warm-up rises linearly, from `lr / n` in the first step to `lr` in the `n`-th; the curve begins at the step after.
//! - The same bits on every machine: cosine and power are our own.
//!
//! Knows nothing of optimizers. Twin: PyTorch's closed formulas, in the tests.

use crate::Error;
use crate::optimizer::{above_zero, check};
use convoy_kernels::math::{exp64, log64};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// The learning rate of each step.
///
/// ```
/// use convoy_train::{Curve, Schedule};
/// let schedule: Schedule = toml::from_str("kind = 'cosine'\nlr = 0.1\nwarmup_epochs = 1").unwrap();
/// assert_eq!(schedule, Schedule { lr: 0.1, warmup_epochs: 1.0, curve: Curve::Cosine });
/// // Ten steps an epoch, a hundred in all.
/// assert_eq!(schedule.rate(0, 10, 100), 0.01);
/// assert_eq!(schedule.rate(10, 10, 100), 0.1);
/// assert_eq!(schedule.rate(55, 10, 100), 0.05);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct Schedule {
    /// The rate after warm-up.
    pub lr: f64,
    /// Epochs of linear warm-up, parts of an epoch included.
    pub warmup_epochs: f64,
    /// What follows.
    pub curve: Curve,
}

/// The learning rate after warm-up.
#[derive(Clone, Debug, PartialEq)]
pub enum Curve {
    /// It stays.
    Constant,
    /// Times `gamma` at each milestone, in epochs since the first step.
    Step { milestones: Vec<f64>, gamma: f64 },
    /// Half a cosine, down to 0 after the last step.
    Cosine,
    /// The share of steps that is left, to this power.
    Polynomial { power: f64 },
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule { lr: 0.1, warmup_epochs: 0.0, curve: Curve::Cosine }
    }
}

impl Schedule {
    /// The words for the kinds of curves.
    pub const KINDS: [&str; 4] = ["constant", "step", "cosine", "polynomial"];

    /// The schedule of a kind with its defaults.
    pub fn of_kind(kind: &str) -> Result<Schedule, Error> {
        let curve = match kind {
            "constant" => Curve::Constant,
            "step" => Curve::Step { milestones: vec![30.0, 60.0, 90.0], gamma: 0.1 },
            "cosine" => Curve::Cosine,
            "polynomial" => Curve::Polynomial { power: 1.0 },
            _ => return Err(Error::Kind { what: "schedule", found: kind.into(), known: &Schedule::KINDS }),
        };
        Ok(Schedule { curve, ..Schedule::default() })
    }

    /// The learning rate of the step that comes after `step` others. `total_steps` is where a curve ends.
    pub fn rate(&self, step: u64, steps_per_epoch: u64, total_steps: u64) -> f32 {
        // To the nearest step: 0.1 epochs of 70 steps are 7, though the product is a little more.
        let steps = |epochs: f64| (epochs * steps_per_epoch as f64).round() as u64;
        let warmup = steps(self.warmup_epochs);
        if step < warmup {
            return (self.lr * (step + 1) as f64 / warmup as f64) as f32;
        }
        let length = total_steps.saturating_sub(warmup).max(1) as f64;
        let gone = ((step - warmup) as f64 / length).min(1.0);
        let factor = match &self.curve {
            Curve::Constant => 1.0,
            Curve::Step { milestones, gamma } => {
                milestones.iter().filter(|&&epochs| steps(epochs) <= step).fold(1.0, |factor, _| factor * gamma)
            }
            Curve::Cosine => 0.5 * (1.0 + cosine(gone)),
            Curve::Polynomial { power } => exp64(power * log64(1.0 - gone)),
        };
        (self.lr * factor) as f32
    }

    /// All settings that are not possible.
    pub fn verify(&self) -> Vec<Error> {
        let at_least_zero = |setting, x: f64| check(setting, x, x >= 0.0 && x.is_finite(), "0 or more");
        let mut checks =
            vec![above_zero("schedule.lr", self.lr), at_least_zero("schedule.warmup_epochs", self.warmup_epochs)];
        match &self.curve {
            Curve::Constant | Curve::Cosine => {}
            Curve::Step { milestones, gamma } => {
                checks.push(above_zero("schedule.gamma", *gamma));
                checks.extend(milestones.iter().map(|&epochs| at_least_zero("schedule.milestones", epochs)));
            }
            Curve::Polynomial { power } => checks.push(above_zero("schedule.power", *power)),
        }
        checks.into_iter().filter_map(Result::err).collect()
    }
}

/// cos(π·t) for t from 0 to 1, by its series: terms up to the 22nd power leave less than 2^-53 at π/2.
fn cosine(t: f64) -> f64 {
    if t > 0.5 {
        return -cosine(1.0 - t);
    }
    let square = (PI * t) * (PI * t);
    // 1 - x²/(1·2)·(1 - x²/(3·4)·(1 - ...)), the smallest term first.
    (1..=11).rev().map(f64::from).fold(1.0, |sum, k| 1.0 - square / ((2.0 * k - 1.0) * 2.0 * k) * sum)
}

/// A schedule as it stands in a job: one flat table, where each kind has fields of its own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(default = "cosine_kind")]
    kind: String,
    #[serde(default = "default_lr")]
    lr: f64,
    #[serde(default)]
    warmup_epochs: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    milestones: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gamma: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    power: Option<f64>,
}

fn cosine_kind() -> String {
    "cosine".into()
}

fn default_lr() -> f64 {
    Schedule::default().lr
}

impl TryFrom<Fields> for Schedule {
    type Error = Error;

    fn try_from(fields: Fields) -> Result<Schedule, Error> {
        let Fields { kind, lr, warmup_epochs, milestones, gamma, power } = fields;
        let mut schedule = Schedule { lr, warmup_epochs, ..Schedule::of_kind(&kind)? };
        let (milestones, gamma, power) = match &mut schedule.curve {
            Curve::Step { milestones: default_milestones, gamma: default_gamma } => {
                *default_milestones = milestones.unwrap_or(default_milestones.clone());
                *default_gamma = gamma.unwrap_or(*default_gamma);
                (None, None, power)
            }
            Curve::Polynomial { power: default_power } => {
                *default_power = power.unwrap_or(*default_power);
                (milestones, gamma, None)
            }
            Curve::Constant | Curve::Cosine => (milestones, gamma, power),
        };
        // What no kind took belongs to another.
        let left = [
            ("milestones", milestones.is_some(), "step"),
            ("gamma", gamma.is_some(), "step"),
            ("power", power.is_some(), "polynomial"),
        ];
        match left.into_iter().find(|(_, found, _)| *found) {
            Some((field, _, belongs)) => Err(Error::ForeignField { field, kind, belongs }),
            None => Ok(schedule),
        }
    }
}

impl From<Schedule> for Fields {
    fn from(Schedule { lr, warmup_epochs, curve }: Schedule) -> Fields {
        let plain =
            |kind: &str| Fields { kind: kind.into(), lr, warmup_epochs, milestones: None, gamma: None, power: None };
        match curve {
            Curve::Constant => plain("constant"),
            Curve::Step { milestones, gamma } => {
                Fields { milestones: Some(milestones), gamma: Some(gamma), ..plain("step") }
            }
            Curve::Cosine => plain("cosine"),
            Curve::Polynomial { power } => Fields { power: Some(power), ..plain("polynomial") },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves() -> [Curve; 5] {
        [
            Curve::Constant,
            Curve::Step { milestones: vec![1.5, 3.0], gamma: 0.1 },
            Curve::Cosine,
            Curve::Polynomial { power: 1.0 },
            Curve::Polynomial { power: 2.5 },
        ]
    }

    /// PyTorch's closed formulas: MultiStepLR, CosineAnnealingLR with T_max = the steps after warm-up and eta_min = 0,
    /// PolynomialLR with total_iters alike, each behind LinearLR(1/n, total_iters = n - 1) by SequentialLR.
    fn by_formula(schedule: &Schedule, step: f64, per_epoch: f64, warmup: f64, total: f64) -> f64 {
        let lr = schedule.lr;
        if step < warmup {
            let (start, iterations) = (1.0 / warmup, (warmup - 1.0).max(1.0));
            return lr * (start + (1.0 - start) * step / iterations);
        }
        let (step, length) = (step - warmup, total - warmup);
        match &schedule.curve {
            Curve::Constant => lr,
            Curve::Step { milestones, gamma } => {
                lr * gamma.powi(milestones.iter().filter(|&&m| m * per_epoch <= step + warmup).count() as i32)
            }
            Curve::Cosine => lr * (1.0 + (PI * step / length).cos()) / 2.0,
            Curve::Polynomial { power } => lr * (1.0 - step / length).powf(*power),
        }
    }

    #[test]
    fn rates_are_those_of_pytorch() {
        let (per_epoch, total) = (70, 350);
        for curve in curves() {
            for (warmup_epochs, warmup) in [(0.0, 0), (0.1, 7), (2.0, 140)] {
                let schedule = Schedule { lr: 0.3, warmup_epochs, curve: curve.clone() };
                for step in 0..=total {
                    let found = schedule.rate(step, per_epoch, total) as f64;
                    let wanted = by_formula(&schedule, step as f64, per_epoch as f64, warmup as f64, total as f64);
                    // Rounded once to single precision, after some roundings in double.
                    let tolerance = wanted * 2f64.powi(-24) + 1e-15;
                    assert!((found - wanted).abs() <= tolerance, "{schedule:?}, step {step}: {found}, not {wanted}");
                }
            }
        }
    }

    #[test]
    fn curves_end_at_zero_and_stay_there() {
        for curve in [Curve::Cosine, Curve::Polynomial { power: 2.0 }] {
            let schedule = Schedule { lr: 0.1, warmup_epochs: 1.0, curve };
            assert!(schedule.rate(99, 10, 100) > 0.0);
            assert_eq!(schedule.rate(100, 10, 100), 0.0);
            assert_eq!(schedule.rate(1000, 10, 100), 0.0);
        }
        // Warm-up longer than training, and training of no steps: still numbers.
        let schedule = Schedule { lr: 0.1, warmup_epochs: 5.0, curve: Curve::Cosine };
        assert_eq!(schedule.rate(24, 10, 25), 0.05);
        assert_eq!(schedule.rate(50, 10, 25), 0.1);
        assert_eq!(Schedule::default().rate(0, 0, 0), 0.1);
    }

    #[test]
    fn cosine_is_a_cosine() {
        for i in 0..=1000 {
            let t = i as f64 / 1000.0;
            // Eleven factors, each rounded a few times, the sum at most 1.
            assert!((cosine(t) - (PI * t).cos()).abs() < 4.0 * f64::EPSILON, "{t}");
        }
        assert_eq!((cosine(0.0), cosine(1.0)), (1.0, -1.0));
    }

    #[test]
    fn jobs_are_read_and_written() {
        for curve in curves() {
            let schedule = Schedule { lr: 0.25, warmup_epochs: 0.5, curve };
            assert_eq!(toml::from_str::<Schedule>(&toml::to_string(&schedule).unwrap()).unwrap(), schedule);
        }
        assert_eq!(toml::from_str::<Schedule>("").unwrap(), Schedule::default());
        for kind in Schedule::KINDS {
            let read: Schedule = toml::from_str(&format!("kind = '{kind}'")).unwrap();
            assert_eq!(read, Schedule::of_kind(kind).unwrap());
            assert_eq!(read.verify().len(), 0);
        }
        let step = toml::from_str::<Schedule>("kind = 'step'\nlr = 1\nmilestones = [30, 60]\ngamma = 0.5").unwrap();
        assert_eq!(step.curve, Curve::Step { milestones: vec![30.0, 60.0], gamma: 0.5 });
    }

    #[test]
    fn what_is_not_possible_is_told() {
        let error = |text: &str| toml::from_str::<Schedule>(text).unwrap_err().to_string();
        let kind = error("kind = 'cosin'");
        assert!(
            kind.contains("unknown schedule \"cosin\"\n  help: one of constant, step, cosine, polynomial"),
            "{kind}"
        );
        let foreign = error("kind = 'cosine'\npower = 2");
        assert!(foreign.contains("`power` is a field of kind \"polynomial\", not of \"cosine\""), "{foreign}");
        assert!(error("lrr = 2").contains("unknown field `lrr`"));
        let bad = f64::NAN;
        let curve = Curve::Step { milestones: vec![1.0, -1.0], gamma: 0.0 };
        let texts: Vec<String> =
            Schedule { lr: 0.0, warmup_epochs: bad, curve }.verify().iter().map(|e| e.to_string()).collect();
        assert_eq!(texts.len(), 4);
        assert_eq!(texts[0], "schedule.lr = 0 is not possible\n  help: above 0");
        assert_eq!(texts[3], "schedule.milestones = -1 is not possible\n  help: 0 or more");
    }
}
