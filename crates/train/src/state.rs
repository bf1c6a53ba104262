//! State: weights and what the optimizer remembers, between an engine's kernel order and named tensors in PyTorch's.

use crate::weights::{NamedTensor, Weights};
use convoy_engine::Engine;
use convoy_kernels::fast::{self, Packing};
use convoy_net::{LayerId, Network, Parameter, Role};
use convoy_program::What;

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
    let tensor = |p: Place| {
        let data = crate::initial::initial(&p.parameter, seed, p.layer, p.number);
        NamedTensor { name: p.name, shape: p.parameter.shape, data }
    };
    Weights { tensors: places(network).into_iter().map(tensor).collect() }
}

fn packing(engine: &Engine, network: &Network, place: &Place) -> Packing {
    let geometry = engine.program(0).geometries[place.layer.0].as_ref().expect("bug: a layer with parameters computes");
    fast::twin(&network.layers[place.layer.0].kind).packing(place.number, geometry)
}

/// Gives an engine the weights of these names; they must fit ([`crate::fit`]).
pub fn put_weights(engine: &mut Engine, network: &Network, weights: &Weights) {
    for place in places(network) {
        let tensor = weights.tensors.iter().find(|t| t.name == place.name).expect("bug: weights that do not fit");
        put(engine, network, &place, What::Parameter(place.layer, place.number), tensor);
    }
}

/// An engine's weights.
pub fn weights(engine: &Engine, network: &Network) -> Weights {
    let get = |place: Place| {
        let what = What::Parameter(place.layer, place.number);
        get(engine, network, &place, what, place.name.clone()).expect("bug: a parameter without memory")
    };
    Weights { tensors: places(network).into_iter().map(get).collect() }
}

/// What the optimizer remembers: `<parameter>.<state>` for each of its states.
pub fn optimizer_state(engine: &Engine, network: &Network, states: &[&str]) -> Weights {
    let mut tensors = vec![];
    for place in places(network).iter().filter(|p| p.parameter.role == Role::Trained) {
        for (k, state) in states.iter().enumerate() {
            let what = What::State(place.layer, place.number, k);
            tensors.extend(get(engine, network, place, what, format!("{}.{state}", place.name)));
        }
    }
    Weights { tensors }
}

/// Gives an engine what the optimizer remembered.
pub fn put_optimizer_state(engine: &mut Engine, network: &Network, states: &[&str], remembered: &Weights) {
    for place in places(network) {
        for (k, state) in states.iter().enumerate() {
            let name = format!("{}.{state}", place.name);
            if let Some(tensor) = remembered.tensors.iter().find(|t| t.name == name) {
                put(engine, network, &place, What::State(place.layer, place.number, k), tensor);
            }
        }
    }
}

fn put(engine: &mut Engine, network: &Network, place: &Place, what: What, tensor: &NamedTensor) {
    let places = packing(engine, network, place).places;
    if let Some(memory) = engine.kept_mut(what) {
        places.iter().zip(&tensor.data).for_each(|(&at, &value)| memory[at as usize] = value);
    }
}

fn get(engine: &Engine, network: &Network, place: &Place, what: What, name: String) -> Option<NamedTensor> {
    let memory = engine.kept(what)?;
    let data = packing(engine, network, place).places.iter().map(|&at| memory[at as usize]).collect();
    Some(NamedTensor { name, shape: place.parameter.shape.clone(), data })
}

/// The first layer with a parameter that is not a number any more.
pub(crate) fn first_not_finite(engine: &Engine, network: &Network) -> Option<String> {
    let broken = |p: &Place| {
        let memory = engine.kept(What::Parameter(p.layer, p.number));
        memory.is_some_and(|m| m.iter().any(|v| !v.is_finite()))
    };
    places(network).iter().find(|p| broken(p)).map(|p| network.layers[p.layer.0].name.clone())
}
