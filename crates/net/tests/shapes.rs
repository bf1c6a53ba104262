//! Known output shapes, and the words in which layers refuse what does not fit.

use convoy_net::{AxisMap, Edge, Kind, LayerId, Loss, Network, Operation, Sampling, Shape, layers::*};

/// The output's sizes of one layer that reads the given inputs, or why not.
fn infer(layer: &dyn Operation, inputs: &[[usize; 5]]) -> Result<[usize; 5], String> {
    let inputs: Vec<Shape> = inputs.iter().copied().map(Shape).collect();
    layer.infer(&inputs).map(|shape| shape.0).map_err(|misfit| misfit.to_string())
}

fn says(layer: &dyn Operation, inputs: &[[usize; 5]], text: &str) {
    assert_eq!(infer(layer, inputs), Err(text.to_string()));
}

fn windows(kernel: &[usize], stride: &[usize], padding: &[[usize; 2]], dilation: &[usize]) -> Windows {
    Windows { kernel: kernel.into(), stride: stride.into(), padding: padding.into(), dilation: dilation.into() }
}

/// An image of two samples and four channels.
fn image(h: usize, w: usize) -> [usize; 5] {
    [2, 4, 1, h, w]
}

#[test]
fn convolutions() {
    let conv = |windows| Convolution { windows, ..Convolution::new(8, &[1]) };
    let cases = [
        (windows(&[3, 3], &[], &[], &[]), [2, 8, 1, 5, 7]),
        (windows(&[3, 3], &[2, 2], &[[1, 1], [1, 1]], &[]), [2, 8, 1, 4, 5]),
        // Padding on one side only, and a window that skips the last column.
        (windows(&[2, 2], &[1, 3], &[[0, 1], [2, 0]], &[]), [2, 8, 1, 7, 4]),
        (windows(&[3, 3], &[], &[[2, 2], [0, 0]], &[2, 4]), [2, 8, 1, 7, 1]),
        // One number is for the width, three are for depth too.
        (windows(&[4], &[], &[], &[]), [2, 8, 1, 7, 6]),
        (windows(&[1, 7, 9], &[], &[], &[]), [2, 8, 1, 1, 1]),
    ];
    for (windows, wanted) in cases {
        assert_eq!(infer(&conv(windows.clone()), &[image(7, 9)]), Ok(wanted), "{windows:?}");
    }
}

#[test]
fn ceil_mode_keeps_a_last_window_that_starts_inside() {
    let pool = |kernel: usize, stride: usize, padding: [usize; 2], ceil| MaxPool {
        windows: windows(&[kernel], &[stride], &[padding], &[]),
        ceil,
    };
    let width = |pool: MaxPool, w| infer(&pool, &[image(1, w)]).unwrap()[4];
    assert_eq!(width(pool(3, 2, [0, 0], false), 6), 2);
    assert_eq!(width(pool(3, 2, [0, 0], true), 6), 3);
    assert_eq!(width(pool(3, 2, [0, 0], true), 7), 3);
    // The window would start in the padding after the input: PyTorch drops it.
    assert_eq!(width(pool(2, 2, [1, 1], true), 5), 3);
    assert_eq!(width(pool(2, 3, [1, 1], true), 5), 2);
    assert_eq!(width(pool(2, 3, [0, 0], true), 6), 2);
    let average = AveragePool { windows: windows(&[3], &[2], &[[1, 1]], &[]), ceil: true, count_padding: false };
    assert_eq!(infer(&average, &[image(5, 6)]), Ok(image(5, 4)));
}

#[test]
fn transposed_convolutions() {
    let make = |windows, output_padding| TransposedConvolution {
        windows,
        output_padding,
        ..TransposedConvolution::new(6, &[1])
    };
    let doubles = make(windows(&[2, 2], &[2, 2], &[], &[]), vec![]);
    assert_eq!(infer(&doubles, &[image(5, 7)]), Ok([2, 6, 1, 10, 14]));
    let padded = make(windows(&[3, 3], &[2, 2], &[[1, 1], [1, 0]], &[1, 2]), vec![1, 0]);
    assert_eq!(infer(&padded, &[image(5, 7)]), Ok([2, 6, 1, 10, 16]));
    let maps = padded.maps(&[Shape(image(5, 7))], Shape([2, 6, 1, 10, 16]), 0);
    let spread = |dilation| AxisMap::Spread { kernel: 3, stride: 2, dilation, before: 1 };
    assert_eq!(maps, [AxisMap::Same, AxisMap::All, AxisMap::Same, spread(1), spread(2)]);
    let parameters = TransposedConvolution { groups: 2, ..padded }.parameters(&[Shape(image(5, 7))]);
    assert_eq!(parameters[0].shape, [4, 3, 3, 3]);
    assert_eq!(parameters[1].shape, [6]);
}

