//! Machines: computers and clusters, described or measured.
//!
//! A [`Machine`] is groups of equal nodes and the levels of network between their ranks, innermost first. It is read from TOML
//! (docs/machines.md); every number is checked, and an error names place, value and what is possible.
//!
//! Always true of a machine that was read
//! - Numbers are finite and within what any computer could have.
//! - The last level spans all nodes.
//!
//! Knows nothing of networks, strategies or programs.

use crate::collective::Link;
use crate::cost::{Entry, Ratios, Table};
use crate::error::{Error, Place};
use std::fmt::Write;
use toml::Value;

/// A computer or cluster.
///
/// ```
/// let machine = convoy_predict::Machine::shipped("v100-cluster").unwrap();
/// assert_eq!((machine.nodes(), machine.groups[0].cores), (1024, 4));
/// assert_eq!(machine.seats(8, None)[4].node, 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub name: String,
    pub about: String,
    /// Nodes in order.
    pub groups: Vec<Nodes>,
    /// From the inside of a node outwards.
    pub levels: Vec<Level>,
    /// How much longer than by roofline ops take, where that was measured.
    pub table: Table,
    /// The kernels that it was measured with; none where it was not.
    pub kernels: Option<String>,
    /// What its levels were measured with: threads or mpi; none where they were not.
    pub transport: Option<String>,
    /// Seconds of a fixed step on one core, and on all at the same time, when it was measured.
    pub yardstick_seconds: Vec<f64>,
}

/// Equal nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Nodes {
    pub count: usize,
    /// What a worker runs on, be it a core or a whole accelerator.
    pub cores: usize,
    /// Ranks that each node takes, unless there are more than that makes room for.
    pub ranks: usize,
    /// Of one node.
    pub memory_bytes: f64,
    /// Single-precision operations a second that one core reaches in convolutions and matrix products.
    pub core_flops: f64,
    /// Bytes a second that one core alone reads and writes.
    pub core_bandwidth: f64,
    /// Bytes a second that all cores of a node read and write together.
    pub node_bandwidth: f64,
    /// Bytes a second that one core reads and writes while it adds up what other ranks sent.
    pub add_bandwidth: f64,
    /// Seconds to begin a piece of work.
    pub tile_seconds: f64,
}

/// One level of the network: what ranks talk through that are so near and no nearer.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    pub name: String,
    /// Neighbouring nodes that it spans; 1 is the inside of a node.
    pub nodes: usize,
    pub latency_seconds: f64,
    /// Bytes a second of one link in each direction.
    pub bandwidth: f64,
    /// Seconds that a rank spends on each message.
    pub message_seconds: f64,
    /// Links of a node that all its ranks share; none: every rank has its own.
    pub links: Option<usize>,
    /// Whether cores move the bytes: then a message keeps one busy at both ends.
    pub by_cores: bool,
}

/// Where a rank sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    pub node: usize,
    /// The node's group.
    pub group: usize,
    /// Ranks on the same node.
    pub neighbours: usize,
    /// Ranks that the node has cores and memory for: a rank has its share, also where it is alone.
    pub room: usize,
}

impl Level {
    /// One message over it, alone.
    pub fn link(&self, add_seconds: f64) -> Link {
        Link {
            latency_seconds: self.latency_seconds + self.message_seconds,
            byte_seconds: 1.0 / self.bandwidth,
            add_seconds,
        }
    }

    /// By how much `flows` from one node at once slow each other down.
    pub fn contention(&self, flows: usize) -> f64 {
        self.links.map_or(1.0, |links| (flows as f64 / links as f64).max(1.0))
    }
}

/// Machines that come with Convoy: name and text.
const SHIPPED: [(&str, &str); 3] = [
    ("v100-cluster", include_str!("../../../machines/v100-cluster.toml")),
    ("abci", include_str!("../../../machines/abci.toml")),
    ("cpu-10g", include_str!("../../../machines/cpu-10g.toml")),
];

impl Machine {
    /// Names of the machines that come with Convoy.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// A machine that comes with Convoy.
    pub fn shipped(name: &str) -> Option<Machine> {
        let (_, text) = SHIPPED.iter().find(|(known, _)| *known == name)?;
        Some(Machine::from_toml(text).expect("bug: a machine of ours is wrong"))
    }

