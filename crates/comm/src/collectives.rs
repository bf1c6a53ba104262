//! Collectives: what the ranks of a team do together, over `send` and `receive`.
//!
//! Every member of a [`Team`] calls the same function with the same team; the call returns when this member's part is done.
//! Positions (such as a root) count members, not ranks.
//!
//! Always true
//! - Sums of [`AllReduce::Tree`] and [`reduce_scatter`] are added in the tree's order of members, never in order of arrival:
//!   the same bits on every member, in every run, over every transport.
//! - Ranks that are not in the team need not know.

use crate::{Communicator, Error, Kind};
use std::ops::{AddAssign, Range};

const AGREE: u64 = Kind::Other.tag() | 1 << 59;
const SUM: u64 = Kind::Reduction.tag() | 1 << 59;

/// Ranks that do something together, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Team {
    ranks: Vec<usize>,
    /// This rank's position.
    own: usize,
}

impl Team {
    /// All ranks.
    pub fn all(communicator: &Communicator) -> Team {
        Team { ranks: (0..communicator.size()).collect(), own: communicator.rank() }
    }

    /// These ranks, in this order; nothing where this rank is not one of them.
    pub fn of(communicator: &Communicator, ranks: Vec<usize>) -> Option<Team> {
        let own = ranks.iter().position(|&rank| rank == communicator.rank())?;
        Some(Team { ranks, own })
    }

    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// This rank's position.
    pub fn own(&self) -> usize {
        self.own
    }

    /// The rank so many positions further, around the end.
    fn after(&self, steps: usize) -> usize {
        self.ranks[(self.own + steps) % self.size()]
    }

    fn before(&self, steps: usize) -> usize {
        self.ranks[(self.own + self.size() - steps) % self.size()]
    }

    fn others(&self) -> impl Iterator<Item = (usize, usize)> {
        self.ranks.iter().copied().enumerate().filter(|(position, _)| *position != self.own)
    }
}

/// Returns when every member has called it.
pub fn barrier(communicator: &Communicator, team: &Team) -> Result<(), Error> {
    // In round r everybody hears from the member 2^r before: after the last round, indirectly, from all.
    let mut distance = 1;
    while distance < team.size() {
        communicator.send(team.after(distance), AGREE, &[]);
        communicator.receive(team.before(distance), AGREE, &mut [], "a barrier")?;
        distance *= 2;
    }
    Ok(())
}

/// Every member's bytes become the root's.
pub fn broadcast(communicator: &Communicator, team: &Team, root: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
    // A binomial tree over positions counted from the root: a member hears from the one without its lowest bit, and tells
    // those that have one lower bit more.
    let own = (team.own + team.size() - root) % team.size();
    let rank = |position: usize| team.ranks[(position + root) % team.size()];
    let lowest = if own == 0 { team.size().next_power_of_two() } else { own & own.wrapping_neg() };
    if own != 0 {
        *bytes = receive_any(communicator, rank(own - lowest), "a broadcast")?;
    }
    let mut bit = lowest / 2;
    while bit > 0 {
        if own + bit < team.size() {
            send_any(communicator, rank(own + bit), bytes);
        }
        bit /= 2;
    }
    Ok(())
}

/// Every member's bytes, of any length, by position: at the root. Nothing at the others.
pub fn gather(
    communicator: &Communicator,
    team: &Team,
    root: usize,
    own: &[u8],
) -> Result<Option<Vec<Vec<u8>>>, Error> {
    if team.own != root {
        send_any(communicator, team.ranks[root], own);
        return Ok(None);
    }
    collect(communicator, team, own).map(Some)
}

/// Every member's bytes, of any length, by position: at every member.
pub fn all_gather(communicator: &Communicator, team: &Team, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    team.others().for_each(|(_, rank)| send_any(communicator, rank, own));
    collect(communicator, team, own)
}

fn collect(communicator: &Communicator, team: &Team, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let mut all = vec![vec![]; team.size()];
    all[team.own] = own.to_vec();
    for (position, rank) in team.others() {
        all[position] = receive_any(communicator, rank, "a gather")?;
    }
    Ok(all)
}

fn send_any(communicator: &Communicator, to: usize, bytes: &[u8]) {
    communicator.send(to, AGREE, &(bytes.len() as u64).to_le_bytes());
    communicator.send(to, AGREE, bytes);
}

fn receive_any(communicator: &Communicator, from: usize, what: &str) -> Result<Vec<u8>, Error> {
    let mut length = [0; 8];
    communicator.receive(from, AGREE, &mut length, what)?;
    let mut bytes = vec![0; u64::from_le_bytes(length) as usize];
    communicator.receive(from, AGREE, &mut bytes, what)?;
    Ok(bytes)
}

/// What can be summed over ranks.
pub trait Summand: Copy + Default + AddAssign + Send + Sync + 'static {
    const BYTES: usize;
    fn to_bytes(self, bytes: &mut [u8]);
    fn of_bytes(bytes: &[u8]) -> Self;
}