#[test]
fn other_layers() {
    let same = |layer: &dyn Operation| assert_eq!(infer(layer, &[image(5, 7)]), Ok(image(5, 7)));
    same(&BatchNorm::default());
    same(&GroupNorm::new(2));
    same(&Dropout { probability: 0.5 });
    same(&LocalResponseNorm::new(5));
    same(&Softmax);
    same(&Activation::Relu);
    assert_eq!(infer(&GlobalAveragePool, &[[2, 4, 3, 5, 7]]), Ok(image(1, 1)));
    assert_eq!(infer(&AdaptiveAveragePool::new(&[6, 6]), &[[2, 4, 3, 5, 7]]), Ok([2, 4, 3, 6, 6]));
    assert_eq!(infer(&Add, &[image(5, 7), image(5, 7), image(5, 7)]), Ok(image(5, 7)));
    assert_eq!(infer(&Multiply, &[image(5, 7), image(1, 1)]), Ok(image(5, 7)));
    assert_eq!(infer(&Concat, &[image(5, 7), [2, 3, 1, 5, 7]]), Ok([2, 7, 1, 5, 7]));
    assert_eq!(infer(&Flatten, &[[2, 4, 3, 5, 7]]), Ok([2, 420, 1, 1, 1]));
    assert_eq!(infer(&PadChannels { before: 1, after: 2 }, &[image(5, 7)]), Ok([2, 7, 1, 5, 7]));
    let upsample = Upsample { scale: vec![2, 3], sampling: Sampling::Linear };
    assert_eq!(infer(&upsample, &[image(5, 7)]), Ok(image(10, 21)));
}

#[test]
fn maps_that_are_not_the_same() {
    let (image, point) = (Shape(image(5, 7)), Shape(image(1, 1)));
    let (all, same) = (AxisMap::All, AxisMap::Same);
    assert_eq!(Multiply.maps(&[image, point], image, 0), [same; 5]);
    assert_eq!(Multiply.maps(&[image, point], image, 1), [same, same, same, all, all]);
    let joined = Concat.maps(&[image, image], Shape([2, 8, 1, 5, 7]), 1);
    assert_eq!(joined, [same, AxisMap::Shift { by: 4 }, same, same, same]);
    let flat = Flatten.maps(&[image], Shape([2, 140, 1, 1, 1]), 0);
    assert_eq!(flat, [same, AxisMap::Group { inputs: 1, outputs: 35 }, all, all, all]);
    // Output 34 is the last of channel 0, output 35 the first of channel 1.
    assert_eq!((flat[1].reads((34, 35), 4), flat[1].reads((34, 36), 4)), ((0, 1), (0, 2)));
    let window = AxisMap::Window { kernel: 4, stride: 1, dilation: 1, before: 2, after: 1, edge: Edge::Zero };
    assert_eq!(LocalResponseNorm::new(4).maps(&[image], image, 0)[1], window);
    let mean = AdaptiveAveragePool::new(&[2, 7]).maps(&[image], Shape([2, 4, 1, 2, 7]), 0);
    assert_eq!(mean, [same, same, same, AxisMap::Adaptive { input: 5, output: 2 }, same]);
}

