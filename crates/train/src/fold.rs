//! Folding: a trained network as evaluation runs it, with batch norms inside of the convolutions before them.

use crate::state;
use crate::weights::{NamedTensor, Weights};
use convoy_net::{FoldedNorm, Network};

/// The network that `Network::folded` makes, and its weights; they must fit ([`crate::fit`]).
pub fn fold(network: &Network, weights: &Weights) -> (Network, Weights) {
    let folded = network.folded();
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let (layer, parameter) = name.rsplit_once('.').expect("bug: a parameter without a layer");
        let data = match folded.norms.iter().find(|norm| norm.convolution == layer) {
            Some(norm) if parameter == "weight" => filters(norm, weights),
            Some(norm) => bias(norm, weights),
            None => find(weights, &name).to_vec(),
        };
        NamedTensor { name, shape, data }
    };
    let tensors = state::wanted(&folded.network).into_iter().map(tensor).collect();
    (folded.network, Weights { tensors })
}

fn find<'w>(weights: &'w Weights, name: &str) -> &'w [f32] {
    &weights.tensors.iter().find(|tensor| tensor.name == name).expect("bug: weights that do not fit").data
}

/// By filter: what a norm multiplies it with.
fn factors(norm: &FoldedNorm, weights: &Weights) -> Vec<f64> {
    let of = |parameter: &str| find(weights, &format!("{}.{parameter}", norm.norm));
    let factor = |(weight, variance): (&f32, &f32)| *weight as f64 / (*variance as f64 + norm.epsilon as f64).sqrt();
    of("weight").iter().zip(of("running_var")).map(factor).collect()
}

fn filters(norm: &FoldedNorm, weights: &Weights) -> Vec<f32> {
    let (filters, factors) = (find(weights, &format!("{}.weight", norm.convolution)), factors(norm, weights));
    let each = filters.len() / factors.len();
    filters.iter().enumerate().map(|(i, weight)| (*weight as f64 * factors[i / each]) as f32).collect()
}

fn bias(norm: &FoldedNorm, weights: &Weights) -> Vec<f32> {
    let of = |parameter: &str| find(weights, &format!("{}.{parameter}", norm.norm));
    let (means, shifts) = (of("running_mean"), of("bias"));
    let before = norm.had_bias.then(|| find(weights, &format!("{}.bias", norm.convolution)));
    let bias = |(i, factor): (usize, f64)| {
        let before = before.map_or(0.0, |bias| bias[i] as f64);
        ((before - means[i] as f64) * factor + shifts[i] as f64) as f32
    };
    factors(norm, weights).into_iter().enumerate().map(bias).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Optimizer;
    use convoy_engine::{Batch, Engine, Settings};
    use convoy_kernels::{Mode, Moment, Winograd};
    use convoy_net::layers::*;
    use convoy_net::{Kind, Network};
    use convoy_program::{Options, lower};
    use convoy_split::{Rank, Strategy};

    fn network() -> Network {
        let mut net = Network::new("all", &[3, 9, 9]);
        let norm = || Kind::BatchNorm(BatchNorm::default());
        net.push("stem", Kind::Convolution(Convolution::new(20, &[3, 3]).padding(1)));
        net.push("stem_bn", norm());
        let a = net.push("relu", Kind::Activation(Activation::Relu));
        net.push("depthwise", Kind::Convolution(Convolution::new(20, &[3, 3]).padding(1).groups(20).no_bias()));
        net.push("depthwise_bn", norm());
        net.push("clip", Kind::Activation(Activation::Clip { low: 0.0, high: 1.5 }));
        net.push("wide", Kind::Convolution(Convolution::new(20, &[5, 5]).padding(2).no_bias()));
        let b = net.push("wide_bn", norm());
        net.join("add", Kind::Add(Add), &[a, b]);
        net.push("last", Kind::Convolution(Convolution::new(17, &[3, 3]).no_bias()));
        net.push("last_bn", norm());
        net.push("tanh", Kind::Activation(Activation::Tanh));
        net.push("pool", Kind::GlobalAveragePool(GlobalAveragePool));
        net.push("classes", Kind::FullyConnected(FullyConnected { outputs: 5, bias: true }));
        net.verify().unwrap();
        net.fused()
    }

    /// Numbers between a quarter and one and a quarter, no two alike.
    fn number(i: usize) -> f32 {
        0.25 + (i * 7919 % 1009) as f32 / 1009.0
    }

    fn outputs(network: &Network, weights: &Weights, images: &[f32]) -> Vec<f32> {
        let (mode, update) = (Mode::Evaluate, Optimizer::default().update());
        let options =
            Options { batch: 2, mode, leaves: 8, winograd: Winograd::Four, update, division: Default::default() };
        let program = lower(network, &Strategy::single(network), Rank(0), &options).unwrap();
        let communicator = convoy_comm::threads(1).pop().unwrap();
        let mut engine = Engine::new(network, vec![program], 1, communicator, Settings::default());
        state::put_weights(&mut engine, network, weights);
        engine.step(0, Batch { images, targets: &[0.0; 2] }, Moment::default()).unwrap();
        let mut dense = vec![0.0; engine.program(0).owned.len()];
        engine.output(0, &mut dense);
        dense
    }

    #[test]
    fn a_folded_network_gives_the_same_outputs() {
        let network = network();
        let mut weights = state::initial_weights(&network, 3);
        // Norms that do something.
        for (t, tensor) in weights.tensors.iter_mut().enumerate().filter(|(_, t)| t.shape.len() == 1) {
            tensor.data.iter_mut().enumerate().for_each(|(i, v)| *v = number(31 * t + i));
        }
        let images: Vec<f32> = (0..2 * 3 * 81).map(number).collect();
        let (folded, folded_weights) = fold(&network, &weights);
        let names: Vec<&str> = folded.layers.iter().map(|layer| layer.name.as_str()).collect();
        let expected = ["input", "stem", "depthwise", "wide", "wide_bn", "last", "last_bn", "pool", "classes"];
        assert_eq!(names, expected);
        let (plain, quick) = (outputs(&network, &weights, &images), outputs(&folded, &folded_weights, &images));
        for (a, b) in plain.iter().zip(&quick) {
            // Four layers that each round some hundred products.
            assert!((a - b).abs() <= 4.0 * 500.0 * f32::EPSILON * (1.0 + a.abs()), "{plain:?}\n{quick:?}");
        }
        assert!(plain.iter().any(|v| v.abs() > 0.1), "{plain:?}");
    }
}