macro_rules! summand {
    ($number:ty) => {
        impl Summand for $number {
            const BYTES: usize = size_of::<$number>();
            fn to_bytes(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            fn of_bytes(bytes: &[u8]) -> $number {
                <$number>::from_le_bytes(bytes.try_into().expect("bug: a number of another size"))
            }
        }
    };
}
summand!(f32);
summand!(f64);

fn send_numbers<T: Summand>(communicator: &Communicator, to: usize, numbers: &[T]) {
    let mut bytes = vec![0; numbers.len() * T::BYTES];
    bytes.chunks_exact_mut(T::BYTES).zip(numbers).for_each(|(bytes, number)| number.to_bytes(bytes));
    communicator.send(to, SUM, &bytes);
}

fn receive_numbers<T: Summand>(communicator: &Communicator, from: usize, count: usize) -> Result<Vec<T>, Error> {
    let mut bytes = vec![0; count * T::BYTES];
    communicator.receive(from, SUM, &mut bytes, "a part of a sum")?;
    Ok(bytes.chunks_exact(T::BYTES).map(T::of_bytes).collect())
}

/// How a sum over ranks is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllReduce {
    /// Slices are sent to their reducer, added in tree order, and gathered: the bytes of a ring, the same bits always.
    #[default]
    Tree,
    /// Slices go around, each member adds its own: the order differs from slice to slice.
    Ring,
    /// As the transport's library does it; a ring where it has no word for it.
    Library,
}

/// Of `count` numbers, those that a position reduces.
pub fn slice(count: usize, members: usize, position: usize) -> Range<usize> {
    count * position / members..count * (position + 1) / members
}

/// The sum over members of this member's slice of the numbers, in tree order. All must have equally many.
pub fn reduce_scatter<T: Summand>(communicator: &Communicator, team: &Team, numbers: &[T]) -> Result<Vec<T>, Error> {
    let part = |position| slice(numbers.len(), team.size(), position);
    team.others().for_each(|(position, rank)| send_numbers(communicator, rank, &numbers[part(position)]));
    let mut parts = vec![vec![]; team.size()];
    parts[team.own] = numbers[part(team.own)].to_vec();
    for (position, rank) in team.others() {
        parts[position] = receive_numbers(communicator, rank, part(team.own).len())?;
    }
    Ok(tree(&mut parts))
}

/// Parts added by the fixed tree: the left half takes the largest power of two below the count.
fn tree<T: Summand>(parts: &mut [Vec<T>]) -> Vec<T> {
    if let [one] = parts {
        return std::mem::take(one);
    }
    let (left, right) = parts.split_at_mut(parts.len().next_power_of_two() / 2);
    let (mut sum, right) = (tree(left), tree(right));
    sum.iter_mut().zip(right).for_each(|(a, b)| *a += b);
    sum
}

/// Every member's numbers become the sums over all members. All must have equally many.
pub fn all_reduce<T: Summand>(
    communicator: &Communicator,
    team: &Team,
    numbers: &mut [T],
    how: AllReduce,
) -> Result<(), Error> {
    #[cfg(feature = "mpi")]
    if let (AllReduce::Library, Some(world)) = (how, communicator.mpi()) {
        return world.all_reduce(communicator, team, numbers);
    }
    match how {
        _ if team.size() == 1 => Ok(()),
        AllReduce::Tree => {
            let own = reduce_scatter(communicator, team, numbers)?;
            team.others().for_each(|(_, rank)| send_numbers(communicator, rank, &own));
            let part = |position| slice(numbers.len(), team.size(), position);
            let (size, at) = (team.size(), part(team.own));
            numbers[at].copy_from_slice(&own);
            for (position, rank) in team.others() {
                let at = slice(numbers.len(), size, position);
                let sums = receive_numbers(communicator, rank, at.len())?;
                numbers[at].copy_from_slice(&sums);
            }
            Ok(())
        }
        AllReduce::Ring | AllReduce::Library => ring(communicator, team, numbers),
    }
}

fn ring<T: Summand>(communicator: &Communicator, team: &Team, numbers: &mut [T]) -> Result<(), Error> {
    let size = team.size();
    // Twice around: once adding, once replacing. In turn t a member passes on the slice that it completed in turn t - 1.
    for turn in 0..2 * (size - 1) {
        let part = |back: usize| slice(numbers.len(), size, (team.own + size - back) % size);
        let (out, at) = (part(turn % size), part((turn + 1) % size));
        send_numbers(communicator, team.after(1), &numbers[out]);
        let came: Vec<T> = receive_numbers(communicator, team.before(1), at.len())?;
        if turn < size - 1 {
            numbers[at].iter_mut().zip(came).for_each(|(a, b)| *a += b);
        } else {
            numbers[at].copy_from_slice(&came);
        }
    }
    Ok(())
}