#[test]
fn what_does_not_fit_is_said() {
    let (small, channels) = ([image(5, 7)], [2, 4, 1, 5, 7]);
    let conv = Convolution::new;
    says(&conv(8, &[3, 9]), &small, "has a window of 9 along width, its padded input has only 7");
    says(&conv(8, &[3, 3]).dilation(4), &small, "has a window of 9 along height, its padded input has only 5");
    says(&conv(0, &[3]), &small, "has a number of filters of 0");
    says(&conv(8, &[3]).groups(0), &small, "has a number of groups of 0");
    says(&conv(8, &[3]).groups(3), &small, "has 3 groups, which do not divide its 4 input channels");
    says(&conv(9, &[3]).groups(2), &small, "has 2 groups, which do not divide its 9 filters");
    says(&conv(8, &[]), &small, "has kernel = [], possible is one to three numbers");
    says(&conv(8, &[0]), &small, "has a kernel of 0");
    says(&conv(8, &[1]).stride(0), &small, "has a stride of 0");
    says(&conv(8, &[1]).dilation(0), &small, "has a dilation of 0");
    says(
        &conv(8, &[3]).padding(usize::MAX),
        &small,
        "has padding = 18446744073709551615, possible is at most 2147483647",
    );
    says(&conv(8, &[usize::MAX]), &small, "has kernel = 18446744073709551615, possible is at most 2147483647");
    let uneven = Convolution { windows: windows(&[3, 3], &[2], &[], &[]), ..conv(8, &[1]) };
    says(&uneven, &small, "gives 1 numbers for stride, its kernel has 2");
    let circle = Convolution { edge: Edge::Periodic, ..conv(8, &[3, 3]).padding(6) };
    says(&circle, &small, "has padding = 6, possible is at most 5 on a periodic height");
    says(&conv(8, &[3]), &[], "takes one input, was given 0");
    says(&FullyConnected::new(0), &small, "has a number of outputs of 0");

    let pool = |padding| windows(&[3], &[], &[padding], &[]);
    let max = MaxPool { windows: pool([2, 1]), ceil: false };
    says(&max, &small, "has padding = 2, possible is at most half the kernel, 1");
    let mean = AveragePool { windows: pool([1, 2]), ..AveragePool::new(&[3]) };
    says(&mean, &small, "has padding = 2, possible is at most half the kernel, 1");
    let mean = AveragePool { windows: windows(&[2], &[], &[], &[2]), ..AveragePool::new(&[3]) };
    says(&mean, &small, "has dilation = 2, possible is 1, as average pooling has none");
    says(&AdaptiveAveragePool::new(&[]), &small, "has output = [], possible is one to three numbers");
    says(&AdaptiveAveragePool::new(&[0]), &small, "has an output size of 0");

    let up = |output_padding, padding| TransposedConvolution {
        windows: windows(&[2], &[2], &[padding], &[]),
        output_padding,
        ..TransposedConvolution::new(8, &[1])
    };
    let text = "has output_padding = 2, possible is below the larger of stride and dilation, 2";
    says(&up(vec![2], [0, 0]), &small, text);
    says(&up(vec![1, 1], [0, 0]), &small, "gives 2 numbers for output_padding, its kernel has 1");
    let text = "has padding = 7 + 7, possible is before and after width together below 14";
    says(&up(vec![], [7, 7]), &small, text);
    let huge = Upsample { scale: vec![1 << 40], sampling: Sampling::Nearest };
    says(&huge, &small, "has scale = [1099511627776], possible is at most 2147483647 each");

    says(
        &BatchNorm { epsilon: 0.0, ..BatchNorm::default() },
        &small,
        "has epsilon = 0, possible is a finite number above 0",
    );
    says(&BatchNorm { momentum: 1.5, ..BatchNorm::default() }, &small, "has momentum = 1.5, possible is from 0 to 1");
    says(&GroupNorm::new(3), &small, "has 3 groups, which do not divide its 4 input channels");
    says(&GroupNorm::new(0), &small, "has a number of groups of 0");
    says(&Dropout { probability: f32::NAN }, &small, "has probability = NaN, possible is from 0 to below 1");
    says(&LocalResponseNorm::new(0), &small, "has a size of 0");
    let text = "has beta = -1, possible is a finite number, not below 0";
    says(&LocalResponseNorm { beta: -1.0, ..LocalResponseNorm::new(5) }, &small, text);
    let text = "has low = 1, possible is at most high = 0";
    says(&Activation::Clip { low: 1.0, high: 0.0 }, &small, text);
    let text = "has slope = inf, possible is a finite number";
    says(&Activation::LeakyRelu { slope: f32::INFINITY }, &small, text);

    says(&Add, &small, "takes two or more inputs, was given 1");
    let text = "needs inputs that agree in shape, they are 2x4x5x7 and 2x4x5x8";
    says(&Add, &[channels, image(5, 8)], text);
    says(&Multiply, &small, "takes two inputs, was given 1");
    let text = "needs inputs that agree in samples and channels, they are 2x4x5x7 and 2x5x1x1";
    says(&Multiply, &[channels, [2, 5, 1, 1, 1]], text);
    let text = "needs inputs that agree in space (or a second one of 1x1), they are 2x4x5x7 and 2x4x1x7";
    says(&Multiply, &[channels, image(1, 7)], text);
    let text = "needs inputs that agree in samples and space, they are 2x4x5x7 and 2x4x5x8";
    says(&Concat, &[channels, image(5, 8)], text);
    let text = "has after = 4294967296, possible is at most 2147483647";
    says(&PadChannels { before: 0, after: 1 << 32 }, &small, text);
}

