//! Upsampling: a mixture of one or two neighbours along each axis. Twin: `reference/upsample.rs`.

use super::Fast;
use super::mix::{self, Mixture, Part};
use crate::{Geometry, Kernel, Pass, Stage};
use convoy_net::{AxisMap, Sampling, layers::Upsample};

impl Mixture for Upsample {
    fn part(&self, _: usize, o: isize, input: usize, output: usize) -> Part {
        let (low, end) = AxisMap::Resample { input, output, sampling: self.sampling }.reads((o, o + 1), input);
        let (o, x, y) = (o as f64, input as f64, output as f64);
        let place = match self.sampling {
            Sampling::Nearest => low as f64,
            Sampling::Linear => ((o + 0.5) * x / y - 0.5).max(0.0),
            Sampling::LinearCorners => o * (x - 1.0) / (y - 1.0).max(1.0),
        };
        let share = place - low as f64;
        let inputs = match end - low {
            1 => vec![(low, 1.0)],
            // On the spot: the neighbour may not be there.
            _ if share == 0.0 => vec![(low, 1.0)],
            _ => vec![(low, 1.0 - share), (low + 1, share)],
        };
        Part { inputs, divisor: 1.0 }
    }
}

impl Fast for Upsample {
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
        for seed in 0..60 {
            let mut numbers = Numbers::new(seed);
            let axes = 1 + numbers.below(3);
            let mut shape = Shape([2, 40, 1, 1, 1].map(|most| 1 + numbers.below(most)));
            (5 - axes..5).for_each(|i| shape.0[i] = 1 + numbers.below(5));
            let scale = (0..axes).map(|_| 1 + numbers.below(3)).collect();
            let sampling = [Sampling::Nearest, Sampling::Linear, Sampling::LinearCorners][numbers.below(3)];
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
            let problem = Problem::new(Kind::Upsample(Upsample { scale, sampling }), &[shape]);
            let exact = sampling == Sampling::Nearest;
            let problem = Problem { seed, exact, image, accumulate, ..problem };
            check(&problem);
            halves(&problem);
        }
    }
}
