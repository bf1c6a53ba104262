//! Initial weights: each number a function of seed, layer, parameter and element.
//!
//! Always true
//! - Whoever asks for whichever part gets the same numbers, on every machine.
//!
//! Knows nothing of who holds which part.

use convoy_kernels::math::normal_quantile;
use convoy_kernels::philox::{Key, Purpose};
use convoy_net::{Init, LayerId, Parameter};
use std::ops::Range;

/// The initial elements of parameter number `index` of a layer, in PyTorch's order.
pub fn initial(parameter: &Parameter, seed: u64, layer: LayerId, index: usize) -> Vec<f32> {
    initial_range(parameter, seed, layer, index, 0..parameter.len())
}

/// Some of them.
pub fn initial_range(
    parameter: &Parameter,
    seed: u64,
    layer: LayerId,
    index: usize,
    elements: Range<usize>,
) -> Vec<f32> {
    let key = Key { seed, purpose: Purpose::Weights, layer: layer.0 as u32, step: 0, sample: index as u32 };
    match parameter.init {
        Init::Constant(value) => vec![value; elements.len()],
        Init::Normal(deviation) => {
            words(&key, elements).map(|word| (deviation as f64 * normal_quantile(share(word))) as f32).collect()
        }
        Init::Uniform(bound) => {
            words(&key, elements).map(|word| (bound as f64 * (2.0 * share(word) - 1.0)) as f32).collect()
        }
    }
}

/// The random words of some elements; Philox makes four at a time.
fn words(key: &Key, elements: Range<usize>) -> impl Iterator<Item = u32> {
    let first = elements.start / 4;
    let quads = first..elements.end.div_ceil(4);
    quads.flat_map(|quad| key.words(quad as u64)).skip(elements.start - 4 * first).take(elements.len())
}

/// A word as a number between 0 and 1, neither possible, and as far from 0 as its complement from 1.
fn share(word: u32) -> f64 {
    (word as f64 + 0.5) / 4_294_967_296.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(len: usize, init: Init) -> Parameter {
        Parameter::trained("weight", vec![len], init)
    }

    /// Mean, mean square and share within one deviation are where they should be, within four deviations of each.
    fn check(numbers: &[f32], square: f64, fourth: f64, scale: f64, within: f64) {
        let n = numbers.len() as f64;
        let mean = |f: &dyn Fn(f64) -> f64| numbers.iter().map(|&x| f(x as f64 / scale)).sum::<f64>() / n;
        assert!(mean(&|x| x).abs() < 4.0 * (square / n).sqrt());
        assert!((mean(&|x| x * x) - square).abs() < 4.0 * ((fourth - square * square) / n).sqrt());
        let found = mean(&|x| if x * x < square { 1.0 } else { 0.0 });
        assert!((found - within).abs() < 4.0 * (within * (1.0 - within) / n).sqrt());
    }

    #[test]
    fn numbers_are_distributed_as_asked() {
        let len = 1 << 18;
        let normal = initial(&parameter(len, Init::Normal(0.05)), 1, LayerId(3), 0);
        check(&normal, 1.0, 3.0, 0.05, 0.682_689_492);
        let uniform = initial(&parameter(len, Init::Uniform(2.0)), 1, LayerId(3), 0);
        check(&uniform, 1.0 / 3.0, 1.0 / 5.0, 2.0, (1.0f64 / 3.0).sqrt());
        assert!(uniform.iter().all(|x| x.abs() <= 2.0));
        assert_eq!(initial(&parameter(3, Init::Constant(0.5)), 1, LayerId(3), 0), [0.5; 3]);
    }

    #[test]
    fn every_part_has_the_same_numbers() {
        for init in [Init::Normal(1.0), Init::Uniform(1.0), Init::Constant(1.0)] {
            let parameter = parameter(19, init);
            let whole = initial(&parameter, 7, LayerId(2), 1);
            for start in 0..=19 {
                for end in start..=19 {
                    let part = initial_range(&parameter, 7, LayerId(2), 1, start..end);
                    assert_eq!(part, whole[start..end]);
                }
            }
        }
    }

    /// Made in Python from Philox's definition and `statistics.NormalDist().inv_cdf`.
    #[test]
    fn numbers_are_those_that_their_definition_gives() {
        let check = |init, wanted: [f64; 4], tolerance: f64| {
            let found = initial_range(&parameter(12, init), 0x1234_5678_9abc, LayerId(5), 1, 8..12);
            for (found, wanted) in found.iter().zip(wanted) {
                assert!((*found as f64 - wanted).abs() <= tolerance * wanted.abs(), "{found}, not {wanted}");
            }
        };
        // What `normal_quantile` states, and one rounding to single precision.
        let normal = [0.3247149790435173, 0.5812726998084377, 0.7164573518216286, 1.2730648874359078];
        check(Init::Normal(1.0), normal, 2e-7 + 6e-8);
        let uniform = [0.2546032031532377, 0.43894332298077643, 0.5262910074088722, 0.7970049825962633];
        check(Init::Uniform(1.0), uniform, 6e-8);
    }

    #[test]
    fn seed_layer_and_parameter_each_count() {
        let parameter = parameter(8, Init::Normal(1.0));
        let one = initial(&parameter, 1, LayerId(1), 0);
        assert_ne!(one, initial(&parameter, 2, LayerId(1), 0));
        assert_ne!(one, initial(&parameter, 1, LayerId(2), 0));
        assert_ne!(one, initial(&parameter, 1, LayerId(1), 1));
    }
}
