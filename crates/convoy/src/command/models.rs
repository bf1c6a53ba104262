//! `convoy models`: the networks that come with Convoy.

use super::{json_argument, model_names, say};
use crate::error::{Error, Errors};
use crate::words::{Sizes, grouped, table};
use clap::{Arg, ArgMatches, Command};
use convoy_net::zoo::{self, ModelOptions};
use serde_json::json;

pub fn definition() -> Command {
    Command::new("models")
        .about("The networks that come with Convoy: parameters, activations, operations")
        .arg(
            Arg::new("NAME").value_parser(model_names()).hide_possible_values(true).help("one of them, layer by layer"),
        )
        .arg(json_argument())
}

pub fn run(matches: &ArgMatches) -> Result<(), Errors> {
    let as_json = matches.get_flag("json");
    match matches.get_one::<String>("NAME") {
        Some(name) => one(name, as_json),
        None => all(as_json),
    }
}

fn all(as_json: bool) -> Result<(), Errors> {
    let (mut rows, mut objects) = (vec![], vec![]);
    for model in zoo::names() {
        let network = zoo::model(model.name, ModelOptions::default()).map_err(Error::from)?;
        let layers = network.summary(1).map_err(Error::from)?;
        let parameters: usize = layers.iter().map(|layer| layer.parameters).sum();
        let activations: usize = layers.iter().map(|layer| layer.activations).sum();
        let flops: u64 = layers.iter().map(|layer| layer.flops).sum();
        let input = Sizes(layers[0].output).to_string();
        objects.push(json!({
            "name": model.name, "about": model.about, "input": model.input, "classes": model.classes,
            "layers": layers.len() - 1, "parameters": parameters, "activations": activations, "flops": flops,
        }));
        let millions = |n: f64| format!("{:.2}", n / 1e6);
        let numbers = [grouped(parameters as u64), millions(activations as f64), format!("{:.3}", flops as f64 / 1e9)];
        let text = [model.name.to_string(), input, model.classes.to_string()];
        rows.push(text.into_iter().chain(numbers).chain([model.about.to_string()]).collect());
    }
    if as_json {
        return Ok(say(&json!(objects).to_string())?);
    }
    let header = ["model", "input", "classes", "parameters", "activations, M", "GFLOP", "what"];
    say(&table(&header, &[6], rows))?;
    say("\nActivations and operations of one image forward; a multiply-add counts two.")?;
    Ok(())
}

fn one(name: &str, as_json: bool) -> Result<(), Errors> {
    let network = zoo::model(name, ModelOptions::default()).map_err(Error::from)?;
    let layers = network.summary(1).map_err(Error::from)?;
    if as_json {
        let objects = layers.iter().map(|layer| {
            let output = &layer.output.0[1..];
            json!({
                "name": layer.name, "kind": layer.kind, "output": output, "parameters": layer.parameters,
                "activations": layer.activations, "flops": layer.flops,
            })
        });
        return Ok(say(&json!(objects.collect::<Vec<_>>()).to_string())?);
    }
    let rows = layers.iter().map(|layer| {
        let text = [layer.name.clone(), layer.kind.to_string(), Sizes(layer.output).to_string()];
        let numbers = [layer.parameters as u64, layer.activations as u64, layer.flops].map(grouped);
        text.into_iter().chain(numbers).collect()
    });
    let header = ["layer", "kind", "output", "parameters", "activations", "FLOP"];
    Ok(say(&table(&header, &[1], rows.collect()))?)
}
