//! Networks as files: what is written is read back equal, what is no network is refused with its line, nothing panics.

use convoy_net::zoo::{ModelOptions, model, names};
use convoy_net::{Edge, Kind, LayerId, Loss, Network, Sampling, layers::*};
use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof};
use proptest::strategy::{Strategy as Generator, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A runner whose cases are the same on every run.
fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]))
}

#[test]
fn the_zoo_is_read_back_equal() {
    for entry in names() {
        let net = model(entry.name, ModelOptions::default()).unwrap();
        assert_eq!(Network::from_toml(&net.to_toml()), Ok(net), "{}", entry.name);
    }
}

/// A network with much of what files can say.
const FILE: &str = r#"name = "sample"
input = [3, 16, 16]

[loss]
kind = "cross-entropy"
label_smoothing = 0.1
ignore = 255

[[layer]]
name = "conv"
kind = "convolution"
filters = 8
kernel = [3, 3]
padding = [[0, 1], 1]
groups = 1
edge = "periodic"

[[layer]]
name = "leaky"
kind = "activation"
function = "leaky-relu"
slope = 0.01

[[layer]]
name = "norm"
kind = "batch-norm"
momentum = 0.01

[[layer]]
name = "squeeze"
kind = "global-average-pool"

[[layer]]
name = "excite"
kind = "multiply"
from = ["norm", "squeeze"]

[[layer]]
name = "up"
kind = "transposed-convolution"
filters = 4
kernel = [3, 3]
stride = [2, 2]
padding = [1, 1]
output_padding = [1, 0]

[[layer]]
name = "out"
kind = "fully-connected"
outputs = 5
"#;

#[test]
fn a_file_says_what_it_says() {
    let net = Network::from_toml(FILE).unwrap();
    assert_eq!(net.loss, Loss::CrossEntropy { label_smoothing: 0.1, ignore: Some(255) });
    let windows = Windows { kernel: vec![3, 3], padding: vec![[0, 1], [1, 1]], ..Windows::default() };
    let conv = Convolution { windows, edge: Edge::Periodic, ..Convolution::new(8, &[3, 3]) };
    assert_eq!(net.layers[1].kind, Kind::Convolution(conv));
    assert_eq!(net.layers[3].kind, Kind::BatchNorm(BatchNorm { momentum: 0.01, ..BatchNorm::default() }));
    assert_eq!(net.layers[5].inputs, [LayerId(3), LayerId(4)]);
    assert_eq!(net.shapes(2).unwrap()[6].0, [2, 4, 1, 30, 31]);
    // What is written says no more than what differs from the usual.
    assert_eq!(net.to_toml(), FILE.replace("groups = 1\n", ""));
}

