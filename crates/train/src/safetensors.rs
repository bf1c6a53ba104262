//! The safetensors format: a JSON header that names tensors, then their bytes.
//!
//! Eight bytes little-endian: the header's length. The header: per name a type, a shape and where its bytes lie. Then the
//! bytes, without holes. We write 32-bit floats; we read also 16- and 64-bit ones, as 32-bit, and pass over PyTorch's
//! integer counters.
//!
//! Always true
//! - Reading takes no memory that the file's own length does not justify, whatever its header says.
//! - Tensors are read in the order of their bytes, which is the order in which [`write()`] was given them.
//!
//! Knows nothing of networks. Twin: the `safetensors` crate, in the tests.

use crate::weights::{NamedTensor, Weights, sizes};
use crate::{Error, whole};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

/// The header's entry that is no tensor.
const METADATA: &str = "__metadata__";
/// Headers end, by spaces, at a multiple of so many bytes, so that a mapped file is aligned.
const ALIGNMENT: usize = 8;
/// A longer header is no header; the format's other readers agree.
const LONGEST_HEADER: usize = 100_000_000;

/// What a safetensors file holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    /// Notes as pairs of words.
    pub metadata: BTreeMap<String, String>,
    pub weights: Weights,
}

/// Why bytes are no safetensors file that we can read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Damage {
    #[error("it ends at byte {found}, its {what} at byte {wanted}")]
    Short { what: &'static str, wanted: u64, found: u64 },
    #[error("its header would have {bytes} bytes, possible are {LONGEST_HEADER}")]
    LongHeader { bytes: u64 },
    #[error("its header is not as it should be: {cause}")]
    Header { cause: String },
    #[error("its header's entry `{name}` is not as it should be: {cause}")]
    Entry { name: String, cause: String },
    #[error("it has two tensors `{name}`")]
    Twice { name: String },
    #[error("tensor `{name}` has numbers of type {found}, possible are F32, F64, F16, BF16 and single I64")]
    Type { name: String, found: String },
    #[error("tensor `{name}` lies at bytes {start} to {end} after the header, it should begin at {wanted}")]
    Place { name: String, start: usize, end: usize, wanted: usize },
    #[error("tensor `{name}` of shape {} has {found} bytes of type {kind}", sizes(shape))]
    Size { name: String, shape: Vec<usize>, kind: &'static str, found: usize },
    #[error("its tensors end at byte {wanted}, the file at byte {found}")]
    Long { wanted: u64, found: u64 },
}

/// Reads what a file holds.
pub fn read_file(path: &Path) -> Result<Container, Error> {
    let bytes = std::fs::read(path).map_err(Error::file("read", path))?;
    read(&bytes).map_err(|damage| Error::Safetensors { path: path.to_path_buf(), damage })
}

/// Writes a model's file, whole or not at all, with the note that PyTorch's readers look for.
pub fn write_file(path: &Path, weights: &Weights) -> Result<(), Error> {
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    whole::write(path, &|out| write(weights, &metadata, out))
}

/// Writes tensors in the order given. Names must differ and data must have the length that shapes say.
pub fn write(weights: &Weights, metadata: &BTreeMap<String, String>, out: &mut dyn Write) -> io::Result<()> {
    let view = |t| View::of(t, "");
    write_views(&weights.tensors.iter().map(view).collect::<Vec<_>>(), metadata, out)
}

/// A tensor to write, perhaps under another name than its own.
pub(crate) struct View<'a> {
    name: String,
    shape: &'a [usize],
    data: &'a [f32],
}

impl<'a> View<'a> {
    /// A tensor with something put before its name.
    pub(crate) fn of(tensor: &'a NamedTensor, before: &str) -> View<'a> {
        View { name: format!("{before}{}", tensor.name), shape: &tensor.shape, data: &tensor.data }
    }
}

/// Writes tensors in the order given, without copying them all.
pub(crate) fn write_views(views: &[View], metadata: &BTreeMap<String, String>, out: &mut dyn Write) -> io::Result<()> {
    let header = header(views, metadata);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    views.iter().try_for_each(|view| write_floats(view.data, out))
}

fn header(views: &[View], metadata: &BTreeMap<String, String>) -> String {
    let mut entries = vec![format!("{}:{}", Value::from(METADATA), serde_json::json!(metadata))];
    let mut names = HashSet::from([METADATA]);
    let mut start = 0;
    for View { name, shape, data } in views {
        assert!(names.insert(name), "bug: two tensors called {name}");
        assert_eq!(shape.iter().product::<usize>(), data.len(), "bug: {name} is not as large as its shape");
        let end = start + 4 * data.len();
        let entry = serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] });
        entries.push(format!("{}:{entry}", Value::from(name.as_str())));
        start = end;
    }
    let mut header = format!("{{{}}}", entries.join(","));
    let padded = header.len().next_multiple_of(ALIGNMENT);
    header.extend(std::iter::repeat_n(' ', padded - header.len()));
    header
}

