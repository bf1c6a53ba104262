//! Shapes and regions: sizes along the five axes, and boxes in them.
//!
//! Always true
//! - Axes are sample, channel, depth, height, width, in that order; an axis a network does not use has size 1.
//! - A region is half-open and may reach outside its tensor: margins and zero padding have negative coordinates.

use std::fmt;

/// Number of axes of every tensor.
pub const AXES: usize = 5;

/// One of the five axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    Sample = 0,
    Channel = 1,
    Depth = 2,
    Height = 3,
    Width = 4,
}

impl Axis {
    /// All axes in order.
    pub const ALL: [Axis; AXES] = [Axis::Sample, Axis::Channel, Axis::Depth, Axis::Height, Axis::Width];
    /// The three axes of space, in order.
    pub const SPACE: [Axis; 3] = [Axis::Depth, Axis::Height, Axis::Width];

    /// The word people use for it.
    pub fn name(self) -> &'static str {
        ["sample", "channel", "depth", "height", "width"][self as usize]
    }
}

/// Sizes along the five axes: sample, channel, depth, height, width.
///
/// ```
/// use convoy_net::Shape;
/// let shape = Shape([64, 3, 1, 32, 32]);
/// assert_eq!((shape.points(), shape.per_sample()), (1024, 3072));
/// assert_eq!(shape.to_string(), "64x3x32x32");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape(pub [usize; AXES]);

impl Shape {
    /// Largest size along an axis; products of two sizes do not overflow.
    pub const MAX_SIZE: usize = i32::MAX as usize;
    /// Most elements of a tensor.
    pub const MAX_LEN: usize = 1 << 40;

    /// Whether no size is 0 and none is beyond the limits. True of every shape that [`crate::Network::shapes`] gives.
    pub fn is_possible(&self) -> bool {
        fits(&self.0)
    }
    /// Samples.
    pub fn samples(&self) -> usize {
        self.0[0]
    }
    /// Channels.
    pub fn channels(&self) -> usize {
        self.0[1]
    }
    /// Depth, height and width.
    pub fn space(&self) -> [usize; 3] {
        [self.0[2], self.0[3], self.0[4]]
    }
    /// Points of one channel of one sample.
    pub fn points(&self) -> usize {
        self.0[2] * self.0[3] * self.0[4]
    }
    /// Elements of one sample.
    pub fn per_sample(&self) -> usize {
        self.0[1] * self.points()
    }
    /// Elements.
    pub fn len(&self) -> usize {
        self.0[0] * self.per_sample()
    }
    /// Whether it holds no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The same with another number of samples.
    pub fn with_samples(mut self, samples: usize) -> Shape {
        self.0[0] = samples;
        self
    }
    /// The size along one axis.
    pub fn along(&self, axis: Axis) -> usize {
        self.0[axis as usize]
    }
}

/// Whether a tensor of these sizes is within the limits of [`Shape`], and not empty.
pub(crate) fn fits(sizes: &[usize]) -> bool {
    let len = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    sizes.iter().all(|&size| size <= Shape::MAX_SIZE) && len.is_some_and(|len| (1..=Shape::MAX_LEN).contains(&len))
}

/// As people write it: `64x3x32x32`, without depth where it is 1 in front of height and width.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [n, c, d, h, w] = self.0;
        match d {
            1 => write!(f, "{n}x{c}x{h}x{w}"),
            _ => write!(f, "{n}x{c}x{d}x{h}x{w}"),
        }
    }
}

/// A half-open box of a tensor, in the coordinates of the whole tensor.
///
/// ```
/// use convoy_net::{Axis, Region, Shape};
/// let whole = Region::whole(Shape([8, 16, 1, 32, 32]));
/// let top = whole.with(Axis::Height, -1, 17); // the upper half with a margin of one row
/// assert_eq!(whole.intersect(&top).range(Axis::Height), (0, 17));
/// assert!(!whole.contains(&top));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// First coordinate inside, per axis.
    pub start: [isize; AXES],
    /// First coordinate past the end, per axis.
    pub end: [isize; AXES],
}

impl Region {
    /// The region that holds nothing.
    pub const EMPTY: Region = Region { start: [0; AXES], end: [0; AXES] };

    /// All of a tensor.
    pub fn whole(shape: Shape) -> Region {
        Region { start: [0; AXES], end: shape.0.map(|n| n as isize) }
    }
    /// `len` numbers in a row: how buffers without axes are described.
    pub fn flat(len: usize) -> Region {
        Region::whole(Shape([1, 1, 1, 1, len]))
    }
    /// The size along one axis, 0 where the end is not past the start.
    pub fn size(&self, axis: Axis) -> usize {
        (self.end[axis as usize] - self.start[axis as usize]).max(0) as usize
    }
    /// The sizes along all axes.
    pub fn shape(&self) -> Shape {
        Shape(Axis::ALL.map(|a| self.size(a)))
    }
    /// Elements inside.
    pub fn len(&self) -> usize {
        self.shape().len()
    }
    /// Whether nothing is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What both hold.
    pub fn intersect(&self, other: &Region) -> Region {
        let both = Region {
            start: std::array::from_fn(|a| self.start[a].max(other.start[a])),
            end: std::array::from_fn(|a| self.end[a].min(other.end[a])),
        };
        if both.is_empty() { Region::EMPTY } else { both }
    }
    /// The least region that holds both; an empty one adds nothing.
    pub fn hull(&self, other: &Region) -> Region {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => *other,
            (_, true) => *self,
            _ => Region {
                start: std::array::from_fn(|a| self.start[a].min(other.start[a])),
                end: std::array::from_fn(|a| self.end[a].max(other.end[a])),
            },
        }
    }
    /// Whether all of `other` is inside.
    pub fn contains(&self, other: &Region) -> bool {
        other.is_empty() || (0..AXES).all(|a| self.start[a] <= other.start[a] && other.end[a] <= self.end[a])
    }
    /// The same box moved by `by`.
    pub fn shifted(&self, by: [isize; AXES]) -> Region {
        Region {
            start: std::array::from_fn(|a| self.start[a] + by[a]),
            end: std::array::from_fn(|a| self.end[a] + by[a]),
        }
    }
    /// The same box with another range along one axis.
    pub fn with(mut self, axis: Axis, start: isize, end: isize) -> Region {
        self.start[axis as usize] = start;
        self.end[axis as usize] = end;
        self
    }
    /// The range along one axis.
    pub fn range(&self, axis: Axis) -> (isize, isize) {
        (self.start[axis as usize], self.end[axis as usize])
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for a in 0..AXES {
            write!(f, "{}{}..{}", if a == 0 { "[" } else { ", " }, self.start[a], self.end[a])?;
        }
        write!(f, "]")
    }
}