#[test]
fn what_is_no_network_is_said_with_its_line() {
    let says = |old: &str, new: &str, text: &str| {
        assert!(FILE.contains(old), "{old}");
        assert_eq!(Network::from_toml(&FILE.replacen(old, new, 1)).unwrap_err().to_string(), text);
    };
    says(
        "kernel = [3, 3]",
        "kernal = [3, 3]",
        "line 13, layer `conv`: unknown field `kernal`\n  help: did you mean `kernel`? Else one of \
         name, kind, from, filters, kernel, stride, padding, dilation, groups, bias, edge",
    );
    says(
        "momentum = 0.01",
        "decay = 0.01",
        "line 27, layer `norm`: unknown field `decay`\n  help: one of name, kind, from, epsilon, momentum, activation",
    );
    says(
        "batch-norm",
        "batchnorm",
        "line 26, layer `norm`: unknown kind \"batchnorm\"\n  help: did you mean `batch-norm`? Else one of \
         activation, adaptive-average-pool, add, average-pool, batch-norm, concat, convolution, dropout, flatten, \
         fully-connected, global-average-pool, group-norm, local-response-norm, max-pool, multiply, pad-channels, \
         softmax, transposed-convolution, upsample",
    );
    says(
        "cross-entropy",
        "entropy",
        "line 5, [loss]: unknown kind \"entropy\"\n  help: one of \
         cross-entropy, binary-cross-entropy, mean-squared-error, dice",
    );
    says(
        "leaky-relu",
        "leaky",
        "line 21, layer `leaky`: has function = \"leaky\", possible is one of \
         relu, leaky-relu, clip, sigmoid, tanh, silu, gelu, hard-swish, hard-sigmoid",
    );
    says("slope = 0.01\n", "", "line 18, layer `leaky`: missing field `slope`");
    says("filters = 8\n", "", "line 9, layer `conv`: `filters` is missing");
    says("name = \"conv\"\n", "", "line 9, layer number 1: `name` is missing");
    says("kind = \"batch-norm\"\n", "", "line 24, layer `norm`: `kind` is missing");
    says("name = \"norm\"", "name = 3", "line 25, layer number 3: has name = 3, possible is a text in quotes");
    says("input = [3, 16, 16]\n", "", "line 1: `input` is missing");
    says(
        "input",
        "inputs",
        "line 2: unknown field `inputs`\n  help: did you mean `input`? Else one of name, input, loss, layer",
    );
    says(
        "kernel = [3, 3]",
        "kernel = 3",
        "line 13, layer `conv`: has kernel = 3, possible is a list of whole numbers such as [3, 3]",
    );
    says(
        "filters = 8",
        "filters = -8",
        "line 12, layer `conv`: has filters = -8, possible is a whole number, not below 0",
    );
    says(
        "filters = 8",
        "filters = 99999999999999999999",
        "line 12, layer `conv`: has filters = 99999999999999999999, possible is a whole number, not below 0",
    );
    says(
        "[[0, 1], 1]",
        "[[0, 1, 2], 1]",
        "line 14, layer `conv`: has padding = [[0, 1, 2], 1], \
         possible is a list such as [1, 1], or with before and after apart [[0, 1], [0, 1]]",
    );
    says(
        "[\"norm\", \"squeeze\"]",
        "\"norm\"",
        "line 36, layer `excite`: has from = \"norm\", possible is a list of texts such as [\"a\", \"b\"]",
    );
    says(
        "\"squeeze\"]",
        "\"sqeeze\"]",
        "line 36, layer `excite`: `from` has `sqeeze`, which is no earlier layer\n  help: did you mean `squeeze`?",
    );
    says("\"squeeze\"]", "\"out\"]", "line 36, layer `excite`: `from` has `out`, which is no earlier layer");
    says("name = \"leaky\"", "name = \"conv\"", "line 18: two layers are called `conv`");
    says("name = \"leaky\"", "name = \"input\"", "line 18: two layers are called `input`");
    says("label_smoothing = 0.1", "label_smoothing = 2", "the loss has label_smoothing = 2, possible is from 0 to 1");
    says("\"squeeze\"]", "\"conv\", \"norm\"]", "line 33: layer `excite` takes two inputs, was given 3");
    says("stride = [2, 2]", "stride = [2]", "line 38: layer `up` gives 1 numbers for stride, its kernel has 2");
    says(
        "input = [3, 16, 16]",
        "input = [3, 16, 0]",
        "line 2: layer `input` has shape = [3, 16, 0], possible is channels and one to three sizes, all above 0",
    );
    says("filters = 4", "filters 4", "line 41: key with no value, expected `=`");
    assert_eq!(
        Network::from_toml("name = \"x\"\ninput = [1, 1, 1]").unwrap_err().to_string(),
        "the network has no layers"
    );
    let not_a_list = Network::from_toml("name = \"x\"\ninput = [1, 1, 1]\nlayer = 3").unwrap_err().to_string();
    assert_eq!(not_a_list, "line 3: has layer = 3, possible is a list of tables, each begun by [[layer]]");
}

fn windows() -> impl Generator<Value = Windows> {
    (1..=3usize).prop_flat_map(|n| {
        let list = |range: std::ops::Range<usize>| prop_oneof![Just(vec![]), prop::collection::vec(range, n)];
        let padding = prop_oneof![Just(vec![]), prop::collection::vec([0..3usize, 0..3usize], n)];
        (prop::collection::vec(1..4usize, n), list(1..3), padding, list(1..3))
            .prop_map(|(kernel, stride, padding, dilation)| Windows { kernel, stride, padding, dilation })
    })
}

fn activation() -> impl Generator<Value = Activation> {
    prop_oneof![
        Just(Activation::Relu),
        any::<f32>().prop_map(|slope| Activation::LeakyRelu { slope }),
        any::<(f32, f32)>().prop_map(|(a, b)| Activation::Clip { low: a.min(b), high: a.max(b) }),
        Just(Activation::Sigmoid),
        Just(Activation::Tanh),
        Just(Activation::Silu),
        Just(Activation::Gelu),
        Just(Activation::HardSwish),
        Just(Activation::HardSigmoid),
    ]
}

fn convolution() -> impl Generator<Value = Convolution> {
    let edge = prop_oneof![Just(Edge::Zero), Just(Edge::Periodic)];
    (1..9usize, windows(), 1..4usize, any::<bool>(), edge).prop_map(|(filters, windows, groups, bias, edge)| {
        Convolution { filters, windows, groups, bias, edge, activation: None }
    })
}

fn transposed_convolution() -> impl Generator<Value = TransposedConvolution> {
    let output_padding = prop::collection::vec(0..2usize, 0..3);
    (1..9usize, windows(), output_padding, 1..4usize, any::<bool>()).prop_map(
        |(filters, windows, output_padding, groups, bias)| TransposedConvolution {
            filters,
            windows,
            output_padding,
            groups,
            bias,
        },
    )
}