    /// One computer.
    pub fn single(name: &str, nodes: Nodes, level: Level) -> Machine {
        let (about, table) = (String::new(), Table::default());
        let (groups, levels, yardstick_seconds) = (vec![nodes], vec![level], vec![]);
        Machine { name: name.into(), about, groups, levels, table, kernels: None, transport: None, yardstick_seconds }
    }

    /// Nodes in all.
    pub fn nodes(&self) -> usize {
        self.groups.iter().map(|g| g.count).sum()
    }

    /// Where each rank sits: nodes are filled in order, with as many ranks as a node takes, or as many as are asked for, or
    /// more where there would not be room for all.
    pub fn seats(&self, ranks: usize, per_node: Option<usize>) -> Vec<Seat> {
        let least = ranks.div_ceil(self.nodes());
        // Where some nodes take more than the least and others less, the least is raised until all have room.
        let takes = |group: &Nodes, least: usize| per_node.unwrap_or(group.ranks).max(least);
        let room = |least: usize| self.groups.iter().map(|g| g.count * takes(g, least)).sum::<usize>();
        let least = if room(0) >= ranks { 0 } else { least };
        let mut seats = Vec::with_capacity(ranks);
        let mut node = 0;
        for (group, nodes) in self.groups.iter().enumerate() {
            for _ in 0..nodes.count {
                let room = takes(nodes, least);
                let neighbours = room.min(ranks - seats.len());
                seats.extend((0..neighbours).map(|_| Seat { node, group, neighbours, room }));
                node += 1;
            }
        }
        seats
    }

    /// Workers of a rank that sits there, if nobody says otherwise: its share of the node's cores.
    pub fn threads(&self, seat: &Seat) -> usize {
        (self.groups[seat.group].cores / seat.room).max(1)
    }

    /// Bytes of memory that a rank which sits there may use.
    pub fn memory_bytes(&self, seat: &Seat) -> f64 {
        self.groups[seat.group].memory_bytes / seat.room as f64
    }

    /// The level through which two nodes talk.
    pub fn level(&self, a: usize, b: usize) -> usize {
        let together = |level: &Level| a / level.nodes == b / level.nodes;
        self.levels.iter().position(together).unwrap_or(self.levels.len() - 1)
    }

    /// A machine from its file.
    pub fn from_toml(text: &str) -> Result<Machine, Error> {
        let table: toml::Table =
            text.parse().map_err(|e: toml::de::Error| Error::Toml { message: e.to_string().trim_end().into() })?;
        let top = Reader { place: Place::Top, table: &table };
        top.only(&["name", "about", "kernels", "transport", "yardstick_seconds", "nodes", "levels", "tiles"])?;
        let groups = top.entries("nodes")?.iter().map(nodes).collect::<Result<Vec<Nodes>, Error>>()?;
        let all = groups.iter().map(|g| g.count).sum();
        let entries = top.entries("levels")?;
        let mut levels: Vec<Level> = vec![];
        for (i, entry) in entries.iter().enumerate() {
            let level = level(entry, if i + 1 == entries.len() { Some(all) } else { None })?;
            let before = levels.last().map_or(0, |l| l.nodes);
            if level.nodes <= before {
                return Err(Error::Order { number: i + 1, nodes: level.nodes, before });
            }
            levels.push(level);
        }
        let spanned = levels.last().map_or(0, |l| l.nodes);
        if spanned < all {
            return Err(Error::Span { spanned, nodes: all });
        }
        let tiles = if table.contains_key("tiles") { top.entries("tiles")? } else { vec![] };
        let entries = tiles.iter().map(tile).collect::<Result<Vec<Entry>, Error>>()?;
        let optional = |name: &'static str| table.contains_key(name).then(|| top.text(name)).transpose();
        let (kernels, transport) = (optional("kernels")?, optional("transport")?);
        let yardstick_seconds = top.seconds("yardstick_seconds")?;
        let (name, about) = (top.text("name")?, top.text_or("about", "")?);
        Ok(Machine { name, about, groups, levels, table: Table { entries }, kernels, transport, yardstick_seconds })
    }

