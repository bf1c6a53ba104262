//! Optimizers: what a job says about how gradients change weights.
//!
//! Only settings and what is possible for them; defaults are PyTorch's, but for momentum, which is 0.9. The arithmetic is
//! [`Update`], the learning rate comes from [`crate::Schedule`].

use crate::Error;
use convoy_kernels::Update;
use serde::{Deserialize, Serialize};

/// How gradients change weights.
///
/// ```
/// use convoy_train::{Optimizer, Sgd};
/// let optimizer: Optimizer = toml::from_str("kind = 'sgd'\nweight_decay = 5e-4").unwrap();
/// assert_eq!(optimizer, Optimizer::Sgd(Sgd { weight_decay: 5e-4, ..Sgd::default() }));
/// assert_eq!(optimizer.states(), ["momentum"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Optimizer {
    Sgd(Sgd),
    Adam(Adam),
    AdamW(AdamW),
    RmsProp(RmsProp),
    Lars(Lars),
}

/// Stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sgd {
    pub momentum: f64,
    pub nesterov: bool,
    /// Times the weight is added to its gradient.
    pub weight_decay: f64,
}

/// Adam; weight decay is added to the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adam {
    /// How much of the means of gradients and of their squares stays from step to step.
    pub betas: [f64; 2],
    pub epsilon: f64,
    pub weight_decay: f64,
}

/// Adam with decoupled weight decay: weights shrink by learning rate times decay, whatever their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW {
    pub betas: [f64; 2],
    pub epsilon: f64,
    pub weight_decay: f64,
}

/// RMSprop, not centred.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmsProp {
    /// How much of the mean of squared gradients stays from step to step.
    pub alpha: f64,
    pub epsilon: f64,
    pub momentum: f64,
    pub weight_decay: f64,
}

/// Layer-wise adaptive rate scaling: each parameter's rate is scaled by its norm over that of its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lars {
    pub momentum: f64,
    pub weight_decay: f64,
    /// The trust coefficient: a step's size over the parameter's, at learning rate 1.
    pub trust: f64,
}

impl Default for Sgd {
    fn default() -> Sgd {
        Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }
    }
}

impl Default for Adam {
    fn default() -> Adam {
        Adam { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.0 }
    }
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl Default for RmsProp {
    fn default() -> RmsProp {
        RmsProp { alpha: 0.99, epsilon: 1e-8, momentum: 0.0, weight_decay: 0.0 }
    }
}

impl Default for Lars {
    fn default() -> Lars {
        Lars { momentum: 0.9, weight_decay: 0.0, trust: 0.001 }
    }
}

impl Default for Optimizer {
    fn default() -> Optimizer {
        Optimizer::Sgd(Sgd::default())
    }
}

impl Optimizer {
    /// The words for the kinds.
    pub const KINDS: [&str; 5] = ["sgd", "adam", "adamw", "rmsprop", "lars"];

    /// The optimizer of a kind with its defaults.
    pub fn of_kind(kind: &str) -> Result<Optimizer, Error> {
        Ok(match kind {
            "sgd" => Optimizer::Sgd(Sgd::default()),
            "adam" => Optimizer::Adam(Adam::default()),
            "adamw" => Optimizer::AdamW(AdamW::default()),
            "rmsprop" => Optimizer::RmsProp(RmsProp::default()),
            "lars" => Optimizer::Lars(Lars::default()),
            _ => return Err(Error::Kind { what: "optimizer", found: kind.into(), known: &Optimizer::KINDS }),
        })
    }

    /// What it remembers of each parameter, in the order of its states; each is as large as the parameter and begins at 0.
    pub fn states(&self) -> Vec<&'static str> {
        let all: &[&'static str] = match self {
            Optimizer::Sgd(_) | Optimizer::Lars(_) => &["momentum"],
            Optimizer::Adam(_) | Optimizer::AdamW(_) => &["mean", "square"],
            Optimizer::RmsProp(_) => &["square", "momentum"],
        };
        // Without momentum the last one is not kept.
        all[..self.update().states()].to_vec()
    }