fn average_pool() -> impl Generator<Value = AveragePool> {
    (windows(), any::<(bool, bool)>()).prop_map(|(windows, (ceil, count_padding))| AveragePool {
        windows,
        ceil,
        count_padding,
    })
}

fn upsample() -> impl Generator<Value = Upsample> {
    let sampling = prop_oneof![Just(Sampling::Nearest), Just(Sampling::Linear), Just(Sampling::LinearCorners)];
    (prop::collection::vec(1..3usize, 1..4), sampling).prop_map(|(scale, sampling)| Upsample { scale, sampling })
}

fn local_response_norm() -> impl Generator<Value = LocalResponseNorm> {
    (1..9usize, any::<(f32, f32, f32)>()).prop_map(|(size, (a, b, c))| LocalResponseNorm {
        size,
        alpha: a.abs(),
        beta: b.abs(),
        k: c.abs(),
    })
}

fn kind() -> impl Generator<Value = Kind> {
    let norm = any::<f32>().prop_map(f32::abs);
    let share = 0.0..1.0f32;
    prop_oneof![
        activation().prop_map(Kind::Activation),
        prop::collection::vec(1..6usize, 1..4)
            .prop_map(|output| Kind::AdaptiveAveragePool(AdaptiveAveragePool { output })),
        Just(Kind::Add(Add)),
        average_pool().prop_map(Kind::AveragePool),
        (norm.clone(), share.clone()).prop_map(|(epsilon, momentum)| Kind::BatchNorm(BatchNorm {
            epsilon,
            momentum,
            activation: None
        })),
        Just(Kind::Concat(Concat)),
        convolution().prop_map(Kind::Convolution),
        share.prop_map(|probability| Kind::Dropout(Dropout { probability })),
        Just(Kind::Flatten(Flatten)),
        (1..9usize, any::<bool>()).prop_map(|(outputs, bias)| Kind::FullyConnected(FullyConnected { outputs, bias })),
        Just(Kind::GlobalAveragePool(GlobalAveragePool)),
        (1..4usize, norm).prop_map(|(groups, epsilon)| Kind::GroupNorm(GroupNorm { groups, epsilon })),
        local_response_norm().prop_map(Kind::LocalResponseNorm),
        (windows(), any::<bool>()).prop_map(|(windows, ceil)| Kind::MaxPool(MaxPool { windows, ceil })),
        Just(Kind::Multiply(Multiply)),
        (0..3usize, 0..3usize).prop_map(|(before, after)| Kind::PadChannels(PadChannels { before, after })),
        Just(Kind::Softmax(Softmax)),
        transposed_convolution().prop_map(Kind::TransposedConvolution),
        upsample().prop_map(Kind::Upsample),
    ]
}

/// A network of the given layers, each reading as many earlier ones as it must, without those that do not fit.
fn grown(input: Vec<usize>, loss: Loss, layers: Vec<(Kind, String, [prop::sample::Index; 3])>) -> Network {
    let mut net = Network { loss, ..Network::new("grown \"\\ \n", &input) };
    for (i, (kind, name, picks)) in layers.into_iter().enumerate() {
        let inputs = match kind {
            Kind::Add(_) | Kind::Concat(_) => 2 + i % 2,
            Kind::Multiply(_) => 2,
            _ => 1,
        };
        // Half of the time the layer before, as networks do.
        let last = net.output();
        let pick = |pick: &prop::sample::Index| if i % 2 == 0 { last } else { LayerId(pick.index(last.0 + 1)) };
        let inputs: Vec<LayerId> = picks[..inputs].iter().map(pick).collect();
        net.join(format!("{name}{i}"), kind, &inputs);
        if net.verify().is_err() {
            net.layers.pop();
        }
    }
    net
}

fn network() -> impl Generator<Value = Network> {
    let loss = prop_oneof![
        (0.0..=1.0f32, any::<Option<u32>>())
            .prop_map(|(label_smoothing, ignore)| Loss::CrossEntropy { label_smoothing, ignore }),
        Just(Loss::BinaryCrossEntropy),
        Just(Loss::MeanSquaredError),
        Just(Loss::Dice),
    ];
    let layers = prop::collection::vec((kind(), ".{0,4}", any::<[prop::sample::Index; 3]>()), 1..20);
    (prop::collection::vec(1..7usize, 2..5), loss, layers).prop_map(|(input, loss, layers)| grown(input, loss, layers))
}