    /// The same as a file.
    pub fn to_toml(&self) -> String {
        let mut text = format!("name = {:?}\n", self.name);
        if !self.about.is_empty() {
            let _ = writeln!(text, "about = {:?}", self.about);
        }
        if let Some(kernels) = &self.kernels {
            let _ = writeln!(text, "kernels = {kernels:?}");
        }
        if let Some(transport) = &self.transport {
            let _ = writeln!(text, "transport = {transport:?}");
        }
        if !self.yardstick_seconds.is_empty() {
            let _ = writeln!(text, "yardstick_seconds = {:?}", self.yardstick_seconds);
        }
        for g in &self.groups {
            let _ = write!(
                text,
                "\n[[nodes]]\ncount = {}\ncores = {}\nranks = {}\nmemory_bytes = {:e}\ncore_flops = {:e}\n\
                 core_bandwidth = {:e}\nnode_bandwidth = {:e}\nadd_bandwidth = {:e}\ntile_seconds = {:e}\n",
                g.count,
                g.cores,
                g.ranks,
                g.memory_bytes,
                g.core_flops,
                g.core_bandwidth,
                g.node_bandwidth,
                g.add_bandwidth,
                g.tile_seconds
            );
        }
        for l in &self.levels {
            let _ = write!(
                text,
                "\n[[levels]]\nname = {:?}\nnodes = {}\nlatency_seconds = {:e}\nbandwidth = {:e}\nmessage_seconds = {:e}\n\
                 by_cores = {}\n",
                l.name, l.nodes, l.latency_seconds, l.bandwidth, l.message_seconds, l.by_cores
            );
            if let Some(links) = l.links {
                let _ = writeln!(text, "links = {links}");
            }
        }
        for e in &self.table.entries {
            let Ratios { alone, together } = e.ratios;
            let (family, size) = (&e.family, &e.size);
            let _ = write!(
                text,
                "\n[[tiles]]\nfamily = {family:?}\nsize = {size:?}\nalone = {alone:?}\ntogether = {together:?}\n"
            );
        }
        text
    }
}

fn nodes(reader: &Reader) -> Result<Nodes, Error> {
    reader.only(&[
        "count",
        "cores",
        "ranks",
        "memory_bytes",
        "core_flops",
        "core_bandwidth",
        "node_bandwidth",
        "add_bandwidth",
        "tile_seconds",
    ])?;
    let core_bandwidth = reader.number("core_bandwidth", None, 1e6, 1e16)?;
    Ok(Nodes {
        count: reader.whole("count", Some(1), 10_000_000)?,
        cores: reader.whole("cores", None, 65536)?,
        ranks: reader.whole("ranks", Some(1), 65536)?,
        memory_bytes: reader.number("memory_bytes", None, 1e6, 1e18)?,
        core_flops: reader.number("core_flops", None, 1e6, 1e18)?,
        core_bandwidth,
        node_bandwidth: reader.number("node_bandwidth", None, 1e6, 1e18)?,
        add_bandwidth: reader.number("add_bandwidth", Some(core_bandwidth), 1e6, 1e16)?,
        tile_seconds: reader.number("tile_seconds", Some(0.0), 0.0, 1.0)?,
    })
}

fn level(reader: &Reader, nodes: Option<usize>) -> Result<Level, Error> {
    reader.only(&["name", "nodes", "latency_seconds", "bandwidth", "message_seconds", "links", "by_cores"])?;
    let links = reader.table.contains_key("links").then(|| reader.whole("links", None, 65536)).transpose()?;
    Ok(Level {
        name: reader.text("name")?,
        nodes: reader.whole("nodes", nodes, 10_000_000)?,
        latency_seconds: reader.number("latency_seconds", None, 0.0, 10.0)?,
        bandwidth: reader.number("bandwidth", None, 1.0, 1e16)?,
        message_seconds: reader.number("message_seconds", Some(0.0), 0.0, 10.0)?,
        links,
        by_cores: reader.truth("by_cores")?,
    })
}

fn tile(reader: &Reader) -> Result<Entry, Error> {
    reader.only(&["family", "size", "alone", "together"])?;
    let ratio = |name| reader.number(name, None, 1e-3, 1e6);
    let size = reader.table.get("size").and_then(Value::as_array);
    let numbers = size.and_then(|list| list.iter().map(Value::as_float).collect::<Option<Vec<f64>>>());
    let size =
        numbers.and_then(|numbers| <[f64; 4]>::try_from(numbers).ok()).filter(|s| s.iter().all(|n| n.is_finite()));
    Ok(Entry {
        family: reader.text("family")?,
        size: size.ok_or_else(|| reader.wrong("size", "four numbers".into()))?,
        ratios: Ratios { alone: ratio("alone")?, together: ratio("together")? },
    })
}

