//! Digests: short proofs that two sets of weights have the same bits.
//!
//! BLAKE3 over names, shapes and little-endian numbers. Tensors go by name, so that the order of a list does not matter.
//! docs/formats.md says which bytes, so that others can compute the same.

use crate::safetensors::write_floats;
use crate::{NamedTensor, Weights};
use blake3::Hasher;
use std::fs::File;
use std::io;
use std::path::Path;

/// Hexadecimal digits of a layer's digest: enough to see a difference, short enough for a line.
const LAYER_DIGITS: usize = 16;

/// The digest of all weights, 64 hexadecimal digits.
pub fn digest(weights: &Weights) -> String {
    of_tensors(weights.tensors.iter().collect())
}

/// Per layer, in the order of its first tensor: its name and the first 16 digits of its tensors' digest. A tensor's layer is
/// its name up to the last dot.
pub fn layer_digests(weights: &Weights) -> Vec<(String, String)> {
    let mut layers: Vec<(&str, Vec<&NamedTensor>)> = Vec::new();
    for tensor in &weights.tensors {
        let layer = tensor.name.rsplit_once('.').map_or(tensor.name.as_str(), |(layer, _)| layer);
        match layers.iter_mut().find(|(name, _)| *name == layer) {
            Some((_, tensors)) => tensors.push(tensor),
            None => layers.push((layer, vec![tensor])),
        }
    }
    let short = |tensors| {
        let mut digits = of_tensors(tensors);
        digits.truncate(LAYER_DIGITS);
        digits
    };
    layers.into_iter().map(|(layer, tensors)| (layer.to_string(), short(tensors))).collect()
}

/// The digest of a text, such as a resolved job: 64 hexadecimal digits.
pub fn text_digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// The digest of a file, 64 hexadecimal digits.
pub fn file_digest(path: &Path) -> io::Result<String> {
    let mut hasher = Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn of_tensors(mut tensors: Vec<&NamedTensor>) -> String {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = Hasher::new();
    for tensor in tensors {
        number(&mut hasher, tensor.name.len());
        hasher.update(tensor.name.as_bytes());
        number(&mut hasher, tensor.shape.len());
        for &size in &tensor.shape {
            number(&mut hasher, size);
        }
        write_floats(&tensor.data, &mut hasher).expect("bug: hashing cannot fail");
    }
    hasher.finalize().to_hex().to_string()
}

fn number(hasher: &mut Hasher, n: usize) {
    hasher.update(&(n as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[usize], data: &[f32]) -> NamedTensor {
        NamedTensor { name: name.into(), shape: shape.to_vec(), data: data.to_vec() }
    }

    /// The bytes as docs/formats.md describes them, in one piece.
    #[test]
    fn the_digest_is_of_the_documented_bytes() {
        let weights = Weights { tensors: vec![tensor("b.weight", &[2, 1], &[1.0, -2.0]), tensor("a", &[], &[0.5])] };
        let mut bytes = Vec::new();
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(b"a");
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(0.5f32.to_le_bytes());
        bytes.extend(8u64.to_le_bytes());
        bytes.extend(b"b.weight");
        bytes.extend(2u64.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1.0f32.to_le_bytes());
        bytes.extend((-2.0f32).to_le_bytes());
        assert_eq!(digest(&weights), blake3::hash(&bytes).to_hex().to_string());
    }

    #[test]
    fn every_bit_counts_and_order_does_not() {
        let one = Weights { tensors: vec![tensor("a", &[2], &[1.0, 0.0]), tensor("b", &[1], &[2.0])] };
        let turned = Weights { tensors: vec![one.tensors[1].clone(), one.tensors[0].clone()] };
        assert_eq!(digest(&one), digest(&turned));
        let mut others = vec![one.clone(); 4];
        others[0].tensors[0].data[1] = -0.0;
        others[1].tensors[0].shape = vec![2, 1];
        others[2].tensors[0].name = "c".into();
        others[3].tensors.pop();
        for other in others {
            assert_ne!(digest(&one), digest(&other));
        }
    }

    #[test]
    fn layers_keep_their_order() {
        let weights = Weights {
            tensors: vec![
                tensor("z.0.weight", &[1], &[1.0]),
                tensor("z.0.bias", &[1], &[2.0]),
                tensor("a.weight", &[1], &[1.0]),
            ],
        };
        let layers = layer_digests(&weights);
        assert_eq!(layers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["z.0", "a"]);
        assert!(layers.iter().all(|(_, digits)| digits.len() == LAYER_DIGITS));
        let mut changed = weights.clone();
        changed.tensors[1].data[0] = 3.0;
        assert_ne!(layer_digests(&changed)[0], layers[0]);
        assert_eq!(layer_digests(&changed)[1], layers[1]);
    }
}
