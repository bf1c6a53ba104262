//! The conformance suite: what every transport must do. Each rank calls [`run`]; it panics where something is not so.
//!
//! Run over threads by `tests/threads.rs`, over MPI by `examples/conformance.rs`.

use convoy_comm::{
    AllReduce, Communicator, Error, Kind, Summand, Team, Traffic, all_gather, all_reduce, barrier, broadcast, gather,
    reduce_scatter, slice,
};
use std::time::Duration;

/// Every check, on one rank. Afterwards the communicator is of no more use: one rank has ended.
pub fn run(c: &Communicator) {
    // What hangs says for whom it waits.
    c.set_deadline(Duration::from_secs(60));
    tags_and_order(c);
    lengths(c);
    lent(c);
    many_at_once(c);
    for team in teams(c) {
        collectives(c, &team);
        sums::<f32>(c, &team, f32::EPSILON as f64);
        sums::<f64>(c, &team, f64::EPSILON);
    }
    counters(c);
    wrong_length(c);
    the_first_end_is_told(c);
}

/// One message from rank 0 to rank 1, and its length back. Apart from the rest: it may be larger than a test's memory should be.
pub fn large(c: &Communicator, length: usize) {
    c.set_deadline(Duration::from_secs(300));
    // Eight bytes that say where they stand; the last few of less than eight are their own.
    let word = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut bytes = vec![0; length];
    if c.rank() == 0 {
        bytes.chunks_mut(8).enumerate().for_each(|(i, part)| part.copy_from_slice(&word(i)[..part.len()]));
        c.send(1, 6, &bytes);
        drop(bytes);
        let mut arrived = [0; 8];
        c.receive(1, 7, &mut arrived, "the length of what came").unwrap();
        return assert_eq!(u64::from_le_bytes(arrived), length as u64);
    }
    c.receive(0, 6, &mut bytes, "a large message").unwrap();
    let wrong = bytes.chunks(8).enumerate().position(|(i, part)| *part != word(i)[..part.len()]);
    assert_eq!(wrong, None, "the first eight bytes that are not what was sent, of {length} bytes");
    c.send(0, 7, &(bytes.len() as u64).to_le_bytes());
}

fn others(c: &Communicator) -> impl Iterator<Item = usize> {
    (0..c.size()).filter(|&rank| rank != c.rank())
}

