//! Exchanges: how regions that ranks own become regions that ranks need.
//!
//! A halo, a gather, a redistribution and the wrap of a periodic edge are all one [`Exchange`]. Its adjoint carries gradients
//! back along the same paths.
//!
//! Always true
//! - Every needed element that exists arrives exactly once, also from a rank to itself.
//! - Transfers are sorted by (target, source): sums never depend on arrival.
//!
//! Knows nothing of tensors' layout, of transport, of time. Twin: `tests/walk.rs`, element by element.

use crate::Rank;
use convoy_net::{AXES, Region, Shape};

/// One box that travels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    pub source: Rank,
    pub target: Rank,
    /// What is taken, where the source has it.
    pub region: Region,
    /// It arrives at `region` moved by this: not zero where a periodic edge wraps.
    pub shift: [isize; AXES],
}

/// Transfers from owners to those who need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    pub transfers: Vec<Transfer>,
}

/// A region that may leave the tensor, as boxes inside it and by how much each is moved to get where it is needed. Along axes
/// that are not periodic, what is outside is left out (it is zero padding).
pub fn pieces(region: &Region, shape: Shape, periodic: [bool; AXES]) -> Vec<(Region, [isize; AXES])> {
    let mut boxes = vec![(*region, [0; AXES])];
    for a in 0..AXES {
        let n = shape.0[a] as isize;
        let mut next = vec![];
        for (b, shift) in boxes {
            let turns = if periodic[a] { b.start[a].div_euclid(n)..=(b.end[a] - 1).div_euclid(n) } else { 0..=0 };
            for turn in turns {
                let (mut cut, mut moved) = (b, shift);
                cut.start[a] = (b.start[a] - turn * n).max(0);
                cut.end[a] = (b.end[a] - turn * n).min(n);
                moved[a] = turn * n;
                if cut.end[a] > cut.start[a] {
                    next.push((cut, moved));
                }
            }
        }
        boxes = next;
    }
    boxes.retain(|(b, _)| !b.is_empty());
    boxes
}

impl Exchange {
    /// The transfers that bring each rank the region it needs from the ranks that own it. What a rank needs may leave the
    /// tensor, as `pieces` explains.
    pub fn between(owned: &[Region], needed: &[Region], shape: Shape, periodic: [bool; AXES]) -> Exchange {
        let mut transfers = Vec::new();
        for (target, need) in needed.iter().enumerate() {
            let wanted = pieces(need, shape, periodic);
            for (source, own) in owned.iter().enumerate() {
                for (piece, shift) in &wanted {
                    let region = own.intersect(piece);
                    if !region.is_empty() {
                        transfers.push(Transfer { source: Rank(source), target: Rank(target), region, shift: *shift });
                    }
                }
            }
        }
        Exchange { transfers }
    }

    /// What ranks need of what they have themselves.
    pub fn within(needed: &[Region], shape: Shape) -> Exchange {
        let transfer = |(q, need): (usize, &Region)| Transfer {
            source: Rank(q),
            target: Rank(q),
            region: need.intersect(&Region::whole(shape)),
            shift: [0; AXES],
        };
        let transfers = needed.iter().enumerate().map(transfer).filter(|t| !t.region.is_empty());
        Exchange { transfers: transfers.collect() }
    }

    /// The same without what a rank would send itself to where it already is.
    pub fn without_stays(mut self) -> Exchange {
        self.transfers.retain(|t| t.source != t.target || t.shift != [0; AXES]);
        self
    }

    /// The way back: sources and targets swapped. What arrives is added.
    pub fn adjoint(&self) -> Exchange {
        let back = |t: &Transfer| Transfer {
            source: t.target,
            target: t.source,
            region: t.region.shifted(t.shift),
            shift: t.shift.map(|s| -s),
        };
        let mut transfers: Vec<Transfer> = self.transfers.iter().map(back).collect();
        transfers.sort_by_key(|t| (t.target, t.source));
        Exchange { transfers }
    }

    /// Elements that leave each of `ranks` ranks for another.
    pub fn sent(&self, ranks: usize) -> Vec<usize> {
        let mut sent = vec![0; ranks];
        self.transfers.iter().filter(|t| t.source != t.target).for_each(|t| sent[t.source.0] += t.region.len());
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Grid, Placement};

    /// PAPERS.md 1.7: ten points from three blocks to four.
    #[test]
    fn golden_redistribution() {
        let shape = Shape([1, 1, 1, 10, 1]);
        let from = Placement::over(Grid::rows(3)).owned(shape, 4);
        let to = Placement::over(Grid::rows(4)).owned(shape, 4);
        let mut counts = [[0; 4]; 3];
        for t in Exchange::between(&from, &to, shape, [false; AXES]).transfers {
            counts[t.source.0][t.target.0] += t.region.len();
        }
        assert_eq!(counts, [[3, 1, 0, 0], [0, 2, 1, 0], [0, 0, 1, 2]]);
    }
}