    /// Its arithmetic.
    pub fn update(&self) -> Update {
        let adam = |betas: [f64; 2], epsilon: f64, weight_decay: f64, decoupled| {
            let ([beta1, beta2], epsilon, weight_decay) =
                (betas.map(|b| b as f32), epsilon as f32, weight_decay as f32);
            Update::Adam { beta1, beta2, epsilon, weight_decay, decoupled }
        };
        match *self {
            Optimizer::Sgd(Sgd { momentum, nesterov, weight_decay }) => {
                Update::Sgd { momentum: momentum as f32, nesterov, weight_decay: weight_decay as f32 }
            }
            Optimizer::Adam(Adam { betas, epsilon, weight_decay }) => adam(betas, epsilon, weight_decay, false),
            Optimizer::AdamW(AdamW { betas, epsilon, weight_decay }) => adam(betas, epsilon, weight_decay, true),
            Optimizer::RmsProp(RmsProp { alpha, epsilon, momentum, weight_decay }) => Update::RmsProp {
                alpha: alpha as f32,
                epsilon: epsilon as f32,
                momentum: momentum as f32,
                weight_decay: weight_decay as f32,
            },
            Optimizer::Lars(Lars { momentum, weight_decay, trust }) => {
                Update::Lars { momentum: momentum as f32, weight_decay: weight_decay as f32, trust: trust as f32 }
            }
        }
    }

    /// All settings that are not possible.
    pub fn verify(&self) -> Vec<Error> {
        match *self {
            Optimizer::Sgd(Sgd { momentum, nesterov, weight_decay }) => {
                let mut errors = all([share("optimizer.momentum", momentum), decay(weight_decay)]);
                if nesterov && momentum == 0.0 {
                    let possible = "nesterov needs a momentum above 0";
                    errors.push(Error::Setting { setting: "optimizer.nesterov", found: "true".into(), possible });
                }
                errors
            }
            Optimizer::Adam(Adam { betas, epsilon, weight_decay })
            | Optimizer::AdamW(AdamW { betas, epsilon, weight_decay }) => all([
                share("optimizer.betas, the first", betas[0]),
                share("optimizer.betas, the second", betas[1]),
                above_zero("optimizer.epsilon", epsilon),
                decay(weight_decay),
            ]),
            Optimizer::RmsProp(RmsProp { alpha, epsilon, momentum, weight_decay }) => all([
                share("optimizer.alpha", alpha),
                above_zero("optimizer.epsilon", epsilon),
                share("optimizer.momentum", momentum),
                decay(weight_decay),
            ]),
            Optimizer::Lars(Lars { momentum, weight_decay, trust }) => {
                all([share("optimizer.momentum", momentum), decay(weight_decay), above_zero("optimizer.trust", trust)])
            }
        }
    }
}

fn all<const N: usize>(checks: [Result<(), Error>; N]) -> Vec<Error> {
    checks.into_iter().filter_map(Result::err).collect()
}

fn share(setting: &'static str, found: f64) -> Result<(), Error> {
    // As single precision, which the arithmetic sees: 0.999999999 is 1 there.
    check(setting, found, found >= 0.0 && (found as f32) < 1.0, "from 0 to below 1")
}

fn decay(found: f64) -> Result<(), Error> {
    check("optimizer.weight_decay", found, found >= 0.0 && (found as f32).is_finite(), "0 or more")
}

pub(crate) fn above_zero(setting: &'static str, found: f64) -> Result<(), Error> {
    // As single precision, where the smallest numbers are 0 and the largest are none.
    let possible = if found as f32 == f32::INFINITY { "at most 3e38" } else { "above 0" };
    check(setting, found, found as f32 > 0.0 && (found as f32).is_finite(), possible)
}