/// A table of a file, and where it stands.
pub(crate) struct Reader<'a> {
    pub place: Place,
    pub table: &'a toml::Table,
}

impl<'a> Reader<'a> {
    pub fn only(&self, known: &[&'static str]) -> Result<(), Error> {
        match self.table.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(()),
            Some(name) => Err(Error::UnknownField {
                place: self.place.clone(),
                name: name.clone(),
                suggestion: convoy_net::suggestion(name, known.iter().copied()).map(String::from),
                known: known.to_vec(),
            }),
        }
    }

    fn wrong(&self, name: &'static str, possible: String) -> Error {
        let place = self.place.clone();
        match self.table.get(name) {
            None => Error::Missing { place, name, possible },
            Some(found) => {
                // A number as a person would have written it, not with forty zeros.
                let found = found.as_float().map_or(found.to_string(), |number| format!("{number:e}"));
                Error::Value { place, name, found, possible }
            }
        }
    }

    /// Tables of a list, at least one.
    pub fn entries(&self, name: &'static str) -> Result<Vec<Reader<'a>>, Error> {
        let list = self.table.get(name).and_then(Value::as_array);
        let tables: Option<Vec<&toml::Table>> = list.and_then(|list| list.iter().map(Value::as_table).collect());
        let tables = tables.filter(|t| !t.is_empty());
        let tables = tables.ok_or_else(|| self.wrong(name, format!("one [[{name}]] or more")))?;
        let reader = |(i, table)| Reader { place: Place::Entry(name, i + 1), table };
        Ok(tables.into_iter().enumerate().map(reader).collect())
    }

    pub fn text(&self, name: &'static str) -> Result<String, Error> {
        let text = self.table.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        text.map(String::from).ok_or_else(|| self.wrong(name, "text".into()))
    }

    fn text_or(&self, name: &'static str, otherwise: &str) -> Result<String, Error> {
        if self.table.contains_key(name) { self.text(name) } else { Ok(otherwise.into()) }
    }

    /// Times of something that takes a while; none where there is no such field.
    fn seconds(&self, name: &'static str) -> Result<Vec<f64>, Error> {
        let Some(value) = self.table.get(name) else { return Ok(vec![]) };
        let all: Option<Vec<f64>> = value.as_array().and_then(|list| list.iter().map(Value::as_float).collect());
        let all = all.filter(|all| all.iter().all(|s| (1e-9..=1e6).contains(s)));
        all.ok_or_else(|| self.wrong(name, "a list of seconds".into()))
    }

    fn truth(&self, name: &'static str) -> Result<bool, Error> {
        match self.table.get(name) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(name, "true or false".into())),
        }
    }

    pub fn whole(&self, name: &'static str, default: Option<usize>, most: usize) -> Result<usize, Error> {
        if let (None, Some(default)) = (self.table.get(name), default) {
            return Ok(default);
        }
        let found = self.table.get(name).and_then(Value::as_integer).and_then(|n| usize::try_from(n).ok());
        let found = found.filter(|n| (1..=most).contains(n));
        found.ok_or_else(|| self.wrong(name, format!("a whole number from 1 to {most}")))
    }

    pub fn number(&self, name: &'static str, default: Option<f64>, least: f64, most: f64) -> Result<f64, Error> {
        if let (None, Some(default)) = (self.table.get(name), default) {
            return Ok(default);
        }
        let value = self.table.get(name);
        let found = value.and_then(|v| v.as_float().or(v.as_integer().map(|n| n as f64)));
        let found = found.filter(|n| (least..=most).contains(n));
        found.ok_or_else(|| self.wrong(name, format!("a number from {least:e} to {most:e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_come_with_convoy_go_round() {
        for name in Machine::names() {
            let machine = Machine::shipped(name).unwrap();
            assert_eq!(machine.name, name);
            assert_eq!(Machine::from_toml(&machine.to_toml()).as_ref(), Ok(&machine));
        }
        // A measured one, too.
        let mut machine = Machine::shipped("cpu-10g").unwrap();
        machine.kernels = Some("k 1".into());
        machine.transport = Some("mpi".into());
        machine.groups[0].add_bandwidth = 3e9;
        machine.yardstick_seconds = vec![0.05, 0.06];
        let ratios = Ratios { alone: 1.75, together: 2.25 };
        machine.table.entries = vec![Entry { family: "f".into(), size: [1.0, 2.5, 0.0, 4.0], ratios }];
        assert_eq!(Machine::from_toml(&machine.to_toml()).as_ref(), Ok(&machine));
    }

    const GOOD: &str = "name = 'm'\n[[nodes]]\ncount = 6\ncores = 4\nranks = 2\nmemory_bytes = 1e9\ncore_flops = 1e10\n\
                        core_bandwidth = 1e10\nnode_bandwidth = 2e10\n[[levels]]\nname = 'in'\nnodes = 1\n\
                        latency_seconds = 1e-6\nbandwidth = 1e10\n[[levels]]\nname = 'rack'\nnodes = 3\n\
                        latency_seconds = 2e-6\nbandwidth = 1e9\nlinks = 1\n[[levels]]\nname = 'all'\n\
                        latency_seconds = 3e-6\nbandwidth = 1e9\n";

    #[test]
    fn ranks_sit_node_by_node_and_levels_grow() {
        let machine = Machine::from_toml(GOOD).unwrap();
        let nodes = |ranks, per| machine.seats(ranks, per).iter().map(|s| s.node).collect::<Vec<_>>();
        assert_eq!(nodes(5, None), [0, 0, 1, 1, 2]);
        assert_eq!(nodes(5, Some(1)), [0, 1, 2, 3, 4]);
        assert_eq!(nodes(5, Some(3)), [0, 0, 0, 1, 1]);
        // Thirteen do not fit in twos: three a node.
        assert_eq!(machine.seats(13, None).iter().filter(|s| s.node == 0).count(), 3);
        assert_eq!([(0, 0), (0, 2), (2, 3), (3, 5)].map(|(a, b)| machine.level(a, b)), [0, 1, 2, 1]);
        assert_eq!((machine.levels[2].nodes, machine.levels[1].contention(2)), (6, 2.0));
    }

    #[test]
    fn wrong_numbers_are_told_with_place_value_and_what_is_possible() {
        for (from, to, wanted) in [
            (
                "core_flops = 1e10",
                "core_flops = -3",
                "[[nodes]] number 1, core_flops = -3 is not possible\n  help: a number from 1e6 to 1e18",
            ),
            (
                "core_flops = 1e10",
                "core_flops = 1e40",
                "[[nodes]] number 1, core_flops = 1e40 is not possible\n  help: a number from 1e6 to 1e18",
            ),
            (
                "core_flops = 1e10",
                "core_flops = nan",
                "[[nodes]] number 1, core_flops = NaN is not possible\n  help: a number from 1e6 to 1e18",
            ),
            ("cores = 4\n", "", "[[nodes]] number 1, `cores` is missing\n  help: a whole number from 1 to 65536"),
            (
                "cores = 4",
                "cores = 'four'",
                "[[nodes]] number 1, cores = \"four\" is not possible\n  help: a whole number from 1 to 65536",
            ),
            (
                "nodes = 3",
                "nodes = 1",
                "[[levels]] number 2, nodes = 1: must span more nodes than the level before, which spans 1",
            ),
            (
                "name = 'all'",
                "name = 'all'\nnodes = 5",
                "the levels span 5 nodes, the machine has 6\n  help: leave `nodes` of the last level out: it then spans all",
            ),
            (
                "links = 1",
                "link = 1",
                "[[levels]] number 2, unknown field `link`\n  help: did you mean `links`? Else one of name, nodes, \
                 latency_seconds, bandwidth, message_seconds, links, by_cores",
            ),
            ("name = 'm'", "", "`name` is missing\n  help: text"),
        ] {
            let error = Machine::from_toml(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert_eq!(error.to_string(), wanted);
        }
        let error = Machine::from_toml("name = 'm'\nnodes = 3\n").unwrap_err();
        assert_eq!(error.to_string(), "nodes = 3 is not possible\n  help: one [[nodes]] or more");
        assert!(Machine::from_toml("name = ").unwrap_err().to_string().contains("line 1"));
    }
}