/// Writes floats as little-endian bytes.
pub(crate) fn write_floats(data: &[f32], out: &mut dyn Write) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 * 4096);
    for some in data.chunks(4096) {
        bytes.clear();
        bytes.extend(some.iter().flat_map(|x| x.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// Reads what bytes hold.
pub fn read(bytes: &[u8]) -> Result<Container, Damage> {
    let (header, body) = cut(bytes)?;
    let (metadata, mut entries) = parse(header)?;
    // Stable: tensors without elements share their place and keep the header's order.
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut tensors = Vec::new();
    let mut wanted = 0;
    for (name, entry) in entries {
        let [start, end] = entry.data_offsets;
        if start != wanted || end < start {
            return Err(Damage::Place { name, start, end, wanted });
        }
        let body_starts = bytes.len() - body.len();
        let data = body.get(start..end).ok_or(Damage::Short {
            what: "last tensor",
            wanted: body_starts as u64 + end as u64,
            found: bytes.len() as u64,
        })?;
        tensors.extend(tensor(name, entry, data)?);
        wanted = end;
    }
    if wanted != body.len() {
        let found = bytes.len() as u64;
        return Err(Damage::Long { wanted: found - (body.len() - wanted) as u64, found });
    }
    Ok(Container { metadata, weights: Weights { tensors } })
}

/// Header and body.
fn cut(bytes: &[u8]) -> Result<(&[u8], &[u8]), Damage> {
    let found = bytes.len() as u64;
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(Damage::Short { what: "header's length", wanted: 8, found });
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER as u64 {
        return Err(Damage::LongHeader { bytes: length });
    }
    rest.split_at_checked(length as usize).ok_or(Damage::Short { what: "header", wanted: 8 + length, found })
}

/// A tensor as the header describes it.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

type Entries = Vec<(String, Entry)>;

fn parse(header: &[u8]) -> Result<(BTreeMap<String, String>, Entries), Damage> {
    let header: Header = serde_json::from_slice(header).map_err(|e| Damage::Header { cause: e.to_string() })?;
    let mut metadata = BTreeMap::new();
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for (name, value) in header.0 {
        if !names.insert(name.clone()) {
            return Err(Damage::Twice { name });
        }
        let misread = |e: serde_json::Error| Damage::Entry { name: name.clone(), cause: e.to_string() };
        if name == METADATA {
            metadata = serde_json::from_value(value).map_err(misread)?;
        } else {
            let entry = serde_json::from_value(value).map_err(misread)?;
            entries.push((name, entry));
        }
    }
    Ok((metadata, entries))
}

/// The header's entries in their order, doubled names included: a map would hide both.
struct Header(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The tensor that bytes hold; none where it is a counter.
fn tensor(name: String, entry: Entry, bytes: &[u8]) -> Result<Option<NamedTensor>, Damage> {
    let shape = entry.shape;
    let (kind, data) = match entry.dtype.as_str() {
        "F32" => ("F32", numbers(&shape, bytes, f32::from_le_bytes)),
        "F64" => ("F64", numbers(&shape, bytes, |b| f64::from_le_bytes(b) as f32)),
        "F16" => ("F16", numbers(&shape, bytes, |b| from_half(u16::from_le_bytes(b)))),
        "BF16" => ("BF16", numbers(&shape, bytes, |b| f32::from_bits((u16::from_le_bytes(b) as u32) << 16))),
        "I64" if shape.iter().all(|&n| n == 1) => ("I64", numbers(&shape, bytes, |b| i64::from_le_bytes(b) as f32)),
        _ => return Err(Damage::Type { name, found: entry.dtype }),
    };
    match data {
        None => Err(Damage::Size { name, shape, kind, found: bytes.len() }),
        Some(_) if kind == "I64" => Ok(None),
        Some(data) => Ok(Some(NamedTensor { name, shape, data })),
    }
}

/// The numbers of a tensor, if there are as many bytes as its shape says.
fn numbers<const WIDTH: usize>(shape: &[usize], bytes: &[u8], number: fn([u8; WIDTH]) -> f32) -> Option<Vec<f32>> {
    let count = shape.iter().try_fold(1usize, |count, &n| count.checked_mul(n))?;
    let (numbers, rest) = bytes.as_chunks::<WIDTH>();
    (numbers.len() == count && rest.is_empty()).then(|| numbers.iter().map(|&n| number(n)).collect())
}

/// A 16-bit float: sign, 5 bits of exponent biased by 15, 10 bits of fraction.
fn from_half(half: u16) -> f32 {
    let sign = (half as u32 & 0x8000) << 16;
    let exponent = (half as u32 >> 10) & 0x1f;
    let fraction = half as u32 & 0x3ff;
    match exponent {
        // Zero and subnormal: a count of 2^-24, which f32 holds exactly.
        0 => f32::from_bits(sign | (fraction as f32 / 16_777_216.0).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::safetensors::tensor::TensorView;
    use ::safetensors::{Dtype, SafeTensors, serialize};
    use proptest::prelude::*;
    use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

    fn sample() -> Weights {
        let tensor = |name: &str, shape: &[usize]| NamedTensor {
            name: name.into(),
            shape: shape.to_vec(),
            data: (0..shape.iter().product()).map(|i| 0.1 - i as f32).collect(),
        };
        Weights {
            tensors: vec![
                tensor("conv.weight", &[3, 2, 2, 2]),
                tensor("conv.bias", &[3]),
                tensor("scalar", &[]),
                tensor("empty", &[0, 4]),
                tensor("a \"name\"\n", &[1, 5]),
            ],
        }
    }

    fn pt() -> BTreeMap<String, String> {
        BTreeMap::from([("format".into(), "pt".into())])
    }

    fn written(weights: &Weights) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(weights, &pt(), &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn reading_gives_back_what_was_written() {
        let container = read(&written(&sample())).unwrap();
        assert_eq!(container, Container { metadata: pt(), weights: sample() });
    }

    #[test]
    fn the_oracle_reads_what_we_write() {
        let bytes = written(&sample());
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(header % 8, 0);
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        let oracle = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(oracle.len(), sample().tensors.len());
        for tensor in sample().tensors {
            let view = oracle.tensor(&tensor.name).unwrap();
            assert_eq!((view.dtype(), view.shape()), (Dtype::F32, tensor.shape.as_slice()));
            assert_eq!(view.data(), tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn we_read_what_the_oracle_writes() {
        let values = [1.5f32, -0.25, 3.0, 0.0];
        let f32s: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let f64s: Vec<u8> = values.iter().flat_map(|&x| (x as f64).to_le_bytes()).collect();
        let bf16s: Vec<u8> = values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect();
        let f16s: Vec<u8> = [0x3e00u16, 0xb400, 0x4200, 0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let count = 7i64.to_le_bytes();
        let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        let bytes = serialize(
            [
                ("f32", view(Dtype::F32, &[2, 2], &f32s)),
                ("f64", view(Dtype::F64, &[4], &f64s)),
                ("f16", view(Dtype::F16, &[1, 4], &f16s)),
                ("bf16", view(Dtype::BF16, &[4, 1], &bf16s)),
                ("bn.num_batches_tracked", view(Dtype::I64, &[], &count)),
            ],
            None,
        )
        .unwrap();
        let mut tensors = read(&bytes).unwrap().weights.tensors;
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["bf16", "f16", "f32", "f64"]);
        assert!(tensors.iter().all(|t| t.data == values), "{tensors:?}");
        assert_eq!(tensors[2].shape, [2, 2]);
    }

    #[test]
    fn every_half_is_converted_as_its_definition_says() {
        for half in 0..=u16::MAX {
            let sign = if half >> 15 == 1 { -1.0 } else { 1.0 };
            let (exponent, fraction) = ((half >> 10 & 31) as i32, (half & 1023) as f64 / 1024.0);
            let wanted = match exponent {
                0 => sign * fraction * 2f64.powi(-14),
                31 if fraction == 0.0 => sign * f64::INFINITY,
                31 => f64::NAN,
                _ => sign * (1.0 + fraction) * 2f64.powi(exponent - 15),
            };
            let found = from_half(half);
            assert!(found as f64 == wanted || (found.is_nan() && wanted.is_nan()), "{half:#06x}: {found} {wanted}");
            assert_eq!(found.is_sign_negative(), half >> 15 == 1);
        }
    }

    /// A file with this header and so many bytes of zeros.
    fn file(header: &str, body: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + body, 0);
        bytes
    }

    #[test]
    fn damage_is_named() {
        let cases: Vec<(Vec<u8>, &str)> = vec![
            (vec![1, 2, 3], "it ends at byte 3, its header's length at byte 8"),
            (vec![99, 0, 0, 0, 0, 0, 0, 0, b'{'], "it ends at byte 9, its header at byte 107"),
            (vec![255; 9], "its header would have 18446744073709551615 bytes, possible are 100000000"),
            (
                file("[]", 0),
                "its header is not as it should be: invalid type: sequence, expected an object of tensors at line 1 column 0",
            ),
            (
                file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 2),
                "it ends at byte 64, its last tensor at byte 66",
            ),
            (
                file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 5),
                "its tensors end at byte 66, the file at byte 67",
            ),
            (
                file(r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,4]}}"#, 4),
                "tensor `a` of shape 2x3 has 4 bytes of type F32",
            ),
            (
                file(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}}"#, 0),
                "tensor `a` of shape 4294967296x4294967296x4 has 0 bytes of type F32",
            ),
            (
                file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8),
                "tensor `a` lies at bytes 4 to 8 after the header, it should begin at 0",
            ),
            (file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}"#, 4), "it has two tensors `a`"),
            (
                file(r#"{"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}"#, 16),
                "tensor `a` has numbers of type I64, possible are F32, F64, F16, BF16 and single I64",
            ),
            (
                file(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4),
                "its header's entry `a` is not as it should be: invalid value: integer `-1`, expected usize",
            ),
        ];
        for (bytes, text) in cases {
            assert_eq!(read(&bytes).unwrap_err().to_string(), text);
        }
        // The same name twice, both whole.
        let one = r#""a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
        assert_eq!(read(&file(&format!("{{{one},{one}}}"), 0)), Err(Damage::Twice { name: "a".into() }));
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let missing = read_file(&path).unwrap_err().to_string();
        assert!(missing.starts_with(&format!("cannot read {}\n  cause: ", path.display())), "{missing}");
        write_file(&path, &sample()).unwrap();
        assert_eq!(read_file(&path).unwrap().weights, sample());
        std::fs::write(&path, &written(&sample())[..100]).unwrap();
        let short = read_file(&path).unwrap_err().to_string();
        assert!(
            short.starts_with(&format!("{}: no safetensors file we can read, it ends at byte 100", path.display()))
        );
    }

    /// Whatever happens to a file, reading returns; and what we accept, the oracle accepts with the same numbers.
    #[test]
    fn mutations_never_panic_and_agree_with_the_oracle() {
        let valid = written(&sample());
        let header = 8 + u64::from_le_bytes(valid[..8].try_into().unwrap()) as usize;
        let config = ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        // Any byte, or one that may well stand in a header.
        let change = (0..header, prop_oneof![any::<u8>(), b'0'..=b'9', b'a'..=b'z']);
        let changes = (prop::collection::vec(change, 1..3), 0..valid.len() + 8);
        let accepted = std::cell::Cell::new(0);
        runner
            .run(&changes, |(changes, length)| {
                let mut bytes = valid.clone();
                changes.iter().for_each(|&(at, byte)| bytes[at] = byte);
                // Mostly whole, sometimes shorter or longer.
                if length % 4 == 0 {
                    bytes.resize(length, 0);
                }
                if let Ok(container) = read(&bytes) {
                    accepted.set(accepted.get() + 1);
                    let oracle = SafeTensors::deserialize(&bytes);
                    prop_assert!(oracle.is_ok(), "we accept what the oracle refuses: {:?}", oracle.err());
                    let oracle = oracle.unwrap();
                    for tensor in container.weights.tensors {
                        let view = oracle.tensor(&tensor.name).unwrap();
                        prop_assert_eq!(view.shape(), tensor.shape.as_slice());
                        if view.dtype() == Dtype::F32 {
                            let bytes: Vec<u8> = tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect();
                            prop_assert_eq!(view.data(), bytes);
                        }
                    }
                }
                Ok(())
            })
            .unwrap();
        // Changed names and spaces are read: both outcomes were seen.
        assert!((100..3900).contains(&accepted.get()), "{} of 4000 accepted", accepted.get());
    }
}