/// Bytes that look random, from who sent them.
fn content(from: usize, to: usize, length: usize) -> Vec<u8> {
    let mut x = (from * 31 + to + length * 7) as u32;
    let next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn tags_and_order(c: &Communicator) {
    // Tags differ in their last and in their first bits.
    let tags = [5, 9, 5 | 1 << 62, 5 | 1 << 33];
    for to in others(c) {
        for round in 0..3u8 {
            tags.iter().for_each(|&tag| c.send(to, tag, &[round, tag as u8, c.rank() as u8]));
        }
    }
    for from in others(c) {
        for &tag in tags.iter().rev() {
            for round in 0..3 {
                let mut bytes = [0; 3];
                c.receive(from, tag, &mut bytes, "a tag").unwrap();
                assert_eq!(bytes, [round, tag as u8, from as u8], "tag {tag:#x}");
            }
            assert_eq!(c.try_receive(from, tag, &mut []), Ok(false), "nothing is left");
        }
    }
}

fn lengths(c: &Communicator) {
    // Around the limits at which transports begin to cut or to ask first.
    let lengths = [0, 1, 15, 16, 17, 983, 984, 985, 4096, 65_537, 1 << 20, 3_000_001];
    for to in others(c) {
        lengths.iter().for_each(|&length| c.send(to, 1, &content(c.rank(), to, length)));
    }
    for from in others(c) {
        for length in lengths {
            let mut bytes = vec![0; length];
            c.receive(from, 1, &mut bytes, "a length").unwrap();
            assert!(bytes == content(from, c.rank(), length), "{length} bytes from rank {from}");
        }
    }
}

/// Messages that are not copied, around the size from which on they need not be: wanted before they come and after, of one tag one after the
/// other, and received as others are.
fn lent(c: &Communicator) {
    const LENGTHS: [usize; 5] = [16, 65_535, 65_536, 65_537, 3_000_001];
    let leaves = |to: usize, tag: u64, bytes: &[u8]| {
        // SAFETY: they stay until they have left, for this is asked until then.
        unsafe { c.try_send(to, tag, bytes) }.unwrap()
    };
    for (round, &length) in LENGTHS.iter().enumerate() {
        let tag = 40 + round as u64;
        let sent: Vec<_> = (0..c.size()).map(|to| [0, 1].map(|i| content(c.rank(), to, length + i))).collect();
        let mut came = vec![[vec![0; length], vec![0; length + 1]]; c.size()];
        // How many of two messages have left to each rank, and come from each.
        let (mut left, mut here) = (vec![0; c.size()], vec![0; c.size()]);
        let is_late = (c.rank() + round) % 2 == 1;
        while others(c).any(|rank| left[rank] < 2 || here[rank] < 2) {
            c.look_around().unwrap();
            for rank in others(c) {
                if left[rank] < 2 {
                    left[rank] += usize::from(leaves(rank, tag, &sent[rank][left[rank]]));
                }
                // Who is late wants nothing before all that it sends has left: the others take it all the same.
                if here[rank] < 2 && (!is_late || others(c).all(|rank| left[rank] == 2)) {
                    let into = &mut came[rank][here[rank]];
                    let there = match here[rank] {
                        // SAFETY: it is asked for until it is there, and looked at afterwards.
                        0 => unsafe { c.try_receive_straight(rank, tag, into) },
                        _ => c.try_receive(rank, tag, into),
                    };
                    here[rank] += usize::from(there.unwrap());
                }
            }
            std::thread::yield_now();
        }
        for rank in others(c) {
            let expected = [0, 1].map(|i| content(rank, c.rank(), length + i));
            assert!(came[rank] == expected, "{length} bytes from rank {rank}");
        }
    }
    assert!(!c.borrows(), "nothing is under way any more");
}

fn many_at_once(c: &Communicator) {
    const COUNT: u64 = 200;
    for tag in 0..COUNT {
        others(c).for_each(|to| c.send(to, tag, &(tag * 1000 + c.rank() as u64).to_le_bytes()));
    }
    for tag in (0..COUNT).rev() {
        for from in others(c) {
            let mut bytes = [0; 8];
            c.receive(from, tag, &mut bytes, "one of many").unwrap();
            assert_eq!(u64::from_le_bytes(bytes), tag * 1000 + from as u64);
        }
    }
}

/// All teams that this rank is in; of many ranks only some. In the same order on every rank.
fn teams(c: &Communicator) -> Vec<Team> {
    let n = c.size();
    let sets: Vec<usize> = if n <= 4 { (1..1 << n).collect() } else { vec![(1 << n) - 1, 0b1010101, 0b0110110, 0b11] };
    let mut teams = vec![];
    for set in sets {
        let ranks: Vec<usize> = (0..n).filter(|rank| set >> rank & 1 == 1).collect();
        let turned = ranks.iter().rev().copied().collect();
        teams.extend(Team::of(c, ranks));
        teams.extend(Team::of(c, turned));
    }
    teams
}

fn collectives(c: &Communicator, team: &Team) {
    barrier(c, team).unwrap();
    for root in 0..team.size() {
        let length = root * 1000;
        let sent = content(team.ranks()[root], 0, length);
        let mut bytes = if team.own() == root { sent.clone() } else { vec![1, 2, 3] };
        broadcast(c, team, root, &mut bytes).unwrap();
        assert!(bytes == sent, "a broadcast from {root} of {team:?}");

        let own = content(c.rank(), 1, 17 * c.rank());
        let wanted: Vec<Vec<u8>> = team.ranks().iter().map(|&rank| content(rank, 1, 17 * rank)).collect();
        let all = gather(c, team, root, &own).unwrap();
        assert_eq!(all, (team.own() == root).then(|| wanted.clone()), "a gather to {root} of {team:?}");
        assert_eq!(all_gather(c, team, &own).unwrap(), wanted, "an all-gather of {team:?}");
    }
}

/// A number between -1 and 1 that looks random, with all its bits in use.
fn number(rank: usize, i: usize) -> f64 {
    let x = (rank as u64 + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 31).wrapping_mul(0x94d0_49bb_1331_11eb) as i64 as f64 / i64::MAX as f64
}

trait Real: Summand + PartialEq + std::fmt::Debug {
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
}

impl Real for f32 {
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn value(self) -> f64 {
        self as f64
    }
}

impl Real for f64 {
    fn of(value: f64) -> f64 {
        value
    }
    fn value(self) -> f64 {
        self
    }
}

/// The sum in tree order, one number at a time.
fn tree<T: Real>(values: &[T]) -> T {
    match values {
        [one] => *one,
        _ => {
            let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
            let mut sum = tree(left);
            sum += tree(right);
            sum
        }
    }
}

fn sums<T: Real>(c: &Communicator, team: &Team, epsilon: f64) {
    for count in [0, 1, 3, 1000] {
        let of = |rank: usize| -> Vec<T> { (0..count).map(|i| T::of(number(rank, i))).collect() };
        let parts: Vec<Vec<T>> = team.ranks().iter().map(|&rank| of(rank)).collect();
        let column = |i: usize| -> Vec<T> { parts.iter().map(|part| part[i]).collect() };
        let wanted: Vec<T> = (0..count).map(|i| tree(&column(i))).collect();

        let own = reduce_scatter(c, team, &of(c.rank())).unwrap();
        assert_eq!(own, wanted[slice(count, team.size(), team.own())], "{count} numbers of {team:?}");
        for how in [AllReduce::Tree, AllReduce::Ring, AllReduce::Library] {
            let mut numbers = of(c.rank());
            all_reduce(c, team, &mut numbers, how).unwrap();
            if how == AllReduce::Tree {
                assert_eq!(numbers, wanted, "{count} numbers of {team:?}");
            }
            for (i, number) in numbers.iter().enumerate() {
                // Each of n - 1 additions rounds by half an epsilon of a sum of at most n ones.
                let tolerance = epsilon * (team.size() * team.size()) as f64;
                let error = (number.value() - wanted[i].value()).abs();
                assert!(error <= tolerance, "{how:?}, number {i} of {count}: {number:?}, not {:?}", wanted[i]);
            }
            // Small whole numbers are exact in any order.
            let mut numbers: Vec<T> = (0..count).map(|i| T::of((i * 3 + c.rank()) as f64)).collect();
            all_reduce(c, team, &mut numbers, how).unwrap();
            let ranks: usize = team.ranks().iter().sum();
            let exact = |i: usize| T::of((i * 3 * team.size() + ranks) as f64);
            assert!(numbers.iter().enumerate().all(|(i, n)| *n == exact(i)), "{how:?}, {count} numbers of {team:?}");
        }
    }
}

fn counters(c: &Communicator) {
    let before: Vec<Traffic> = Kind::ALL.iter().map(|kind| c.sent(*kind)).collect();
    let total = (c.sent_bytes(), c.sent_messages());
    for (k, kind) in Kind::ALL.iter().enumerate() {
        others(c).for_each(|to| c.send(to, kind.tag() | 77, &vec![0; k + 1]));
    }
    let n = c.size() as u64 - 1;
    for (k, kind) in Kind::ALL.iter().enumerate() {
        let (sent, k) = (c.sent(*kind), k as u64);
        assert_eq!(sent.bytes - before[k as usize].bytes, (k + 1) * n, "{kind:?}");
        assert_eq!(sent.messages - before[k as usize].messages, n, "{kind:?}");
        for from in others(c) {
            c.receive(from, kind.tag() | 77, &mut vec![0; k as usize + 1], "a kind").unwrap();
        }
    }
    assert_eq!((c.sent_bytes() - total.0, c.sent_messages() - total.1), (10 * n, 4 * n));
}

fn wrong_length(c: &Communicator) {
    others(c).for_each(|to| c.send(to, 3, &[1, 2, 3]));
    for from in others(c) {
        let error = c.receive(from, 3, &mut [0; 4], "a wrong length").unwrap_err();
        assert_eq!(error, Error::Length { source_rank: from, tag: 3, sent: 3, wanted: 4 });
    }
}

fn the_first_end_is_told(c: &Communicator) {
    let last = c.size() - 1;
    // An end cuts short whatever others wait for: all must be done with the rest.
    gather(c, &Team::all(c), last, &[]).unwrap();
    if c.rank() == last {
        // What was sent before an end arrives.
        others(c).for_each(|to| c.send(to, 4, &[9]));
        return c.end("out of memory");
    }
    let mut bytes = [0];
    c.receive(last, 4, &mut bytes, "a last word").unwrap();
    assert_eq!(bytes, [9]);
    let error = c.receive(last, 4, &mut bytes, "a word too many").unwrap_err();
    let host = c.host(last).to_string();
    assert_eq!(error, Error::Ended { rank: last, host, cause: "out of memory".into() });
}
