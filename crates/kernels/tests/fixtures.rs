//! The reference twins compute what PyTorch computes: padding, counting, momentum and corners are conventions, and
//! `fixtures/make.py` wrote down PyTorch's. The fast twins are held to the reference twins, and thereby to these.
//!
//! Both sides compute in double precision, sums of at most some hundred terms, so that they differ by little more than
//! rounding: [`LIMIT`], relative to the largest number of a tensor.

use convoy_kernels::reference::{self, Array, Call};
use convoy_kernels::{Mode, Moment, Update};
use convoy_net::{Kind, Loss, Shape};
use serde_json::Value;

/// Some hundred roundings of 2^-53, and those of a root, a power or an exponential.
const LIMIT: f64 = 1e-12;

/// The cases of one subject.
fn cases(subject: &str) -> Vec<Value> {
    let path = format!("{}/tests/fixtures/{subject}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn lists(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().expect("a list of lists").iter().map(numbers).collect()
}

fn array(value: &Value) -> Array {
    let shape: Vec<usize> = numbers(&value["shape"]).iter().map(|&n| n as usize).collect();
    Array { shape: Shape(shape.try_into().expect("five sizes")), data: numbers(&value["data"]) }
}

/// Both are the same to within rounding.
fn agree(what: &str, ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len(), "{what}: sizes differ");
    let scale = theirs.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!((a - b).abs() <= LIMIT * scale, "{what}, element {i}: ours {a}, PyTorch's {b}");
    }
}

/// A layer's output, gradients and running statistics are PyTorch's.
fn check(subject: &str, case: &Value) {
    let name = format!("{subject}, {}", case["name"]);
    let kind: Kind = serde_json::from_value(case["layer"].clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let inputs: Vec<Array> = case["inputs"].as_array().expect("inputs").iter().map(array).collect();
    let parameters = lists(&case["parameters"]);
    let mode = match case["mode"].as_str() {
        Some("train") => Mode::Train,
        Some("evaluate") => Mode::Evaluate,
        other => panic!("{name}: a mode {other:?}"),
    };
    let call = Call { inputs: &inputs, parameters: &parameters, mode, seed: 0, layer: 0, step: 0 };
    let twin = reference::twin(&kind);

    let (output, theirs) = (twin.forward(&call), array(&case["output"]));
    assert_eq!(output.shape, theirs.shape, "{name}: shapes of the output differ");
    agree(&format!("{name}: output"), &output.data, &theirs.data);

    let dy = Array { shape: output.shape, data: numbers(&case["output_gradient"]) };
    let gradients = twin.backward(&call, &dy);
    for (i, theirs) in lists(&case["input_gradients"]).iter().enumerate() {
        agree(&format!("{name}: gradient of input {i}"), &gradients.inputs[i].data, theirs);
    }
    let theirs = lists(&case["parameter_gradients"]);
    assert_eq!(gradients.parameters.len(), theirs.len(), "{name}: numbers of parameters differ");
    for (p, theirs) in theirs.iter().enumerate() {
        agree(&format!("{name}: gradient of parameter {p}"), &gradients.parameters[p], theirs);
    }
    if let Value::Array(running) = &case["running"] {
        let ours = twin.running(&call);
        for (ours, theirs) in ours[parameters.len() - running.len()..].iter().zip(running) {
            agree(&format!("{name}: running statistics"), ours, &numbers(theirs));
        }
    }
}

#[test]
fn layers_are_pytorchs() {
    for subject in [
        "activation",
        "adaptive_average_pool",
        "arithmetic",
        "average_pool",
        "batch_norm",
        "convolution",
        "fully_connected",
        "group_norm",
        "local_response_norm",
        "max_pool",
        "softmax",
        "transposed_convolution",
        "upsample",
    ] {
        cases(subject).iter().for_each(|case| check(subject, case));
    }
}

/// An optimizer as `make.py` writes it.
fn optimizer(fields: &Value) -> Update {
    let of = |name: &str| fields[name].as_f64().unwrap_or_else(|| panic!("{name} of {fields}")) as f32;
    let weight_decay = of("weight_decay");
    let adam = |decoupled| Update::Adam {
        beta1: of("beta1"),
        beta2: of("beta2"),
        epsilon: of("epsilon"),
        weight_decay,
        decoupled,
    };
    match fields["kind"].as_str() {
        Some("sgd") => Update::Sgd { momentum: of("momentum"), nesterov: fields["nesterov"] == true, weight_decay },
        Some("adam") => adam(false),
        Some("adamw") => adam(true),
        Some("rmsprop") => {
            let (alpha, epsilon, momentum) = (of("alpha"), of("epsilon"), of("momentum"));
            Update::RmsProp { alpha, epsilon, momentum, weight_decay }
        }
        other => panic!("an optimizer {other:?}"),
    }
}

#[test]
fn updates_are_pytorchs() {
    for case in cases("update") {
        let update = optimizer(&case["update"]);
        let (rates, gradients) = (numbers(&case["rates"]), lists(&case["gradients"]));
        let mut weights = numbers(&case["start"]);
        let mut states = vec![vec![0.0; weights.len()]; update.states()];
        for (step, theirs) in lists(&case["after"]).iter().enumerate() {
            let moment = Moment { seed: 0, step: step as u64, learning_rate: rates[step] as f32 };
            reference::update::update(&update, moment, &mut weights, &gradients[step], &mut states);
            agree(&format!("update, {}: after step {step}", case["name"]), &weights, theirs);
        }
    }
}

#[test]
fn losses_are_pytorchs() {
    for case in cases("loss") {
        let name = format!("loss, {}", case["name"]);
        let loss: Loss = serde_json::from_value(case["loss"].clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (measured, gradient) = reference::loss::judge(&loss, &array(&case["output"]), &numbers(&case["target"]));
        agree(&format!("{name}: value"), &[measured.loss], &[case["value"].as_f64().expect("a value")]);
        agree(&format!("{name}: gradient"), &gradient.data, &numbers(&case["gradient"]));
    }
}

#[test]
#[should_panic(expected = "output, element 0: ours")]
fn another_convention_is_noticed() {
    let mut cases = cases("average_pool");
    let case = cases.iter_mut().find(|case| case["name"] == "padding not counted").expect("the case");
    case["layer"]["count_padding"] = true.into();
    check("average_pool", case);
}