pub(crate) fn check(setting: &'static str, found: f64, holds: bool, possible: &'static str) -> Result<(), Error> {
    let text = if found.abs() < 1e16 { found.to_string() } else { format!("{found:e}") };
    if holds { Ok(()) } else { Err(Error::Setting { setting, found: text, possible }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_the_words_of_a_job() {
        for kind in Optimizer::KINDS {
            let read: Optimizer = toml::from_str(&format!("kind = '{kind}'")).unwrap();
            assert_eq!(read, Optimizer::of_kind(kind).unwrap());
            assert_eq!(toml::from_str::<Optimizer>(&toml::to_string(&read).unwrap()).unwrap(), read);
            assert_eq!(read.verify().len(), 0);
        }
        let error = Optimizer::of_kind("adamm").unwrap_err().to_string();
        assert_eq!(error, "unknown optimizer \"adamm\"\n  help: one of sgd, adam, adamw, rmsprop, lars");
    }

    #[test]
    fn unknown_fields_and_kinds_are_refused() {
        let unknown = toml::from_str::<Optimizer>("kind = 'sgd'\nmomentun = 0.5").unwrap_err().to_string();
        assert!(unknown.contains("unknown field `momentun`, expected one of `momentum`"), "{unknown}");
        let foreign = toml::from_str::<Optimizer>("kind = 'adam'\nmomentum = 0.5").unwrap_err().to_string();
        assert!(foreign.contains("unknown field `momentum`"), "{foreign}");
        let kind = toml::from_str::<Optimizer>("kind = 'adamm'").unwrap_err().to_string();
        assert!(kind.contains("unknown variant `adamm`, expected one of `sgd`"), "{kind}");
    }

    #[test]
    fn all_impossible_settings_are_told() {
        let texts = |o: Optimizer| o.verify().iter().map(|e| e.to_string()).collect::<Vec<_>>();
        let sgd = Sgd { momentum: 0.0, nesterov: true, weight_decay: -1.0 };
        let wanted = [
            "optimizer.weight_decay = -1 is not possible\n  help: 0 or more",
            "optimizer.nesterov = true is not possible\n  help: nesterov needs a momentum above 0",
        ];
        assert_eq!(texts(Optimizer::Sgd(sgd)), wanted);
        let bad = f64::NAN;
        let adam = Adam { betas: [1.0, bad], epsilon: 0.0, weight_decay: bad };
        assert_eq!(texts(Optimizer::Adam(adam)).len(), 4);
        let rmsprop = RmsProp { alpha: -0.1, epsilon: bad, momentum: 1.0, weight_decay: f64::INFINITY };
        assert_eq!(texts(Optimizer::RmsProp(rmsprop)).len(), 4);
        let rounded = Adam { betas: [0.999_999_999, 0.9], epsilon: 1e-60, weight_decay: 1e60 };
        assert_eq!(texts(Optimizer::Adam(rounded)).len(), 3);
        assert_eq!(texts(Optimizer::Lars(Lars { momentum: bad, weight_decay: bad, trust: bad })).len(), 3);
    }

    #[test]
    fn states_are_what_is_remembered() {
        let states = |text: &str| toml::from_str::<Optimizer>(text).unwrap().states();
        assert_eq!(states("kind = 'sgd'\nmomentum = 0"), [] as [&str; 0]);
        assert_eq!(states("kind = 'adamw'"), ["mean", "square"]);
        assert_eq!(states("kind = 'rmsprop'"), ["square"]);
        assert_eq!(states("kind = 'rmsprop'\nmomentum = 0.9"), ["square", "momentum"]);
        assert_eq!(states("kind = 'lars'"), ["momentum"]);
    }

    #[test]
    fn settings_reach_the_arithmetic() {
        let update = |text: &str| toml::from_str::<Optimizer>(text).unwrap().update();
        assert_eq!(
            update("kind = 'sgd'\nmomentum = 0.5\nnesterov = true\nweight_decay = 0.25"),
            Update::Sgd { momentum: 0.5, nesterov: true, weight_decay: 0.25 }
        );
        let adam = |decoupled| Update::Adam { beta1: 0.5, beta2: 0.75, epsilon: 0.125, weight_decay: 0.25, decoupled };
        let fields = "betas = [0.5, 0.75]\nepsilon = 0.125\nweight_decay = 0.25";
        assert_eq!(update(&format!("kind = 'adam'\n{fields}")), adam(false));
        assert_eq!(update(&format!("kind = 'adamw'\n{fields}")), adam(true));
        assert_eq!(
            update("kind = 'rmsprop'\nalpha = 0.5\nepsilon = 0.125\nmomentum = 0.75\nweight_decay = 0.25"),
            Update::RmsProp { alpha: 0.5, epsilon: 0.125, momentum: 0.75, weight_decay: 0.25 }
        );
        assert_eq!(
            update("kind = 'lars'\nmomentum = 0.5\nweight_decay = 0.25\ntrust = 0.125"),
            Update::Lars { momentum: 0.5, weight_decay: 0.25, trust: 0.125 }
        );
    }
}
