//! Weights: named tensors in order, as files hold them and as PyTorch lays them out.
//!
//! Always true of [`Weights`] that were read from a file: names are unique and every tensor has as many numbers as its shape
//! says. [`fit`] finds what a network wants among them.
//!
//! Knows nothing of files, networks or kernel order.

use crate::Error;
use std::collections::HashMap;
use std::fmt;

/// A tensor with its name, in PyTorch's order of elements.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// `<layer>.<parameter>`.
    pub name: String,
    pub shape: Vec<usize>,
    /// As many as the shape says, the last axis fastest.
    pub data: Vec<f32>,
}

/// Named tensors, in an order that writing and reading keep.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    pub tensors: Vec<NamedTensor>,
}

/// One way in which weights do not fit a network.
#[derive(Clone, Debug, PartialEq)]
pub enum Misfit {
    /// The network wants it.
    Missing { name: String, wanted: Vec<usize> },
    /// The network has no such parameter.
    Unknown { name: String, found: Vec<usize> },
    /// The network wants another shape.
    Shape { name: String, wanted: Vec<usize>, found: Vec<usize> },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Misfit::Missing { name, wanted } => write!(f, "missing: `{name}` {}", sizes(wanted)),
            Misfit::Unknown { name, found } => write!(f, "unknown: `{name}` {}", sizes(found)),
            Misfit::Shape { name, wanted, found } => {
                write!(f, "shape:   `{name}` is {}, the network wants {}", sizes(found), sizes(wanted))
            }
        }
    }
}

/// A shape as people write it: `64x3x7x7`, or `scalar`.
pub(crate) fn sizes(shape: &[usize]) -> String {
    if shape.is_empty() {
        return "scalar".into();
    }
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

/// For each wanted name and shape, in order, the tensor of that name; or all misfits at once. `origin` says in errors where
/// the weights come from. PyTorch's counters of batches (`num_batches_tracked`) may be there or not.
pub fn fit<'a>(
    wanted: &[(String, Vec<usize>)],
    found: &'a Weights,
    origin: &str,
) -> Result<Vec<&'a NamedTensor>, Error> {
    let mut left: HashMap<&str, &NamedTensor> = found.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
    let mut fitting = Vec::with_capacity(wanted.len());
    let mut misfits = Vec::new();
    for (name, shape) in wanted {
        match left.remove(name.as_str()) {
            None => misfits.push(Misfit::Missing { name: name.clone(), wanted: shape.clone() }),
            Some(tensor) if tensor.shape != *shape => {
                misfits.push(Misfit::Shape { name: name.clone(), wanted: shape.clone(), found: tensor.shape.clone() })
            }
            Some(tensor) => fitting.push(tensor),
        }
    }
    // In the file's order, not the map's.
    for tensor in &found.tensors {
        if left.contains_key(tensor.name.as_str()) && !tensor.name.ends_with("num_batches_tracked") {
            misfits.push(Misfit::Unknown { name: tensor.name.clone(), found: tensor.shape.clone() });
        }
    }
    if misfits.is_empty() { Ok(fitting) } else { Err(Error::Unfit { origin: origin.into(), misfits }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[usize]) -> NamedTensor {
        NamedTensor { name: name.into(), shape: shape.to_vec(), data: vec![0.0; shape.iter().product()] }
    }

    fn wanted(list: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
        list.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect()
    }

    #[test]
    fn fitting_weights_come_in_the_order_wanted() {
        let found =
            Weights { tensors: vec![tensor("b", &[2]), tensor("bn.num_batches_tracked", &[]), tensor("a", &[3])] };
        let fitting = fit(&wanted(&[("a", &[3]), ("b", &[2])]), &found, "x").unwrap();
        assert_eq!(fitting.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn all_misfits_are_listed() {
        let found =
            Weights { tensors: vec![tensor("fc.weight", &[10, 84]), tensor("head", &[]), tensor("conv.bias", &[6])] };
        let wanted = wanted(&[("conv.weight", &[6, 1, 5, 5]), ("conv.bias", &[6]), ("fc.weight", &[100, 84])]);
        let error = fit(&wanted, &found, "model.safetensors").unwrap_err();
        assert_eq!(
            error.to_string(),
            "model.safetensors: 3 tensors do not fit the network\n  \
             missing: `conv.weight` 6x1x5x5\n  \
             shape:   `fc.weight` is 10x84, the network wants 100x84\n  \
             unknown: `head` scalar"
        );
    }
}
