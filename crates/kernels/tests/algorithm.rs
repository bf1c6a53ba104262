//! The algorithm that a pass is said to have is the one that its stages are. Outside of the crate: its own tests have a lower
//! threshold for weight gradients than everybody else.

use convoy_kernels::{Geometry, Layout, Mode, Pass, Stage, Tensor, Winograd, fast};
use convoy_net::layers::Convolution;
use convoy_net::{Axis, Kind, Region, Shape};

const CHANNELS: usize = 32;

/// A convolution of square windows on planes of `points` x `points`, on one rank.
#[derive(Debug)]
struct Problem {
    batch: usize,
    points: usize,
    taps: usize,
    padding: usize,
    stride: usize,
    winograd: Winograd,
}

impl Problem {
    fn kind(&self) -> Kind {
        let layer = Convolution::new(CHANNELS, &[self.taps, self.taps]);
        Kind::Convolution(layer.padding(self.padding).stride(self.stride))
    }

    fn geometry(&self) -> Geometry {
        let input = Shape([self.batch, CHANNELS, 1, self.points, self.points]);
        let output = self.kind().operation().infer(&[input]).expect("it fits");
        let margin = self.taps as isize - 1;
        let wide = |shape: Shape| {
            let wide = [Axis::Height, Axis::Width].iter().fold(Region::whole(shape), |region, &axis| {
                let (start, end) = region.range(axis);
                region.with(axis, start - margin, end + margin)
            });
            Layout::blocked(wide)
        };
        let tensor = |shape| Tensor { shape, layout: wide(shape) };
        Geometry {
            layer: 0,
            mode: Mode::Train,
            leaves: 8,
            leaf_samples: self.batch.div_ceil(8),
            inputs: vec![tensor(input)],
            output: tensor(output),
            region: Region::whole(output),
            normed: output.len() / CHANNELS,
            summed: false,
            rectified: false,
            output_gradient: Some(wide(output)),
            input_gradients: vec![Some((wide(input), Region::whole(input)))],
            accumulate: vec![false],
            winograd: self.winograd,
        }
    }

    /// Products of each pass, forward, input gradient and weight gradient, of the definition's: Winograd's has at most two
    /// thirds of them, or would not be used.
    fn products(&self) -> [f64; 3] {
        let (kind, geometry) = (self.kind(), self.geometry());
        let twin = fast::twin(&kind);
        let direct = kind.operation().flops(&[geometry.inputs[0].shape], geometry.output.shape) as f64;
        let all = |stages: &[Stage]| stages.iter().map(|stage| stage.work.flops).sum::<f64>() / direct;
        let mut weights = twin.backward(&geometry);
        // The bias' gradient ends the weights', and has no products.
        let bias = weights.iter().position(|stage| stage.pass == Pass::WeightGradient(1)).expect("a bias");
        let inputs = weights.split_off(bias);
        [all(&twin.forward(&geometry)), all(&inputs[1..]), all(&weights)]
    }

    fn algorithms(&self) -> [&'static str; 3] {
        let (kind, geometry) = (self.kind(), self.geometry());
        let passes = [Pass::Forward, Pass::InputGradient(0), Pass::WeightGradient(0)];
        passes.map(|pass| fast::twin(&kind).algorithm(pass, &geometry).expect("a convolution has a choice"))
    }
}

/// A weight gradient of leaves with few tiles is direct, whatever the other passes are: eight leaves of three samples with four
/// tiles each have enough, of two they have not.
#[test]
fn a_pass_has_the_products_of_the_algorithm_it_is_said_to_have() {
    let (off, two, four) = (Winograd::Off, Winograd::Two, Winograd::Four);
    let (direct, small, large, wide) = ("direct", "winograd 2x2", "winograd 4x4", "winograd 2x2 of 5x5");
    let stepped = "winograd 4x4 of stride 2";
    let kept = |(batch, points, taps, winograd, said)| {
        (Problem { batch, points, taps, padding: taps / 2, stride: 1, winograd }, said)
    };
    let unpadded =
        |batch, points, taps, winograd, said| (Problem { batch, points, taps, padding: 0, stride: 1, winograd }, said);
    let halved = |batch, points, taps, winograd, said| {
        (Problem { batch, points, taps, padding: taps / 2, stride: 2, winograd }, said)
    };
    let padded = [
        (24, 8, 3, four, [large, large, large]),
        (16, 8, 3, four, [large, large, direct]),
        // Leaves of two and of three samples: the larger ones count.
        (17, 8, 3, four, [large, large, large]),
        // Sixteen tiles a sample.
        (8, 8, 3, two, [small, small, small]),
        (8, 6, 3, two, [small, small, direct]),
        (16, 6, 3, two, [small, small, small]),
        (8, 8, 5, four, [wide, wide, wide]),
        (8, 6, 5, four, [wide, wide, direct]),
        (24, 8, 5, two, [direct, direct, direct]),
        (24, 8, 3, off, [direct, direct, direct]),
    ];
    let others = [
        // The input has more tiles than the output: 36 of 2 x 2 points, too many, and 9 of 4 x 4.
        unpadded(8, 12, 5, four, [wide, wide, wide]),
        unpadded(24, 10, 3, four, [large, large, large]),
        unpadded(8, 12, 5, two, [direct, direct, direct]),
        halved(24, 16, 3, four, [stepped, stepped, stepped]),
        halved(16, 16, 3, four, [stepped, stepped, direct]),
        // Seven points of the output: two tiles, of which a quarter is beyond the end.
        halved(24, 14, 3, four, [direct, direct, direct]),
        halved(24, 16, 3, two, [direct, direct, direct]),
        halved(24, 16, 5, four, [direct, direct, direct]),
    ];
    for (problem, said) in padded.into_iter().map(kept).chain(others) {
        let name = format!("{problem:?}");
        assert_eq!(problem.algorithms(), said, "{name}");
        for (share, said) in problem.products().into_iter().zip(said) {
            // Direct passes may leave taps out that read zeros beyond the edges.
            let is_direct = share > 2.0 / 3.0;
            assert_eq!(is_direct, said == direct, "{name}: {said} with {share} of the products");
        }
    }
}
