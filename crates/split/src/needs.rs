//! Needs: which region of an input a region of the output reads, and which outputs a region of an input reaches.

use convoy_net::{Kind, Region, Shape};

/// The region of input `input` that output `region` reads, padding included: it may leave the tensor.
pub fn read(kind: &Kind, inputs: &[Shape], output: Shape, input: usize, region: &Region) -> Region {
    map(kind, inputs, output, input, region, true)
}

/// The region of the output that `region` of input `input` reaches, unclamped: what leaves the output does not exist.
pub fn reached(kind: &Kind, inputs: &[Shape], output: Shape, input: usize, region: &Region) -> Region {
    map(kind, inputs, output, input, region, false)
}

fn map(kind: &Kind, inputs: &[Shape], output: Shape, input: usize, region: &Region, reads: bool) -> Region {
    if region.is_empty() {
        return Region::EMPTY;
    }
    let maps = kind.operation().maps(inputs, output, input);
    let mut result = Region::EMPTY;
    for (a, map) in maps.iter().enumerate() {
        let span = (region.start[a], region.end[a]);
        (result.start[a], result.end[a]) =
            if reads { map.reads(span, inputs[input].0[a]) } else { map.reaches(span, output.0[a]) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::block;
    use convoy_net::{Axis, layers::Convolution};

    /// PAPERS.md 1.3: X, kernel, stride, padding, dilation, ranks; per rank need_x and need_dy.
    #[test]
    fn golden_regions() {
        type Row = (usize, usize, usize, usize, usize, usize, &'static [[(isize, isize); 2]]);
        let rows: [Row; 7] = [
            (
                224,
                7,
                2,
                3,
                1,
                4,
                &[[(0, 58), (0, 30)], [(53, 114), (27, 58)], [(109, 170), (55, 86)], [(165, 224), (83, 112)]],
            ),
            (10, 3, 1, 1, 1, 3, &[[(0, 5), (0, 5)], [(3, 8), (3, 8)], [(6, 10), (6, 10)]]),
            (10, 3, 2, 1, 1, 3, &[[(0, 4), (0, 3)], [(3, 8), (2, 4)], [(7, 10), (3, 5)]]),
            (9, 3, 1, 2, 2, 4, &[[(0, 5), (0, 5)], [(1, 7), (1, 7)], [(3, 9), (3, 9)], [(5, 9), (5, 9)]]),
            (6, 7, 1, 3, 1, 4, &[[(0, 5), (0, 5)], [(0, 6), (0, 6)], [(1, 6), (1, 6)], [(2, 6), (2, 6)]]),
            (8, 2, 2, 0, 1, 3, &[[(0, 4), (0, 2)], [(4, 6), (1, 3)], [(6, 8), (3, 4)]]),
            (7, 1, 3, 0, 1, 3, &[[(0, 1), (0, 1)], [(3, 4), (1, 2)], [(6, 7), (2, 3)]]),
        ];
        for (x, kernel, stride, padding, dilation, ranks, wanted) in rows {
            let layer = Convolution::new(1, &[kernel, 1]).stride(stride).dilation(dilation);
            let mut layer = layer;
            layer.windows.padding = vec![[padding, padding], [0, 0]];
            layer.windows.stride = vec![stride, 1];
            let kind = Kind::Convolution(layer);
            let input = Shape([1, 1, 1, x, 1]);
            let output = kind.operation().infer(&[input]).unwrap();
            for (r, &[need_x, need_dy]) in wanted.iter().enumerate() {
                let rows = |shape: Shape| {
                    let (a, b) = block(shape.along(Axis::Height), ranks, r);
                    Region::whole(shape).with(Axis::Height, a, b)
                };
                let x_read = read(&kind, &[input], output, 0, &rows(output)).intersect(&Region::whole(input));
                assert_eq!(x_read.range(Axis::Height), need_x, "x of rank {r}, {x} {kernel} {stride}");
                let dy = reached(&kind, &[input], output, 0, &rows(input)).intersect(&Region::whole(output));
                assert_eq!(dy.range(Axis::Height), need_dy, "dy of rank {r}, {x} {kernel} {stride}");
            }
        }
    }
}
