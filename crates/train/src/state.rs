//! State: weights and what the optimizer remembers, between an engine's kernel order and named tensors in PyTorch's.
//!
//! A rank may have a share of a parameter only, and may keep only some numbers of it. Files and checkpoints hold whole ones: rank 0
//! puts them together.

use crate::Error;
use crate::weights::{NamedTensor, Weights};
use convoy_comm::{Team, gather};
use convoy_engine::Engine;
use convoy_net::{LayerId, Network, Parameter, Role};
use convoy_program::{KeptAt, What};
use std::ops::Range;

/// One parameter of a network: where it is and what it is called.
struct Place {
    layer: LayerId,
    number: usize,
    parameter: Parameter,
    name: String,
}

/// Every parameter, in the network's order. The network must be verified.
fn places(network: &Network) -> Vec<Place> {
    let shapes = network.shapes(1).expect("bug: a network that does not fit");
    let mut all = vec![];
    for (l, layer) in network.layers.iter().enumerate() {
        for (number, parameter) in network.parameters(LayerId(l), &shapes).into_iter().enumerate() {
            let name = format!("{}.{}", layer.name, parameter.name);
            all.push(Place { layer: LayerId(l), number, parameter, name });
        }
    }
    all
}

/// Names and shapes of everything a network's file of weights holds.
pub fn wanted(network: &Network) -> Vec<(String, Vec<usize>)> {
    places(network).into_iter().map(|p| (p.name, p.parameter.shape)).collect()
}

/// A network's weights before the first step.
pub fn initial_weights(network: &Network, seed: u64) -> Weights {
    Weights { tensors: places(network).iter().map(|place| initial(place, seed)).collect() }
}

/// Gives an engine the weights before the first step; one tensor at a time, so that there are never two copies of all.
pub fn put_initial_weights(engine: &mut Engine, network: &Network, seed: u64) {
    places(network).iter().for_each(|place| put(engine, network, place, |at| at.parameter, &initial(place, seed)));
}

fn initial(place: &Place, seed: u64) -> NamedTensor {
    let data = crate::initial::initial(&place.parameter, seed, place.layer, place.number);
    NamedTensor { name: place.name.clone(), shape: place.parameter.shape.clone(), data }
}

/// Gives an engine the weights of these names; they must fit ([`crate::fit`]).
pub fn put_weights(engine: &mut Engine, network: &Network, weights: &Weights) {
    for place in places(network) {
        let tensor = weights.tensors.iter().find(|t| t.name == place.name).expect("bug: weights that do not fit");
        put(engine, network, &place, |at| at.parameter, tensor);
    }
}

/// The weights of all ranks, put together on rank 0; nothing elsewhere. Every rank calls it.
pub fn weights(engine: &Engine, network: &Network) -> Result<Option<Weights>, Error> {
    let what = |place: &Place| (kept_at(engine, place).parameter, place.name.clone());
    collect(engine, places(network).iter().map(|place| (place, what(place))).collect(), network)
}

/// What the optimizer remembers: `<parameter>.<state>` for each of its states, on rank 0. Every rank calls it.
pub fn optimizer_state(engine: &Engine, network: &Network, states: &[&str]) -> Result<Option<Weights>, Error> {
    let places = places(network);
    let trained = places.iter().filter(|p| p.parameter.role == Role::Trained);
    let what = |place: &Place, k: usize| kept_at(engine, place).state(k);
    let all = trained.flat_map(|p| {
        states.iter().enumerate().map(move |(k, state)| (p, (what(p, k), format!("{}.{state}", p.name))))
    });
    collect(engine, all.collect(), network)
}

/// Gives an engine what the optimizer remembered.
pub fn put_optimizer_state(engine: &mut Engine, network: &Network, states: &[&str], remembered: &Weights) {
    for place in places(network) {
        for (k, state) in states.iter().enumerate() {
            let name = format!("{}.{state}", place.name);
            if let Some(tensor) = remembered.tensors.iter().find(|t| t.name == name) {
                put(engine, network, &place, |at| at.state(k), tensor);
            }
        }
    }
}

/// Where this rank keeps what it has of a parameter: the same for all its programs.
fn kept_at(engine: &Engine, place: &Place) -> KeptAt {
    engine.program(0).kept_at(place.layer, place.number)
}

fn put(engine: &mut Engine, network: &Network, place: &Place, what: impl Fn(&KeptAt) -> What, tensor: &NamedTensor) {
    let (program, at) = (engine.program(0), kept_at(engine, place));
    let packing = program.packing(network, place.layer, place.number);
    let runs = place.parameter.runs(&program.share(place.layer, &place.parameter));
    if let Some(memory) = engine.kept_mut(what(&at)) {
        for (&place, &value) in packing.places.iter().zip(runs.flat_map(|run| &tensor.data[run])) {
            if let Some(here) = at.index(place, memory.len()) {
                memory[here] = value;
            }
        }
    }
}

/// This rank's share of a tensor, in order; nothing where it has none.
fn share(engine: &Engine, network: &Network, place: &Place, what: What) -> (Vec<Range<usize>>, Vec<f32>) {
    let program = engine.program(0);
    let memory = engine.kept(what).unwrap_or(&[]);
    let places = program.packing(network, place.layer, place.number).places;
    let data = if memory.is_empty() { vec![] } else { places.iter().map(|&at| memory[at as usize]).collect() };
    (program.share(place.layer, &place.parameter), data)
}

