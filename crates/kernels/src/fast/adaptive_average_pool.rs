//! Adaptive average pooling: a mixture of the points that an output covers. Twin: `reference/adaptive_average_pool.rs`.

use super::Fast;
use super::mix::{self, Mixture, Part};
use crate::{Geometry, Kernel, Pass, Stage};
use convoy_net::{AxisMap, layers::AdaptiveAveragePool};

impl Mixture for AdaptiveAveragePool {
    fn part(&self, _: usize, o: isize, input: usize, output: usize) -> Part {
        Part::mean(AxisMap::Adaptive { input, output }.reads((o, o + 1), input))
    }
}

impl Fast for AdaptiveAveragePool {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        mix::forward(self, g)
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        mix::backward(self, g)
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        mix::prepare(self, pass, g)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{Numbers, Problem, check, halves};
    use convoy_net::{Kind, Shape};

    #[test]
    fn agrees_with_its_reference() {
        for seed in 0..40 {
            let mut numbers = Numbers::new(seed);
            let shape = Shape([3, 40, 4, 9, 12].map(|most| 1 + numbers.below(most)));
            // Smaller and larger than the input.
            let output: Vec<usize> = (0..1 + numbers.below(3)).map(|_| 1 + numbers.below(9)).collect();
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
            // A mean of up to 432 elements of size 1, then compared with the largest mean.
            let tolerance = 1e-4;
            let problem = Problem::new(Kind::AdaptiveAveragePool(AdaptiveAveragePool { output }), &[shape]);
            let problem = Problem { seed, tolerance, image, accumulate, ..problem };
            check(&problem);
            halves(&problem);
        }
    }
}
