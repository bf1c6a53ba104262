//! Fusing: layers that pass over the same elements one after the other become one.
//!
//! Batch norm, an addition and an activation that follow each other, each the only reader of the one before, become one batch
//! norm: their tensors exist once and memory is passed over once. Every element goes through the same operations in the same
//! order, so the result has the same bits.
//!
//! Folding goes further, for evaluation: a batch norm whose statistics are fixed is a factor and a summand for each filter of the
//! convolution before it, and what an activation cuts off need not be written first. There the rounding differs.

use crate::{Kind, Layer, LayerId, Network, layers::BatchNorm};

/// A network for evaluation, and what its weights are made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Folded {
    pub network: Network,
    pub norms: Vec<FoldedNorm>,
}

/// A batch norm that went into the convolution before it.
#[derive(Clone, Debug, PartialEq)]
pub struct FoldedNorm {
    /// Names of the layers.
    pub convolution: String,
    pub norm: String,
    pub epsilon: f32,
    /// Whether the convolution had a bias before.
    pub had_bias: bool,
}

impl Network {
    /// The same network with fewer passes over memory. Names of parameters stay; what is fused is called after its norm.
    pub fn fused(&self) -> Network {
        let mut fused = self.clone();
        while let Some((norm, next)) = fused.next_to_fuse() {
            fused.fuse(norm, next);
        }
        fused
    }

    /// A batch norm and the one layer that reads it, if both can become one.
    fn next_to_fuse(&self) -> Option<(LayerId, LayerId)> {
        let consumers = self.consumers();
        let norms = (0..self.layers.len()).filter_map(|i| match &self.layers[i].kind {
            Kind::BatchNorm(norm) => Some((LayerId(i), norm)),
            _ => None,
        });
        let follows = |(id, norm): (LayerId, &BatchNorm)| match consumers[id.0][..] {
            [next] if self.can_fuse(id, norm, next) => Some((id, next)),
            _ => None,
        };
        norms.filter_map(follows).next()
    }

    fn can_fuse(&self, id: LayerId, norm: &BatchNorm, next: LayerId) -> bool {
        let (here, next) = (&self.layers[id.0], &self.layers[next.0]);
        match next.kind {
            Kind::Activation(_) => norm.activation.is_none(),
            // The other summand must be there before: of two norms that are added, the later one takes the addition.
            Kind::Add(_) => match next.inputs[..] {
                [a, b] => norm.activation.is_none() && here.inputs.len() == 1 && a != b && a.max(b) == id,
                _ => false,
            },
            _ => false,
        }
    }

    /// Puts a batch norm in the place of its only reader.
    fn fuse(&mut self, id: LayerId, next: LayerId) {
        let Layer { kind: next_kind, inputs: next_inputs, .. } = self.layers[next.0].clone();
        let mut norm = self.layers[id.0].clone();
        match (&mut norm.kind, next_kind) {
            (Kind::BatchNorm(norm), Kind::Activation(activation)) => norm.activation = Some(activation),
            _ => norm.inputs.extend(next_inputs.into_iter().find(|&input| input != id)),
        }
        self.replace(id, next, norm);
    }

    /// Puts a layer in the place of the only reader of `id`, which goes.
    fn replace(&mut self, id: LayerId, next: LayerId, layer: Layer) {
        self.layers[next.0] = layer;
        self.layers.remove(id.0);
        for input in self.layers.iter_mut().flat_map(|layer| &mut layer.inputs) {
            if input.0 > id.0 {
                input.0 -= 1;
            }
        }
    }

    /// The same network for evaluation: convolutions with what follows them, where that is a batch norm without an addition or
    /// a clamp. Layers are called after their convolutions.
    pub fn folded(&self) -> Folded {
        let mut folded = Folded { network: self.clone(), norms: vec![] };
        while folded.fold_one() {}
        folded
    }
}

