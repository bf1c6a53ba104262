//! Models in PyTorch: a `model.safetensors` loads into the torch model of the same name, and both give the same outputs.
//!
//! Needs a Python with torch and numpy: `python3`, or the one that `CONVOY_PYTHON` names. Without it the tests say so and
//! pass; that names are right is then up to the fixtures of `net`. With `CONVOY_PYTHON` set, a torch that is missing is a
//! failure.

mod program;

use convoy_train::data::write_npy;
use program::{Place, finish};
use std::path::Path;
use std::process::Command;

/// The interpreter, if it has what is needed.
fn python() -> Option<String> {
    let named = std::env::var("CONVOY_PYTHON").ok();
    let python = named.clone().unwrap_or("python3".into());
    let tried = Command::new(&python).args(["-c", "import torch, numpy"]).output();
    let reason = match tried {
        Ok(output) if output.status.success() => return Some(python),
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(named.is_none(), "CONVOY_PYTHON is {python}: {reason}");
    println!("skipped: {python} has no torch ({reason}); CONVOY_PYTHON may name another");
    None
}

/// Trains a little, so that weights and running statistics are no longer what they start as; then compares.
fn check(model: &str, job: &str, shape: [usize; 3]) {
    let Some(python) = python() else { return };
    let place = Place::new();
    let run = place.json(&format!("train --model {model} {job} --test-data none"))["run"].as_str().unwrap().to_string();
    let images = 4;
    let count = images * shape.iter().product::<usize>();
    // No two images alike, values from -1 to 1.
    let array: Vec<f32> = (0..count).map(|i| (i * i % 1009) as f32 / 504.0 - 1.0).collect();
    let [c, h, w] = shape;
    write_npy(&place.path().join("x.npy"), &[images, c, h, w], &array).unwrap();
    // What both sides get is the array as it is, and both sum up products one by one.
    let weights = format!("--model {model} --weights {run}/model.safetensors --winograd off");
    place.good(&format!("predict {weights} --input x.npy --out y.npy"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch/outputs.py");
    let mut command = Command::new(python);
    let model_file = format!("{run}/model.safetensors");
    command.arg(script).args([model, &model_file, "x.npy", "y.npy"]).current_dir(place.path());
    let ran = finish(&mut command);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let report: serde_json::Value = serde_json::from_str(ran.out.trim()).unwrap();
    let number = |name: &str| report[name].as_f64().unwrap();
    // Either side rounds each term on the way to an output once, in an order of its own.
    let tolerance = 2.0 * number("terms") * f64::from(f32::EPSILON) * number("largest");
    println!("{model}: {report}, tolerance {tolerance:.2e}");
    assert!(number("difference") <= tolerance, "{report}, tolerance {tolerance:.2e}");
    assert!(number("largest") > 0.1, "outputs that are all alike show nothing: {report}");
}

#[test]
fn lenet_is_torchs() {
    check("lenet", "--steps 20 --batch 16", [1, 28, 28]);
}

#[test]
fn resnet20_is_torchs() {
    check("resnet20", "--data synthetic:3x32x32:32 --batch 8 --steps 6", [3, 32, 32]);
}
