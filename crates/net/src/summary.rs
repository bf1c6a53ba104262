//! Summaries: what each layer of a network holds and computes, in numbers.
//!
//! Counts saturate rather than overflow; no network that fits a machine comes near.

use crate::{Error, LayerId, Network, Role, Shape};

/// One layer of a network, in numbers, for a given batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSummary {
    pub name: String,
    /// What its kind is called in files.
    pub kind: &'static str,
    pub output: Shape,
    /// Trained numbers.
    pub parameters: usize,
    /// Elements of the output.
    pub activations: usize,
    /// Floating-point operations of the forward pass in convolutions and matrix products; a multiply-add counts two.
    pub flops: u64,
}

impl Network {
    /// Every layer, the input included, in numbers.
    ///
    /// ```
    /// use convoy_net::zoo::{ModelOptions, model};
    /// let lenet = model("lenet", ModelOptions::default()).unwrap();
    /// let summary = lenet.summary(8).unwrap();
    /// assert_eq!((summary[1].name.as_str(), summary[1].kind), ("c1", "convolution"));
    /// assert_eq!(summary[1].output.to_string(), "8x20x24x24");
    /// assert_eq!(summary[1].parameters, 20 * 25 + 20);
    /// assert_eq!(summary[1].flops, 2 * 8 * 20 * 24 * 24 * 25);
    /// ```
    pub fn summary(&self, batch: usize) -> Result<Vec<LayerSummary>, Error> {
        let shapes = self.shapes(batch)?;
        let of = |(i, &output): (usize, &Shape)| {
            let inputs = self.input_shapes(LayerId(i), &shapes);
            let operation = self.layers[i].kind.operation();
            let trained = operation.parameters(&inputs).into_iter().filter(|p| p.role == Role::Trained);
            LayerSummary {
                name: self.layers[i].name.clone(),
                kind: self.layers[i].kind.name(),
                output,
                parameters: trained.map(|p| p.len()).sum(),
                activations: output.len(),
                flops: operation.flops(&inputs, output),
            }
        };
        Ok(shapes.iter().enumerate().map(of).collect())
    }

    /// Floating-point operations of one training step in convolutions and matrix products: forward, gradients of weights
    /// and of inputs. A gradient of inputs that no trained parameter comes before is not computed.
    pub fn step_flops(&self, batch: usize) -> Result<u64, Error> {
        let summary = self.summary(batch)?;
        let wanted = self.wanted_gradients(&self.shapes(batch)?);
        let per_layer = summary.iter().zip(&self.layers).map(|(numbers, layer)| {
            let passes = if layer.inputs.iter().any(|input| wanted[input.0]) { 3 } else { 2 };
            numbers.flops.saturating_mul(passes)
        });
        Ok(per_layer.fold(0, u64::saturating_add))
    }

    /// For each layer, whether training needs the gradient of its output: whether it or a layer before it is trained.
    pub fn wanted_gradients(&self, shapes: &[Shape]) -> Vec<bool> {
        let mut wanted: Vec<bool> = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            let trained = self.parameters(LayerId(i), shapes).iter().any(|p| p.role == Role::Trained);
            wanted.push(trained || layer.inputs.iter().any(|input| wanted[input.0]));
        }
        wanted
    }
}
