//! `convoy predict`: a trained network's outputs for an array, or the classes it sees in images.

use super::eval::{FIELDS, Trained, network_arguments};
use super::{path, path_argument, run_argument, say};
use crate::error::{Error, Errors, Place};
use crate::job::Normalisation;
use crate::ready;
use crate::words::{Sizes, percent, table};
use clap::{ArgMatches, Command};
use convoy_net::Shape;
use convoy_train::data::{self, Dataset, Normalise, Split};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// So many of the most likely classes are shown.
const SHOWN: usize = 3;

pub fn definition() -> Command {
    Command::new("predict")
        .about("A trained network's outputs for an array, or the classes it sees in images")
        .after_help(
            "Either a run, or --model (or --network) with --weights. What is done to channels is what the run did; without\n\
             a run it is nothing, unless --mean and --deviation are given.",
        )
        .arg(run_argument("RUN"))
        .arg(
            path_argument("input")
                .long("input")
                .value_name("FILE")
                .required(true)
                .num_args(1..)
                .help("one array [n,c,(d,)h,w] as .npy, or images as PNG or JPEG"),
        )
        .arg(path_argument("out").long("out").value_name("FILE").help("where to write the outputs, as .npy"))
        .args(network_arguments(|field| FIELDS.contains(&field.key)))
}

pub fn run(matches: &ArgMatches) -> Result<(), Errors> {
    let trained = Trained::find(matches, ready::network_alone)?;
    let paths: Vec<PathBuf> = matches.get_many("input").into_iter().flatten().cloned().collect();
    let input = trained.network.shapes(1).map_err(Error::from)?[0];
    let data: Arc<dyn Dataset> = data::open_unlabelled(&paths, input).map_err(Error::from)?.into();
    let found = data.sample_shape();
    if found != input {
        let flaw = Error::Images { network: trained.network.name.clone(), found, taken: input }.to_string();
        return Err(Error::Field { place: Place::Flag("input"), flaw }.into());
    }
    let normalise = match trained.job.data.normalise.clone() {
        Some(Normalisation::Given { mean, deviation }) => Some(Normalise { mean, deviation }),
        Some(Normalisation::Measure) => {
            let text = "nothing to measure here\n  help: --mean and --deviation, or none";
            return Err(Error::at("data.normalise.kind", text).into());
        }
        Some(Normalisation::None) | None => None,
    };
    let mut outputs = Vec::new();
    trained.on(data.clone(), normalise).outputs(&mut |batch| outputs.extend_from_slice(batch)).map_err(Error::from)?;
    let output = ready::output(&trained.network)?;
    match path(matches, "out") {
        Some(out) => write(out, output.with_samples(data.len()), &outputs)?,
        None => show(&trained, &paths, output, &outputs)?,
    }
    Ok(())
}

/// Writes the outputs, whole or not at all.
fn write(out: &Path, shape: Shape, outputs: &[f32]) -> Result<(), Error> {
    let [n, c, d, h, w] = shape.0;
    let sizes = match (d, h * w) {
        (1, 1) => vec![n, c],
        (1, _) => vec![n, c, h, w],
        _ => vec![n, c, d, h, w],
    };
    data::write_npy(out, &sizes, outputs)?;
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    say(&format!("{}: {}", out.display(), sizes.join("x")))
}

/// The most likely classes of each image.
fn show(trained: &Trained, paths: &[PathBuf], output: Shape, outputs: &[f32]) -> Result<(), Error> {
    if output.points() > 1 {
        let text =
            format!("the network's output is {}, which is no list of classes\n  help: --out y.npy", Sizes(output));
        return Err(Error::Usage(text));
    }
    // Names of classes are in the run's data, if they still are where they were.
    let options = ready::open_options(&trained.job, &trained.network.loss, Some(output));
    let known = trained.folder.as_ref().and_then(|_| data::open(&trained.job.data.train, Split::Train, &options).ok());
    let name = |class: usize| {
        let known = known.as_ref().and_then(|data| data.class_name(class));
        known.map_or(class.to_string(), str::to_string)
    };
    let shown = SHOWN.min(output.channels());
    let rows = outputs.chunks(output.channels()).enumerate().map(|(i, scores)| {
        let of = if paths.len() > 1 || !is_array(&paths[0]) { paths[i].display().to_string() } else { i.to_string() };
        let likely = most_likely(scores, shown);
        std::iter::once(of).chain(likely.into_iter().flat_map(|(class, p)| [name(class), percent(p)])).collect()
    });
    let header = ["image", "first", "", "second", "", "third", ""];
    say(&table(&header[..1 + 2 * shown], &[1, 3, 5], rows.collect()))
}

fn is_array(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "npy")
}

/// Classes with their probabilities, the largest first.
fn most_likely(scores: &[f32], shown: usize) -> Vec<(usize, f64)> {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let parts: Vec<f64> = scores.iter().map(|&score| ((score - largest) as f64).exp()).collect();
    let sum: f64 = parts.iter().sum();
    let mut classes: Vec<(usize, f64)> = parts.iter().map(|part| part / sum).enumerate().collect();
    classes.sort_by(|a, b| b.1.total_cmp(&a.1));
    classes.truncate(shown);
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_by_probability() {
        let likely = most_likely(&[0.0, 2.0f32.ln(), f32::NEG_INFINITY, 1.0f32.ln()], 2);
        assert_eq!((likely[0].0, likely[1].0), (1, 0));
        assert!((likely[0].1 - 0.5).abs() < 1e-6 && (likely[1].1 - 0.25).abs() < 1e-6);
    }
}
