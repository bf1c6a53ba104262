//! Networks: layers in order with their inputs.
//!
//! Always true of a [`Network`] that [`Network::verify`] accepts
//! - Layer 0 is the input and called `input`; every other layer reads earlier ones.
//! - Names are unique; parameters are called `<layer>.<parameter>`, as in PyTorch.
//! - The last layer is the output.

use crate::{Error, Kind, Loss, Misfit, Parameter, Shape, layers::Input, shape::fits};
use std::collections::HashSet;

/// A layer's place in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(pub usize);

/// One operation of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Unique; parameters are named after it, so it is PyTorch's where PyTorch has the layer.
    pub name: String,
    /// What it computes.
    pub kind: Kind,
    /// What it reads, in order.
    pub inputs: Vec<LayerId>,
}

/// Layers in order with their inputs, and the loss that trains them.
///
/// ```
/// use convoy_net::{Kind, Network, layers::*};
/// let mut net = Network::new("tiny", &[1, 8, 8]);
/// net.push("conv", Kind::Convolution(Convolution::new(4, &[3, 3]).padding(1)));
/// net.push("relu", Kind::Activation(Activation::Relu));
/// net.push("fc", Kind::FullyConnected(FullyConnected::new(10)));
/// assert_eq!(net.shapes(32).unwrap().last().unwrap().channels(), 10);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// What people call it.
    pub name: String,
    /// The layers; the first is the input, the last the output.
    pub layers: Vec<Layer>,
    /// What training makes small.
    pub loss: Loss,
}

impl Network {
    /// A network of nothing but its input: channels, then one to three sizes (the last is the width).
    pub fn new(name: &str, input: &[usize]) -> Network {
        let input = Layer { name: "input".into(), kind: Kind::Input(Input { shape: input.to_vec() }), inputs: vec![] };
        Network { name: name.into(), layers: vec![input], loss: Loss::default() }
    }

    /// Adds a layer that reads the last one.
    pub fn push(&mut self, name: impl Into<String>, kind: Kind) -> LayerId {
        let last = LayerId(self.layers.len() - 1);
        self.join(name, kind, &[last])
    }

    /// Adds a layer that reads the given ones.
    pub fn join(&mut self, name: impl Into<String>, kind: Kind, inputs: &[LayerId]) -> LayerId {
        self.layers.push(Layer { name: name.into(), kind, inputs: inputs.to_vec() });
        LayerId(self.layers.len() - 1)
    }

    /// The output's layer.
    pub fn output(&self) -> LayerId {
        LayerId(self.layers.len() - 1)
    }

    /// The shape of every layer's output for a batch, or the first layer that does not fit its inputs.
    ///
    /// Shapes it gives are not empty; they and the parameters are within the limits of [`Shape`].
    pub fn shapes(&self, batch: usize) -> Result<Vec<Shape>, Error> {
        let mut shapes: Vec<Shape> = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let known = layer.inputs.iter().map(|i| shapes.get(i.0).copied().ok_or_else(|| self.no_input(layer, *i)));
            let inputs = known.collect::<Result<Vec<Shape>, Error>>()?;
            let shape = checked_shape(&layer.kind, &inputs, batch);
            shapes.push(shape.map_err(|misfit| Error::Layer { layer: layer.name.clone(), misfit: Box::new(misfit) })?);
        }
        Ok(shapes)
    }

    fn no_input(&self, layer: &Layer, input: LayerId) -> Error {
        let input = self.layers.get(input.0).map_or("?".into(), |l| l.name.clone());
        Error::UnknownInput { layer: layer.name.clone(), input }
    }

    /// The inputs' shapes of one layer, given those of all layers.
    pub fn input_shapes(&self, layer: LayerId, shapes: &[Shape]) -> Vec<Shape> {
        self.layers[layer.0].inputs.iter().map(|i| shapes[i.0]).collect()
    }

    /// The parameters of one layer, given the shapes of all.
    pub fn parameters(&self, layer: LayerId, shapes: &[Shape]) -> Vec<Parameter> {
        self.layers[layer.0].kind.operation().parameters(&self.input_shapes(layer, shapes))
    }

    /// Trained numbers of the whole network.
    pub fn parameter_count(&self) -> Result<usize, Error> {
        let shapes = self.shapes(1)?;
        let per_layer = (0..self.layers.len()).flat_map(|i| self.parameters(LayerId(i), &shapes));
        Ok(per_layer.filter(|p| p.role == crate::Role::Trained).map(|p| p.len()).sum())
    }

    /// For each layer, the layers that read it, in order.
    pub fn consumers(&self) -> Vec<Vec<LayerId>> {
        let mut consumers = vec![Vec::new(); self.layers.len()];
        for (i, layer) in self.layers.iter().enumerate() {
            for input in &layer.inputs {
                if !consumers[input.0].contains(&LayerId(i)) {
                    consumers[input.0].push(LayerId(i));
                }
            }
        }
        consumers
    }

    /// Checks names, order, shapes and the loss.
    pub fn verify(&self) -> Result<(), Error> {
        if self.layers.len() < 2 {
            return Err(Error::Empty);
        }
        let mut names = HashSet::new();
        for (i, layer) in self.layers.iter().enumerate() {
            if !names.insert(&layer.name) {
                return Err(Error::Twice { layer: layer.name.clone() });
            }
            let (is_input, is_called_so) = (matches!(layer.kind, Kind::Input(_)), layer.name == "input");
            if is_input != (i == 0) || is_called_so != (i == 0) {
                return Err(Error::InputPlace { layer: layer.name.clone(), kind: layer.kind.name() });
            }
            if let Some(input) = layer.inputs.iter().find(|input| input.0 >= i) {
                return Err(self.no_input(layer, *input));
            }
        }
        self.loss.check().map_err(|misfit| Error::Loss { misfit: Box::new(misfit) })?;
        self.shapes(1).map(|_| ())
    }
}

/// The output's shape of one layer, with it and the parameters within limits.
fn checked_shape(kind: &Kind, inputs: &[Shape], batch: usize) -> Result<Shape, Misfit> {
    let shape = kind.operation().infer(inputs)?;
    let shape = if inputs.is_empty() { shape.with_samples(batch) } else { shape };
    if batch == 0 {
        return Err(Misfit::Zero { what: "a batch" });
    }
    if !shape.is_possible() {
        return Err(Misfit::TooLarge { what: "an output", sizes: shape.0.to_vec() });
    }
    match kind.operation().parameters(inputs).into_iter().find(|p| !fits(&p.shape)) {
        Some(parameter) => Err(Misfit::TooLarge { what: "a parameter", sizes: parameter.shape }),
        None => Ok(shape),
    }
}