/// What single layers may give but a network may not hold.
#[test]
fn networks_name_the_layer_and_the_numbers() {
    let says = |kind: Kind, batch: usize, text: &str| {
        let mut net = Network::new("test", &[20, 5, 7]);
        net.push("it", kind);
        assert_eq!(net.shapes(batch).unwrap_err().to_string(), text);
    };
    let text = "layer `it` has a window of 9 along width, its padded input has only 7";
    says(Kind::Convolution(Convolution::new(8, &[9])), 1, text);
    says(Kind::Softmax(Softmax), 0, "layer `input` has a batch of 0");
    let text = "layer `it` has an output of sizes [1, 20, 1, 5, 15032385529], \
                possible is at most 2147483647 each and 1099511627776 elements";
    says(Kind::Upsample(Upsample { scale: vec![i32::MAX as usize], sampling: Sampling::Nearest }), 1, text);
    let text = "layer `it` has a parameter of sizes [2147483647, 700], \
                possible is at most 2147483647 each and 1099511627776 elements";
    says(Kind::FullyConnected(FullyConnected::new(i32::MAX as usize)), 1, text);
}

#[test]
fn networks_say_what_they_cannot_be() {
    let says = |net: &Network, text: &str| assert_eq!(net.verify().unwrap_err().to_string(), text);
    let mut net = Network::new("test", &[4, 5, 7]);
    says(&net, "the network has no layers");
    let relu = || Kind::Activation(Activation::Relu);
    let first = net.push("a", relu());
    net.push("b", relu());
    assert_eq!(net.verify(), Ok(()));

    let text = "layer `a` is of kind input; the first layer, and no other, must be `input` of kind input";
    let mut other = net.clone();
    other.layers[first.0].kind = other.layers[0].kind.clone();
    says(&other, text);
    let mut other = net.clone();
    other.layers[0].name = "image".into();
    says(&other, &text.replace("`a`", "`image`"));
    let mut other = net.clone();
    other.layers[first.0].inputs[0] = LayerId(2);
    says(&other, "layer `a` reads `b`, which is no earlier layer");
    assert_eq!(other.shapes(1).unwrap_err().to_string(), "layer `a` reads `b`, which is no earlier layer");
    let mut other = net.clone();
    other.push("a", relu());
    says(&other, "two layers are called `a`");
    net.loss = Loss::CrossEntropy { label_smoothing: f32::NAN, ignore: None };
    says(&net, "the loss has label_smoothing = NaN, possible is from 0 to 1");
}

/// A gradient is wanted where something before it is trained.
#[test]
fn gradients_are_wanted_behind_what_is_trained() {
    let mut net = Network::new("test", &[4, 6, 6]);
    net.push("pool", Kind::MaxPool(MaxPool::new(&[2, 2])));
    net.push("conv", Kind::Convolution(Convolution::new(4, &[1, 1]).no_bias()));
    let relu = net.push("relu", Kind::Activation(Activation::Relu));
    net.join("sum", Kind::Add(Add), &[LayerId(1), relu]);
    net.push("fc", Kind::FullyConnected(FullyConnected::new(10)));
    let shapes = net.shapes(2).unwrap();
    assert_eq!(net.wanted_gradients(&shapes), [false, false, true, true, true, true]);
    let (conv, fc) = (2 * 2 * 4 * 4 * 9, 2 * 2 * 36 * 10);
    assert_eq!(net.step_flops(2), Ok(2 * conv + 3 * fc));
}
