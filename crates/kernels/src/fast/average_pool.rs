//! Average pooling: a mixture of the points under a window. Twin: `reference/average_pool.rs`.

use super::Fast;
use super::mix::{self, Mixture, Part};
use super::window::Window;
use crate::{Geometry, Kernel, Pass, Stage};
use convoy_net::layers::AveragePool;

impl Mixture for AveragePool {
    fn part(&self, space: usize, o: isize, input: usize, _: usize) -> Part {
        let window = Window::along(&self.windows, space, input);
        let mut part = Part::mean(window.span(o));
        if self.count_padding {
            // What lies beyond the padding counts never, padding counts as zeros.
            let end = (window.start(o) + window.kernel as isize).min(window.input + window.after);
            part.divisor = (end - window.start(o)).max(1) as f64;
        }
        part
    }
}

impl Fast for AveragePool {
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
    use crate::fast::window::random;
    use crate::twin::{Problem, check, halves};
    use convoy_net::{Kind, Operation};

    #[test]
    fn agrees_with_its_reference() {
        let mut fitting = 0;
        for seed in 0..150 {
            let (windows, shape, mut numbers) = random(seed, 1);
            let (ceil, count_padding) = (numbers.below(2) == 0, numbers.below(2) == 0);
            let layer = AveragePool { windows, ceil, count_padding };
            if layer.infer(&[shape]).is_ok() {
                let (image, accumulate) = (numbers.below(3) == 0, numbers.below(2) == 0);
                // Sums of up to 64 elements of size 1 that may cancel.
                let tolerance = 2e-5;
                let problem = Problem::new(Kind::AveragePool(layer), &[shape]);
                let problem = Problem { seed, tolerance, image, accumulate, ..problem };
                check(&problem);
                halves(&problem);
                fitting += 1;
            }
        }
        assert!(fitting > 60);
    }
}
