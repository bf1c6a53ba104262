//! Comparing runs: from the digests in their metrics, whether two runs had the same weights, and where they parted.
//!
//! Knows nothing of jobs: runs of different jobs compare too, and differ.

use crate::{Error, MetricsLine, RunFolder};
use std::collections::BTreeMap;
use std::fmt;

/// What two runs' digests say.
#[derive(Clone, Debug, PartialEq)]
pub enum Comparison {
    /// All digests that both have are the same. The last steps with digests are those of the first and second run.
    Same { steps: usize, last: [u64; 2] },
    /// The first step, and in it the first layer, with different weights.
    Differs { step: u64, layer: String, digests: [String; 2] },
    /// The layers are not the same ones: those that only one has.
    OtherLayers { only: [Vec<String>; 2] },
    /// There is no step of which both kept digests.
    NothingInCommon,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Comparison::Same { steps, last: [a, b] } if a == b => {
                write!(f, "same: weights have the same digests at all {steps} steps compared, the last is step {a}")
            }
            Comparison::Same { steps, last: [a, b] } => write!(
                f,
                "same so far: weights have the same digests at all {steps} steps compared, one run's last is step {a}, \
                 the other's step {b}"
            ),
            Comparison::Differs { step, layer, digests: [a, b] } => {
                write!(f, "different: first at step {step}, layer `{layer}` ({a} and {b})")
            }
            Comparison::OtherLayers { only: [a, b] } => {
                write!(f, "different networks: only one has layers {}, only the other has {}", list(a), list(b))
            }
            Comparison::NothingInCommon => {
                write!(f, "not comparable: there is no step of which both runs kept digests")
            }
        }
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { format!("`{}`", names.join("`, `")) }
}

/// Compares two runs by the digests they kept.
pub fn compare(first: &RunFolder, second: &RunFolder) -> Result<Comparison, Error> {
    Ok(compare_metrics(&first.read_metrics()?, &second.read_metrics()?))
}

/// Compares the digests among two lists of metrics.
pub fn compare_metrics(first: &[MetricsLine], second: &[MetricsLine]) -> Comparison {
    let (first, second) = (digests(first), digests(second));
    let mut steps = 0;
    for (&step, layers) in &first {
        let Some(others) = second.get(&step) else { continue };
        let only = [missing(layers, others), missing(others, layers)];
        if only.iter().any(|names| !names.is_empty()) {
            return Comparison::OtherLayers { only };
        }
        for (layer, a) in *layers {
            let b = others.iter().find(|(name, _)| name == layer).map_or("", |(_, digest)| digest.as_str());
            if a != b {
                return Comparison::Differs { step, layer: layer.clone(), digests: [a.clone(), b.to_string()] };
            }
        }
        steps += 1;
    }
    let last = |digests: &BTreeMap<u64, &Layers>| digests.last_key_value().map_or(0, |(step, _)| *step);
    if steps == 0 {
        Comparison::NothingInCommon
    } else {
        Comparison::Same { steps, last: [last(&first), last(&second)] }
    }
}

type Layers = Vec<(String, String)>;

/// Digests by step.
fn digests(lines: &[MetricsLine]) -> BTreeMap<u64, &Layers> {
    let mut digests = BTreeMap::new();
    for line in lines {
        if let MetricsLine::Digest { step, layers } = line {
            digests.insert(*step, layers);
        }
    }
    digests
}

/// Names of the first that the second does not have.
fn missing(first: &Layers, second: &Layers) -> Vec<String> {
    let known = |name: &String| second.iter().any(|(other, _)| other == name);
    first.iter().map(|(name, _)| name).filter(|name| !known(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(steps: &[(u64, &[(&str, &str)])]) -> Vec<MetricsLine> {
        let pairs = |layers: &[(&str, &str)]| layers.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        let mut lines = vec![MetricsLine::Step { step: 1, epoch: 1, loss: 1.0, learning_rate: 0.1, seconds: 0.0 }];
        lines.extend(steps.iter().map(|(step, layers)| MetricsLine::Digest { step: *step, layers: pairs(layers) }));
        lines
    }

    #[test]
    fn the_first_step_and_layer_that_differ_are_named() {
        let first = run(&[(10, &[("a", "1"), ("b", "2")]), (20, &[("a", "3"), ("b", "4"), ("c", "5")])]);
        let second = run(&[(20, &[("a", "3"), ("b", "x"), ("c", "y")]), (10, &[("a", "1"), ("b", "2")])]);
        let comparison = compare_metrics(&first, &second);
        assert_eq!(comparison.to_string(), "different: first at step 20, layer `b` (4 and x)");
    }

    #[test]
    fn only_steps_that_both_have_count() {
        let first = run(&[(10, &[("a", "1")]), (15, &[("a", "2")]), (20, &[("a", "3")])]);
        let second = run(&[(10, &[("a", "1")]), (20, &[("a", "3")])]);
        assert_eq!(compare_metrics(&first, &second), Comparison::Same { steps: 2, last: [20, 20] });
        let longer = compare_metrics(&first, &second[..2]).to_string();
        assert!(
            longer.starts_with("same so far: ") && longer.ends_with("last is step 20, the other's step 10"),
            "{longer}"
        );
        assert_eq!(compare_metrics(&first, &run(&[(11, &[("a", "1")])])), Comparison::NothingInCommon);
    }

    #[test]
    fn other_networks_are_named() {
        let first = run(&[(10, &[("a", "1"), ("b", "1")])]);
        let second = run(&[(10, &[("a", "2")])]);
        let text = compare_metrics(&first, &second).to_string();
        assert_eq!(text, "different networks: only one has layers `b`, only the other has none");
    }
}
