//! Global average pooling: a mixture of all points. Twin: `reference/global_average_pool.rs`.

use super::Fast;
use super::mix::{self, Mixture, Part};
use crate::{Geometry, Kernel, Pass, Stage};
use convoy_net::layers::GlobalAveragePool;

impl Mixture for GlobalAveragePool {
    fn part(&self, _: usize, _: isize, input: usize, _: usize) -> Part {
        Part::mean((0, input as isize))
    }
}

impl Fast for GlobalAveragePool {
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
        for seed in 0..30 {
            let mut numbers = Numbers::new(seed);
            let shape = Shape([3, 40, 3, 9, 12].map(|most| 1 + numbers.below(most)));
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
            // A mean of up to 324 elements of size 1, then compared with the largest mean.
            let tolerance = 1e-4;
            let kind = Kind::GlobalAveragePool(GlobalAveragePool);
            let problem = Problem { seed, tolerance, image, accumulate, ..Problem::new(kind, &[shape]) };
            check(&problem);
            halves(&problem);
        }
    }
}