impl Folded {
    /// Folds one layer into the convolution before it; false if there is none.
    fn fold_one(&mut self) -> bool {
        let consumers = self.network.consumers();
        for id in (0..self.network.layers.len()).map(LayerId) {
            let [next] = consumers[id.0][..] else { continue };
            let mut layer = self.network.layers[id.0].clone();
            let reader = &self.network.layers[next.0];
            let Kind::Convolution(convolution) = &mut layer.kind else { continue };
            match &reader.kind {
                _ if convolution.activation.is_some() => continue,
                Kind::Activation(activation) if activation.clamp().is_some() => {
                    convolution.activation = Some(*activation);
                    self.network.replace(id, next, layer);
                }
                Kind::BatchNorm(norm) if reader.inputs.len() == 1 => {
                    let had_bias = std::mem::replace(&mut convolution.bias, true);
                    let (name, norm_name) = (layer.name.clone(), reader.name.clone());
                    self.norms.push(FoldedNorm { convolution: name, norm: norm_name, epsilon: norm.epsilon, had_bias });
                    match norm.activation {
                        // It may be folded next, or stays a layer of its own.
                        Some(activation) => {
                            self.network.layers[next.0].kind = Kind::Activation(activation);
                            self.network.layers[id.0] = layer;
                        }
                        None => self.network.replace(id, next, layer),
                    }
                }
                _ => continue,
            }
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{layers::*, zoo};

    /// What is left, by name, with the names of what it reads.
    fn text(net: &Network) -> Vec<String> {
        let name = |id: &LayerId| net.layers[id.0].name.as_str();
        net.layers
            .iter()
            .map(|l| format!("{}: {}", l.name, l.inputs.iter().map(name).collect::<Vec<_>>().join(" ")))
            .collect()
    }

    #[test]
    fn a_residual_block_keeps_its_convolutions_and_norms() {
        let mut net = Network::new("block", &[4, 8, 8]);
        let conv = || Kind::Convolution(Convolution::new(4, &[3, 3]).padding(1));
        let norm = || Kind::BatchNorm(BatchNorm::default());
        let input = net.push("a", conv());
        net.push("bn_a", norm());
        let main = net.push("relu_a", Kind::Activation(Activation::Relu));
        net.push("b", conv());
        let b = net.push("bn_b", norm());
        net.join("short", conv(), &[input]);
        let short = net.push("bn_short", norm());
        net.join("add", Kind::Add(Add), &[b, short]);
        let out = net.push("relu", Kind::Activation(Activation::Relu));
        net.join("last", Kind::Add(Add), &[out, main]);
        net.verify().unwrap();
        let fused = net.fused();
        fused.verify().unwrap();
        let expected = [
            "input: ",
            "a: input",
            "bn_a: a",
            "b: bn_a",
            "bn_b: b",
            "short: a",
            "bn_short: short bn_b",
            "last: bn_short bn_a",
        ];
        assert_eq!(text(&fused), expected);
        let Kind::BatchNorm(norm) = fused.layers[6].kind else { panic!("{fused:?}") };
        assert_eq!(norm.activation, Some(Activation::Relu));
    }

    /// Convolutions take batch norms and clamps with them; a norm that also adds stays, and so does what is no clamp.
    #[test]
    fn what_follows_a_convolution_is_folded() {
        let mut net = Network::new("block", &[4, 8, 8]);
        let conv = || Kind::Convolution(Convolution::new(4, &[3, 3]).padding(1));
        let norm = || Kind::BatchNorm(BatchNorm::default());
        net.push("a", conv());
        net.push("bn_a", norm());
        let a = net.push("relu_a", Kind::Activation(Activation::Relu));
        net.push("b", conv());
        let b = net.push("bn_b", norm());
        net.join("add", Kind::Add(Add), &[a, b]);
        net.push("c", conv());
        net.push("bn_c", norm());
        net.push("tanh", Kind::Activation(Activation::Tanh));
        net.push("d", conv());
        net.push("clip", Kind::Activation(Activation::Clip { low: 0.5, high: 6.0 }));
        net.verify().unwrap();
        let folded = net.fused().folded();
        folded.network.verify().unwrap();
        let expected = ["input: ", "a: input", "b: a", "bn_b: b a", "c: bn_b", "bn_c: c", "d: bn_c", "clip: d"];
        assert_eq!(text(&folded.network), expected);
        let norms: Vec<_> = folded.norms.iter().map(|f| (f.convolution.as_str(), f.norm.as_str())).collect();
        assert_eq!(norms, [("a", "bn_a"), ("c", "bn_c")]);
        let Kind::Convolution(a) = &folded.network.layers[1].kind else { panic!("{folded:?}") };
        assert_eq!(a.activation, Some(Activation::Relu));
    }

    /// Parameters keep their names, shapes and order; shapes of what is left stay.
    #[test]
    fn the_zoo_keeps_its_parameters() {
        for name in zoo::names().iter().map(|model| model.name) {
            let net = zoo::model(name, Default::default()).unwrap();
            let fused = net.fused();
            fused.verify().unwrap();
            let parameters = |net: &Network| {
                let shapes = net.shapes(2).unwrap();
                let ids = (0..net.layers.len()).map(LayerId);
                let mut all: Vec<_> = ids
                    .flat_map(|l| net.parameters(l, &shapes).into_iter().map(move |p| (l, p)))
                    .map(|(l, p)| (format!("{}.{}", net.layers[l.0].name, p.name), p.shape))
                    .collect();
                all.sort();
                all
            };
            assert_eq!(parameters(&fused), parameters(&net), "{name}");
            let norms = |net: &Network| net.layers.iter().filter(|l| matches!(l.kind, Kind::BatchNorm(_))).count();
            assert_eq!(norms(&fused), norms(&net), "{name}");
            assert_eq!(fused.fused(), fused, "{name}");
        }
    }
}
