//! Channel padding: the input carried over between channels of zeros. Twin: `reference/pad_channels.rs`.

use super::Fast;
use super::carry::Carry;
use crate::{Geometry, Kernel, Pass, Stage};
use convoy_net::layers::PadChannels;

impl Fast for PadChannels {
    fn forward(&self, g: &Geometry) -> Vec<Stage> {
        vec![Carry::forward(g, self.before as isize).stage(Pass::Forward)]
    }

    fn backward(&self, g: &Geometry) -> Vec<Stage> {
        match g.input_gradients[0] {
            Some(_) => vec![Carry::backward(g, 0, self.before as isize).stage(Pass::InputGradient(0))],
            None => vec![],
        }
    }

    fn prepare(&self, pass: Pass, g: &Geometry) -> Box<dyn Kernel> {
        match pass {
            Pass::Forward => Carry::forward(g, self.before as isize).kernel(),
            Pass::InputGradient(0) => Carry::backward(g, 0, self.before as isize).kernel(),
            _ => unreachable!("bug: channel padding has no {pass:?}"),
        }
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
            let shape = Shape([3, 40, 3, 5, 8].map(|most| 1 + numbers.below(most)));
            let [before, after] = [0, 1].map(|_| [0, 8, 16, 1 + numbers.below(40)][numbers.below(4)]);
            let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
            let problem = Problem::new(Kind::PadChannels(PadChannels { before, after }), &[shape]);
            let problem = Problem { seed, exact: true, image, accumulate, ..problem };
            check(&problem);
            halves(&problem);
        }
    }
}