#[test]
fn any_network_is_read_back_equal() {
    let mut kinds = std::collections::BTreeSet::new();
    runner(1000)
        .run(&network().prop_filter("no layer fitted", |net| net.layers.len() > 1), |net| {
            prop_assert_eq!(Network::from_toml(&net.to_toml()), Ok(net));
            Ok(())
        })
        .unwrap();
    // The generator reaches every kind.
    let mut runner = runner(1);
    for _ in 0..300 {
        let net = network().new_tree(&mut runner).unwrap().current();
        kinds.extend(net.layers.iter().map(|layer| layer.kind.name()));
    }
    assert_eq!(kinds.len(), 20, "{kinds:?}");
}

/// One change of a text, by someone who does not look.
#[derive(Clone, Debug)]
enum Change {
    Remove(usize),
    Insert(char),
    Replace(char),
    Number(u64),
    DoubleLine,
    SwapLines(prop::sample::Index),
}

fn change() -> impl Generator<Value = (prop::sample::Index, Change)> {
    let symbol = prop_oneof!["[\\[\\]{}=\",.#'\\-_\n0-9a-z]".prop_map(|s| s.chars().next().unwrap()), any::<char>()];
    let number = prop_oneof![
        0..100u64,
        any::<u64>(),
        Just(i64::MAX as u64),
        Just(i32::MAX as u64),
        (0..64u32).prop_map(|bit| 1 << bit)
    ];
    let change = prop_oneof![
        1 => (1..10usize).prop_map(Change::Remove),
        1 => symbol.clone().prop_map(Change::Insert),
        1 => symbol.prop_map(Change::Replace),
        3 => number.prop_map(Change::Number),
        1 => Just(Change::DoubleLine),
        1 => any::<prop::sample::Index>().prop_map(Change::SwapLines),
    ];
    (any::<prop::sample::Index>(), change)
}

fn changed(text: &str, at: prop::sample::Index, change: &Change) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    let mut lines: Vec<&str> = text.split('\n').collect();
    let (i, line) = (at.index(letters.len().max(1)), at.index(lines.len()));
    match change {
        Change::DoubleLine => lines.insert(line, lines[line]),
        Change::SwapLines(other) => {
            let other = other.index(lines.len());
            lines.swap(line, other);
        }
        Change::Remove(count) => {
            letters = letters.iter().take(i).chain(letters.iter().skip(i + count)).copied().collect()
        }
        Change::Insert(letter) => letters.insert(i.min(letters.len()), *letter),
        Change::Replace(letter) => letters.iter_mut().skip(i).take(1).for_each(|l| *l = *letter),
        Change::Number(number) => {
            // The next number of the text becomes this one.
            let start = (i..letters.len()).find(|&j| letters[j].is_ascii_digit()).unwrap_or(letters.len());
            let end = (start..letters.len()).find(|&j| !letters[j].is_ascii_digit()).unwrap_or(letters.len());
            letters.splice(start..end, number.to_string().chars());
        }
    }
    match change {
        Change::DoubleLine | Change::SwapLines(_) => lines.join("\n"),
        _ => letters.into_iter().collect(),
    }
}

/// Whatever a file says, it is refused or it is a network that can be counted, whose geometry holds and which can be written.
#[test]
fn damaged_files_never_panic() {
    let unet = model("unet3d", ModelOptions::default()).unwrap().to_toml();
    let resnet = model("resnet20", ModelOptions::default()).unwrap().to_toml();
    let text = prop_oneof![
        4 => Just(FILE.to_string()),
        1 => Just(unet),
        1 => Just(resnet),
        4 => network().prop_map(|net| net.to_toml()),
    ];
    runner(4000)
        .run(&(text, prop::collection::vec(change(), 1..4)), |(mut text, changes)| {
            for (at, change) in changes {
                text = changed(&text, at, &change);
            }
            if let Ok(net) = Network::from_toml(&text) {
                let shapes = net.shapes(3);
                prop_assert_eq!(net.summary(3).is_ok(), shapes.is_ok());
                prop_assert_eq!(net.step_flops(3).is_ok(), shapes.is_ok());
                for (i, layer) in net.layers.iter().enumerate().filter(|_| shapes.is_ok()) {
                    let shapes = shapes.as_ref().unwrap();
                    let inputs = net.input_shapes(LayerId(i), shapes);
                    for (number, input) in inputs.iter().enumerate() {
                        for (axis, map) in layer.kind.operation().maps(&inputs, shapes[i], number).iter().enumerate() {
                            let (a, b) = map.reads((0, shapes[i].0[axis] as isize), input.0[axis]);
                            prop_assert!(a < b || matches!(layer.kind, Kind::TransposedConvolution(_)));
                        }
                    }
                }
                prop_assert_eq!(Network::from_toml(&net.to_toml()), Ok(net));
            }
            Ok(())
        })
        .unwrap();
}