/// Of a tensor that is divided over ranks: the numbers that this one keeps, each with its index in the whole.
fn numbers(engine: &Engine, network: &Network, place: &Place, what: What) -> Vec<(usize, f32)> {
    let (program, at) = (engine.program(0), kept_at(engine, place));
    let memory = engine.kept(what).unwrap_or(&[]);
    let indices = place.parameter.runs(&program.share(place.layer, &place.parameter)).flatten();
    let places = program.packing(network, place.layer, place.number).places;
    let number = |(i, place): (usize, u32)| Some((i, memory[at.index(place, memory.len())?]));
    indices.zip(places).filter_map(number).collect()
}

/// Puts ranks' shares of tensors together on rank 0. Those that a rank has whole do not travel.
fn collect(
    engine: &Engine,
    tensors: Vec<(&Place, (What, String))>,
    network: &Network,
) -> Result<Option<Weights>, Error> {
    let communicator = engine.communicator();
    let is_first = communicator.rank() == 0;
    let mut whole: Vec<NamedTensor> = vec![];
    let mut mine: Vec<u8> = vec![];
    for (i, (place, (what, name))) in tensors.iter().enumerate() {
        let parameter = &place.parameter;
        let mut all = vec![0.0; if is_first { parameter.len() } else { 0 }];
        if kept_at(engine, place).is_sharded() {
            let numbers = numbers(engine, network, place, *what);
            if is_first {
                numbers.into_iter().for_each(|(at, value)| all[at] = value);
                whole.push(NamedTensor { name: name.clone(), shape: parameter.shape.clone(), data: all });
            } else {
                write_numbers(&mut mine, i, &numbers);
            }
            continue;
        }
        let (ranges, data) = share(engine, network, place, *what);
        if is_first {
            fill(&mut all, parameter, &ranges, &data);
            whole.push(NamedTensor { name: name.clone(), shape: parameter.shape.clone(), data: all });
        } else if !data.is_empty() && data.len() < parameter.len() {
            write_share(&mut mine, i, &ranges, &data);
        }
    }
    let all = gather(communicator, &Team::all(communicator), 0, &mine);
    let all = all.map_err(convoy_engine::Error::Communication)?;
    let Some(others) = all else { return Ok(None) };
    for other in &others {
        let mut rest = &other[..];
        while let Some((i, ranges)) = read_share(&mut rest) {
            let parameter = &tensors[i].0.parameter;
            if ranges.is_empty() {
                read_numbers(&mut rest, &mut whole[i].data);
                continue;
            }
            let count: usize = ranges.iter().map(|r| r.len()).product();
            let (data, left) = rest.split_at(count * 4);
            let data: Vec<f32> = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            fill(&mut whole[i].data, parameter, &ranges, &data);
            rest = left;
        }
    }
    Ok(Some(Weights { tensors: whole }))
}

/// Puts a share where it belongs in the whole.
fn fill(whole: &mut [f32], parameter: &Parameter, ranges: &[Range<usize>], data: &[f32]) {
    let mut rest = data;
    for run in parameter.runs(ranges).take_while(|_| !data.is_empty()) {
        let (now, left) = rest.split_at(run.len());
        whole[run].copy_from_slice(now);
        rest = left;
    }
}

/// A share as bytes: the tensor's number, how many axes, their ranges, the numbers.
fn write_share(bytes: &mut Vec<u8>, number: usize, ranges: &[Range<usize>], data: &[f32]) {
    let ends = ranges.iter().flat_map(|range| [range.start, range.end]);
    for word in [number, ranges.len()].into_iter().chain(ends) {
        bytes.extend((word as u64).to_le_bytes());
    }
    bytes.extend(data.iter().flat_map(|value| value.to_le_bytes()));
}

/// Numbers with their indices as bytes: the tensor's number, no axes, how many, index and number of each.
fn write_numbers(bytes: &mut Vec<u8>, number: usize, numbers: &[(usize, f32)]) {
    for word in [number, 0, numbers.len()] {
        bytes.extend((word as u64).to_le_bytes());
    }
    for (index, value) in numbers {
        bytes.extend((*index as u32).to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
}

/// Puts what [`write_numbers`] wrote, after what [`read_share`] takes, where it belongs in the whole.
fn read_numbers(bytes: &mut &[u8], whole: &mut [f32]) {
    let (count, rest) = bytes.split_first_chunk::<8>().expect("bug: a count is missing");
    let (numbers, rest) = rest.split_at(u64::from_le_bytes(*count) as usize * 8);
    for [a, b, c, d, value @ ..] in numbers.as_chunks::<8>().0 {
        whole[u32::from_le_bytes([*a, *b, *c, *d]) as usize] = f32::from_le_bytes(*value);
    }
    *bytes = rest;
}

/// What [`write_share`] wrote before the numbers; nothing at the end.
fn read_share(bytes: &mut &[u8]) -> Option<(usize, Vec<Range<usize>>)> {
    let mut word = || {
        let (word, rest) = bytes.split_first_chunk::<8>()?;
        *bytes = rest;
        Some(u64::from_le_bytes(*word) as usize)
    };
    let (number, axes) = (word()?, word()?);
    let ranges = (0..axes).map(|_| Some(word()?..word()?)).collect::<Option<Vec<_>>>()?;
    Some((number, ranges))
}

/// The first layer with a parameter that is not a number any more.
pub(crate) fn first_not_finite(engine: &Engine, network: &Network) -> Option<String> {
    let broken = |p: &Place| {
        // Of what is divided, all that lies in the same bucket.
        let memory = engine.kept(kept_at(engine, p).parameter);
        memory.is_some_and(|m| m.iter().any(|v| !v.is_finite()))
    };
    places(network).iter().find(|p| broken(p)).map(|p| network.layers[p.layer.0].name.clone())
}
