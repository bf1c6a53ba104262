//! Traffic: what a rank sent, by kind.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What messages are for. A tag's first four bits say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Sums over ranks.
    Reduction,
    /// Neighbours' elements around a rank's own.
    Halo,
    /// Elements that another rank will own or use.
    Redistribution,
    /// Agreements between ranks, and anything else.
    Other,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Reduction, Kind::Halo, Kind::Redistribution, Kind::Other];

    /// The kind that a tag says.
    pub const fn of(tag: u64) -> Kind {
        match tag >> 60 {
            1 => Kind::Reduction,
            2 => Kind::Halo,
            4 => Kind::Redistribution,
            _ => Kind::Other,
        }
    }

    /// What a tag of this kind starts with.
    pub const fn tag(self) -> u64 {
        match self {
            Kind::Reduction => 1 << 60,
            Kind::Halo => 2 << 60,
            Kind::Redistribution => 4 << 60,
            Kind::Other => 3 << 60,
        }
    }
}

/// An amount of traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    pub messages: u64,
}

/// By kind: bytes, messages.
#[derive(Debug, Default)]
pub(crate) struct Counters([(AtomicU64, AtomicU64); 4]);

impl Counters {
    pub fn add(&self, kind: Kind, bytes: usize) {
        let (all, messages) = &self.0[kind as usize];
        all.fetch_add(bytes as u64, Relaxed);
        messages.fetch_add(1, Relaxed);
    }

    pub fn get(&self, kind: Kind) -> Traffic {
        let (bytes, messages) = &self.0[kind as usize];
        Traffic { bytes: bytes.load(Relaxed), messages: messages.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_say_their_kind() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind.tag() | 12345), kind);
        }
        assert_eq!(Kind::of(7), Kind::Other);
    }
}
