//! The zoo is PyTorch's: names and shapes of the state, numbers of parameters and operations, as `fixtures/networks.txt`
//! has them, which `fixtures/make_networks.py` made.

use convoy_net::zoo::{ModelOptions, model, names};
use convoy_net::{LayerId, Network};

/// What PyTorch says of a network.
#[derive(Debug)]
struct Published {
    name: String,
    input: Vec<usize>,
    parameters: usize,
    /// Multiply-adds of one sample, and those of the layer that reads the input.
    macs: u64,
    first: u64,
    /// Names and shapes of the state, in order.
    state: Vec<(String, Vec<usize>)>,
}

fn published() -> Vec<Published> {
    let sizes = |text: &str| text.split('x').map(|n| n.parse().unwrap()).collect::<Vec<usize>>();
    let mut list: Vec<Published> = Vec::new();
    for line in include_str!("fixtures/networks.txt").lines().filter(|line| !line.starts_with('#')) {
        match *line.split(' ').collect::<Vec<_>>().as_slice() {
            ["network", name, input, "parameters", parameters, "macs", macs, "first", first] => list.push(Published {
                name: name.into(),
                input: sizes(input),
                parameters: parameters.parse().unwrap(),
                macs: macs.parse().unwrap(),
                first: first.parse().unwrap(),
                state: vec![],
            }),
            [name, shape] => list.last_mut().unwrap().state.push((name.into(), sizes(shape))),
            _ => panic!("no line of the fixture: {line}"),
        }
    }
    list
}

fn usual(name: &str) -> Network {
    model(name, ModelOptions::default()).unwrap()
}

/// Names and shapes of all parameters, in order.
fn state(net: &Network) -> Vec<(String, Vec<usize>)> {
    let shapes = net.shapes(1).unwrap();
    let of = |i: usize| {
        let layer = net.layers[i].name.clone();
        net.parameters(LayerId(i), &shapes).into_iter().map(move |p| (format!("{layer}.{}", p.name), p.shape))
    };
    (0..net.layers.len()).flat_map(of).collect()
}

#[test]
fn every_model_is_in_the_fixture_and_the_other_way_round() {
    // The mesh networks have golden numbers of their own, in `zoo/mesh.rs`.
    let mut ours: Vec<&str> = names().iter().map(|model| model.name).filter(|name| !name.starts_with("mesh")).collect();
    let published = published();
    let mut theirs: Vec<&str> = published.iter().map(|p| p.name.as_str()).collect();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

#[test]
fn names_and_shapes_of_the_state_are_those_of_pytorch() {
    for published in published() {
        let mut ours = state(&usual(&published.name));
        let mut theirs = published.state;
        if published.name.starts_with("unet") {
            // PyTorch lists modules as they were made: all steps up, then all merges. Ours are in order of computation.
            ours.sort();
            theirs.sort();
        }
        assert_eq!(ours, theirs, "{}", published.name);
    }
}

#[test]
fn parameters_and_operations_are_those_of_pytorch() {
    for published in published() {
        let net = usual(&published.name);
        assert_eq!(names().iter().find(|m| m.name == published.name).unwrap().input, published.input);
        assert_eq!(net.parameter_count().unwrap(), published.parameters, "{}", published.name);
        let forward: u64 = net.summary(3).unwrap().iter().map(|layer| layer.flops).sum();
        assert_eq!(forward, 3 * 2 * published.macs, "{}", published.name);
        let step = 3 * 2 * (3 * published.macs - published.first);
        assert_eq!(net.step_flops(3).unwrap(), step, "{}", published.name);
    }
}

/// From the papers and the model pages, not from our own script.
#[test]
fn parameters_are_those_that_were_published() {
    let cases = [
        ("alexnet", 61_100_840),
        ("vgg11", 132_863_336),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("mobilenet-v2", 3_504_872),
    ];
    for (name, parameters) in cases {
        assert_eq!(usual(name).parameter_count().unwrap(), parameters, "{name}");
        let summary = usual(name).summary(1).unwrap();
        assert_eq!(summary.iter().map(|layer| layer.parameters).sum::<usize>(), parameters, "{name}");
    }
}

#[test]
fn outputs_are_one_number_a_class() {
    for entry in names().iter().filter(|model| !model.name.starts_with("mesh")) {
        let net = usual(entry.name);
        let output = *net.shapes(2).unwrap().last().unwrap();
        let dense = entry.name.starts_with("unet");
        let space = if dense { net.shapes(2).unwrap()[0].space() } else { [1, 1, 1] };
        assert_eq!(output.channels(), entry.classes, "{}", entry.name);
        assert_eq!(output.space(), space, "{}", entry.name);
        let options = ModelOptions { classes: Some(7), ..Default::default() };
        assert_eq!(model(entry.name, options).unwrap().shapes(2).unwrap().last().unwrap().channels(), 7);
    }
}

#[test]
fn options_change_classes_and_input() {
    let options = |input: &[usize]| ModelOptions { classes: Some(5), input: Some(input.to_vec()) };
    let net = model("resnet50", options(&[4, 64, 96])).unwrap();
    let shapes = net.shapes(2).unwrap();
    assert_eq!(shapes[0].0, [2, 4, 1, 64, 96]);
    assert_eq!(shapes.last().unwrap().0, [2, 5, 1, 1, 1]);
    let net = model("unet3d", options(&[2, 8, 16, 24])).unwrap();
    assert_eq!(net.shapes(1).unwrap().last().unwrap().0, [1, 5, 8, 16, 24]);
}

#[test]
fn what_no_model_can_be_is_said() {
    let says = |name: &str, classes: Option<usize>, input: Option<&[usize]>, text: &str| {
        let options = ModelOptions { classes, input: input.map(<[usize]>::to_vec) };
        assert_eq!(model(name, options).unwrap_err().to_string(), text);
    };
    let known = "lenet, alexnet, vgg11, vgg16, vgg19, resnet18, resnet34, resnet50, resnet101, resnet152, \
                 resnet18-cifar, resnet20, mobilenet-v2, unet, unet3d, mesh1k, mesh2k";
    let text = format!("unknown model `resnet5`\n  help: did you mean `resnet50`? Else one of {known}");
    says("resnet5", None, None, &text);
    says("transformer", None, None, &format!("unknown model `transformer`\n  help: one of {known}"));
    says("resnet18", Some(0), None, "layer `fc` has a number of outputs of 0");
    let text = "model `lenet` takes an input of channels and 2 sizes, usually [1, 28, 28], was given [1, 28]";
    says("lenet", None, Some(&[1, 28]), text);
    let text = "layer `pool2` has a window of 2 along height, its padded input has only 1";
    says("lenet", None, Some(&[1, 14, 28]), text);
    let text = "layer `input` has shape = [3, 0, 32], possible is channels and one to three sizes, all above 0";
    says("resnet20", None, Some(&[3, 0, 32]), text);
    let text = "layer `merge.0.concat` needs inputs that agree in samples and space, they are 1x512x3x3 and 1x512x2x2";
    says("unet", None, Some(&[1, 24, 24]), text);
}
