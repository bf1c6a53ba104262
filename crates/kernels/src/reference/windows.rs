//! Windows by their definition: which points lie under the window of an output point.

use convoy_net::layers::Windows;

/// The points along depth, height and width under the window of output point `at`, tap by tap in the order of weights.
/// Those outside the input are there too: what padding means is the layer's affair.
pub(super) fn under(windows: &Windows, at: [usize; 3]) -> impl Iterator<Item = [isize; 3]> + use<> {
    let along = [0, 1, 2].map(|i| windows.along(i));
    let kernel = along.map(|(kernel, ..)| kernel);
    (0..kernel.iter().product()).map(move |tap: usize| {
        let tap = [tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]];
        std::array::from_fn(|i| {
            let (_, stride, dilation, [before, _]) = along[i];
            (at[i] * stride + tap[i] * dilation) as isize - before as isize
        })
    })
}

/// The point as an index, if it is inside.
pub(super) fn inside(point: [isize; 3], size: [usize; 3]) -> Option<[usize; 3]> {
    let inside = point.iter().zip(size).all(|(&p, size)| p >= 0 && (p as usize) < size);
    inside.then(|| point.map(|p| p as usize))
}
