//! The zoo: networks that come with Convoy, by name.
//!
//! One file a family, and the list of them. Always true: layers that have parameters are named so that parameters are
//! called as in the state of the PyTorch module of the same network.
//!
//! Twin: `tests/zoo.rs` compares names, shapes and operations with those of PyTorch.

use crate::{Error, Network, suggestion};

mod alexnet;
mod lenet;
mod mesh;
mod mobilenet;
mod resnet;
mod sequence;
mod unet;
mod vgg;

/// A network that comes with Convoy.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Its input when nobody says otherwise: channels, then sizes.
    pub input: &'static [usize],
    /// Its classes when nobody says otherwise.
    pub classes: usize,
    /// Adds its layers to a network that has only its input.
    build: fn(&mut Network, usize),
}

/// What may be different from a model's usual form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    pub classes: Option<usize>,
    /// Channels, then as many sizes as the model has.
    pub input: Option<Vec<usize>>,
}

const IMAGE: &[usize] = &[3, 224, 224];
const SMALL: &[usize] = &[3, 32, 32];

#[rustfmt::skip]
static MODELS: &[Model] = &[
    Model { name: "lenet", about: "two convolutions for digits (LeCun et al. 1998, the 20/50/500 form)", input: &[1, 28, 28], classes: 10, build: lenet::lenet },
    Model { name: "alexnet", about: "five convolutions in one column (Krizhevsky 2014)", input: IMAGE, classes: 1000, build: alexnet::alexnet },
    Model { name: "vgg11", about: "8 convolutions, configuration A (Simonyan and Zisserman 2014)", input: IMAGE, classes: 1000, build: vgg::vgg11 },
    Model { name: "vgg16", about: "13 convolutions, configuration D", input: IMAGE, classes: 1000, build: vgg::vgg16 },
    Model { name: "vgg19", about: "16 convolutions, configuration E", input: IMAGE, classes: 1000, build: vgg::vgg19 },
    Model { name: "resnet18", about: "8 basic blocks (He et al. 2015)", input: IMAGE, classes: 1000, build: resnet::resnet18 },
    Model { name: "resnet34", about: "16 basic blocks", input: IMAGE, classes: 1000, build: resnet::resnet34 },
    Model { name: "resnet50", about: "16 bottlenecks, stride on the 3x3 (\"v1.5\")", input: IMAGE, classes: 1000, build: resnet::resnet50 },
    Model { name: "resnet101", about: "33 bottlenecks", input: IMAGE, classes: 1000, build: resnet::resnet101 },
    Model { name: "resnet152", about: "50 bottlenecks", input: IMAGE, classes: 1000, build: resnet::resnet152 },
    Model { name: "resnet18-cifar", about: "resnet18 for small images: 3x3 stem, no first pooling", input: SMALL, classes: 10, build: resnet::resnet18_cifar },
    Model { name: "resnet20", about: "9 basic blocks for small images, shortcuts without parameters (He et al., option A)", input: SMALL, classes: 10, build: resnet::resnet20 },
    Model { name: "mobilenet-v2", about: "inverted residuals with depthwise convolutions, width 1 (Sandler et al. 2018)", input: IMAGE, classes: 1000, build: mobilenet::mobilenet_v2 },
    Model { name: "unet", about: "a class per pixel, widths 64 to 1024 (Ronneberger et al. 2015), with batch norm", input: &[1, 256, 256], classes: 2, build: unet::unet },
    Model { name: "unet3d", about: "a class per voxel, widths 16 to 128", input: &[1, 64, 64, 64], classes: 2, build: unet::unet3d },
    Model { name: "mesh1k", about: "where a mesh tangles, fields of 1024 x 1024 (Dryden et al. 2019)", input: &[18, 1024, 1024], classes: 1024, build: mesh::mesh1k },
    Model { name: "mesh2k", about: "the same for fields of 2048 x 2048", input: &[18, 2048, 2048], classes: 4096, build: mesh::mesh2k },
];

/// All models, each with its name and one line about it.
pub fn names() -> &'static [Model] {
    MODELS
}

/// The model of this name.
///
/// ```
/// use convoy_net::zoo::{ModelOptions, model};
/// let net = model("resnet18", ModelOptions { classes: Some(10), ..Default::default() }).unwrap();
/// assert_eq!(net.shapes(32).unwrap().last().unwrap().channels(), 10);
/// let error = model("resnet81", ModelOptions::default()).unwrap_err().to_string();
/// assert!(error.contains("did you mean `resnet18`?"));
/// ```
pub fn model(name: &str, options: ModelOptions) -> Result<Network, Error> {
    let Some(model) = MODELS.iter().find(|model| model.name == name) else {
        let known: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
        let suggestion = suggestion(name, known.iter().copied()).map(String::from);
        return Err(Error::UnknownModel { name: name.into(), suggestion, known });
    };
    let input = options.input.unwrap_or(model.input.to_vec());
    if input.len() != model.input.len() {
        return Err(Error::ModelInput { model: model.name, usual: model.input, found: input });
    }
    let mut network = Network::new(model.name, &input);
    (model.build)(&mut network, options.classes.unwrap_or(model.classes));
    network.verify()?;
    Ok(network)
}
