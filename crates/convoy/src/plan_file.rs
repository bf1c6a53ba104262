//! Plan files: the grid of every layer, to be kept, read by people and changed by hand.
//!
//! [`write`] and [`read`] are each other's inverse. A line for each layer, with its six numbers of parts; what is left out of a
//! line is 1. A layer whose line names `ranks` is on those, else on the first ones, as many as its grid has parts. What is predicted
//! and by which algorithms layers are computed follows from the job, and stands there as [`Remarks`].
//!
//! Always true of a strategy that was read
//! - It has every layer of its network, each cut in a way that the layer allows.
//!
//! docs/formats.md describes the file for people.

use crate::part::Part;
use convoy_net::{LayerId, Network, Shape, suggestion};
use convoy_plan::mixed;
use convoy_predict::Estimate;
use convoy_split::{Grid, Placement, Rank, Strategy, check};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

const FORMAT: &str = "convoy-plan-1";

/// Why a file is no plan for a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("cannot read {}\n  cause: {cause}", path.display())]
    Read { path: PathBuf, cause: String },
    #[error("{} is not a plan: {cause}\n  help: `convoy plan NET --ranks N --out FILE` writes one", path.display())]
    Form { path: PathBuf, cause: String },
    #[error(
        "{} is a plan of `{planned}`, the network is `{network}`, {difference}\n  \
         help: convoy plan {network} --ranks {ranks} --out {}", path.display(), path.display()
    )]
    Network { path: PathBuf, planned: String, network: String, difference: String, ranks: usize },
    #[error("{} is a plan for {planned} ranks, the job has {ranks}\n  help: --ranks {planned}, or a plan for {ranks}", path.display())]
    Ranks { path: PathBuf, planned: usize, ranks: usize },
    #[error(
        "{}: layer `{layer}` is cut into {parts} parts ({grid}), the plan is for {ranks} ranks\n  \
         help: the product of its numbers may be {ranks} at most", path.display()
    )]
    Parts { path: PathBuf, layer: String, parts: String, grid: String, ranks: usize },
    #[error(
        "{}: layer `{layer}` has ranks {found:?}, wanted {parts} different ones below {ranks}, one for each part of {grid}",
        path.display()
    )]
    Members { path: PathBuf, layer: String, found: Vec<usize>, parts: usize, ranks: usize, grid: String },
    #[error("{}: {error}", path.display())]
    Fit { path: PathBuf, error: convoy_split::Error },
    #[error("{0}")]
    Words(convoy_split::Error),
}

/// The strategy that a person named: by words, or by a plan's file.
pub fn strategy(words: &str, ranks: usize, network: &Network, shapes: &[Shape]) -> Result<Strategy, Box<Flaw>> {
    match is_one(words) {
        true => read(Path::new(words), ranks, network, shapes),
        false => Strategy::parse(words, ranks, network, shapes).map_err(|error| Box::new(Flaw::Words(error))),
    }
}

/// Whether words for a strategy name a plan's file.
pub fn is_one(words: &str) -> bool {
    words.ends_with(".json")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    network: String,
    #[serde(default, rename = "strategy")]
    name: String,
    ranks: usize,
    layers: Vec<Row>,
    /// What was predicted when it was written: for people.
    #[serde(default, rename = "predicted")]
    _predicted: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    layer: String,
    #[serde(default = "one")]
    sample: usize,
    #[serde(default = "one")]
    filter: usize,
    #[serde(default = "one")]
    channel: usize,
    #[serde(default = "one")]
    depth: usize,
    #[serde(default = "one")]
    height: usize,
    #[serde(default = "one")]
    width: usize,
    ranks: Option<Vec<usize>>,
    shares: Option<Vec<usize>>,
    /// How its passes were computed when it was written: for people.
    #[serde(default, rename = "algorithm")]
    _algorithm: Value,
}

/// What a file says to people besides the strategy. It is not read back: the job decides.
#[derive(Default)]
pub struct Remarks<'a> {
    /// By layer: how its parts are computed.
    pub algorithms: Vec<BTreeMap<Part, &'static str>>,
    /// The batch, and what was predicted for it.
    pub predicted: Option<(usize, &'a Estimate)>,
}

fn one() -> usize {
    1
}

impl Row {
    /// Its numbers of parts, each with its name.
    fn named(&self) -> [(&'static str, usize); 6] {
        let Row { sample, filter, channel, depth, height, width, .. } = *self;
        [
            ("sample", sample),
            ("filter", filter),
            ("channel", channel),
            ("depth", depth),
            ("height", height),
            ("width", width),
        ]
    }

    fn grid(&self) -> Grid {
        let Row { sample, filter, channel, depth, height, width, .. } = *self;
        Grid { sample, filter, channel, depth, height, width }
    }

    /// Where the layer is, if all numbers are possible by themselves.
    fn placement(&self, path: &Path, ranks: usize) -> Result<Placement, Box<Flaw>> {
        let (path, layer) = (path.to_path_buf(), self.layer.clone());
        let words = || {
            let cut = self.named().into_iter().filter(|(_, parts)| *parts != 1);
            cut.map(|(axis, parts)| format!("{axis} {parts}")).collect::<Vec<_>>().join(", ")
        };
        let parts = self.named().iter().try_fold(1usize, |all, (_, parts)| all.checked_mul(*parts));
        let Some(parts) = parts.filter(|parts| (1..=ranks).contains(parts)) else {
            let parts = parts.map_or("too many".into(), |parts| parts.to_string());
            return Err(Box::new(Flaw::Parts { path, layer, parts, grid: words(), ranks }));
        };
        let members = self.ranks.clone().unwrap_or((0..parts).collect());
        let mut different = members.clone();
        different.sort_unstable();
        different.dedup();
        if members.len() != parts || different.len() != parts || different.iter().any(|&rank| rank >= ranks) {
            return Err(Box::new(Flaw::Members { path, layer, found: members, parts, ranks, grid: words() }));
        }
        let shares = self.shares.clone().unwrap_or_default();
        if self.shares.is_some() && (shares.len() != self.sample || shares.contains(&0)) {
            let cause = format!("layer `{layer}` has shares {shares:?}, wanted {} above 0", self.sample);
            return Err(Box::new(Flaw::Form { path, cause }));
        }
        Ok(Placement { ranks: members.into_iter().map(Rank).collect(), grid: self.grid(), shares })
    }
}

/// A strategy as a file.
pub fn write(network: &Network, strategy: &Strategy, remarks: &Remarks) -> String {
    let mut lines = vec![];
    for (l, (layer, placement)) in network.layers.iter().zip(&strategy.placements).enumerate() {
        let Grid { sample, filter, channel, depth, height, width } = placement.grid;
        let name = Value::from(layer.name.as_str());
        let first: Vec<Rank> = (0..placement.ranks.len()).map(Rank).collect();
        let members: Vec<usize> = placement.ranks.iter().map(|rank| rank.0).collect();
        let members = if placement.ranks == first { String::new() } else { format!(", \"ranks\": {}", json!(members)) };
        let shares = match placement.shares.is_empty() {
            true => String::new(),
            false => format!(", \"shares\": {}", json!(placement.shares)),
        };
        let algorithm = remarks.algorithms.get(l).map_or(String::new(), algorithm);
        lines.push(format!(
            "    {{ \"layer\": {name}, \"sample\": {sample}, \"filter\": {filter}, \"channel\": {channel}, \
             \"depth\": {depth}, \"height\": {height}, \"width\": {width}{members}{shares}{algorithm} }}"
        ));
    }
    let predicted = remarks.predicted.map_or(String::new(), |(batch, e)| {
        let object = json!({ "batch": batch, "step_seconds": e.step_seconds, "memory_bytes": e.memory_bytes });
        format!(",\n  \"predicted\": {object}")
    });
    format!(
        "{{\n  \"format\": \"{FORMAT}\",\n  \"network\": {},\n  \"strategy\": {},\n  \"ranks\": {},\n  \"layers\": [\n{}\n  ]{predicted}\n}}\n",
        Value::from(network.name.as_str()),
        Value::from(strategy.name.as_str()),
        strategy.ranks,
        lines.join(",\n")
    )
}

/// How a layer's parts are computed, as the end of its line.
fn algorithm(parts: &BTreeMap<Part, &str>) -> String {
    let parts: Vec<String> = parts.iter().map(|(part, how)| format!("\"{}\": \"{how}\"", part.name())).collect();
    if parts.is_empty() { String::new() } else { format!(", \"algorithm\": {{ {} }}", parts.join(", ")) }
}

/// The strategy of a file, if it is one for this network and so many ranks.
pub fn read(path: &Path, ranks: usize, network: &Network, shapes: &[Shape]) -> Result<Strategy, Box<Flaw>> {
    let text = std::fs::read_to_string(path)
        .map_err(|cause| Box::new(Flaw::Read { path: path.into(), cause: cause.to_string() }))?;
    parse(&text, path, ranks, network, shapes)
}

/// The same of a file's text.
pub fn parse(
    text: &str,
    path: &Path,
    ranks: usize,
    network: &Network,
    shapes: &[Shape],
) -> Result<Strategy, Box<Flaw>> {
    let form = |cause: String| Box::new(Flaw::Form { path: path.into(), cause });
    let file: File = serde_json::from_str(text).map_err(|error| form(error.to_string()))?;
    if file.format != FORMAT {
        return Err(form(format!("its format is {:?}, wanted {FORMAT:?}", file.format)));
    }
    let rows = by_layer(&file, path, ranks, network)?;
    if file.ranks != ranks {
        return Err(Box::new(Flaw::Ranks { path: path.into(), planned: file.ranks, ranks }));
    }
    let mut placements = vec![];
    for (l, row) in rows.into_iter().enumerate() {
        let placement = row.placement(path, ranks)?;
        check(&placement.grid, LayerId(l), network, shapes)
            .map_err(|error| Box::new(Flaw::Fit { path: path.into(), error }))?;
        placements.push(placement);
    }
    // What a person would have written has that name, unless the layers were changed since.
    match Strategy::parse(&file.name, ranks, network, shapes) {
        Ok(named) if named.placements == placements => Ok(named),
        _ => Ok(mixed(ranks, placements)),
    }
}

/// The rows of a file in the order of the network's layers, if it has these and no others.
fn by_layer<'a>(file: &'a File, path: &Path, ranks: usize, network: &Network) -> Result<Vec<&'a Row>, Box<Flaw>> {
    let other = |difference: String| {
        Box::new(Flaw::Network {
            path: path.into(),
            planned: file.network.clone(),
            network: network.name.clone(),
            difference,
            ranks,
        })
    };
    let mut rows: HashMap<&str, &Row> = HashMap::new();
    for row in &file.layers {
        if rows.insert(&row.layer, row).is_some() {
            return Err(other(format!("and layer `{}` stands in it twice", row.layer)));
        }
    }
    let names: Vec<&str> = network.layers.iter().map(|layer| layer.name.as_str()).collect();
    if let Some(row) = file.layers.iter().find(|row| !names.contains(&row.layer.as_str())) {
        let meant = suggestion(&row.layer, names).map_or(String::new(), |name| format!(", but one called `{name}`"));
        return Err(other(format!("which has no layer `{}`{meant}", row.layer)));
    }
    let row = |name: &str| rows.get(name).copied().ok_or_else(|| other(format!("whose layer `{name}` is not in it")));
    names.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part;
    use convoy_kernels::Winograd;
    use convoy_net::Kind;
    use convoy_net::layers::{Convolution, FullyConnected};
    use convoy_program::Options;

    fn network() -> Network {
        let mut net = Network::new("small", &[3, 8, 8]);
        net.push("conv", Kind::Convolution(Convolution::new(4, &[3, 3]).padding(1)));
        net.push("fc1", Kind::FullyConnected(FullyConnected::new(6)));
        net.push("fc2", Kind::FullyConnected(FullyConnected::new(2)));
        net
    }

    fn again(text: &str, ranks: usize) -> Result<Strategy, Box<Flaw>> {
        let net = network();
        parse(text, Path::new("p.json"), ranks, &net, &net.shapes(4).unwrap())
    }

    fn written(strategy: &Strategy) -> String {
        write(&network(), strategy, &Remarks::default())
    }

    #[test]
    fn what_was_written_is_read() {
        let net = network();
        let shapes = net.shapes(4).unwrap();
        for words in
            ["data", "spatial", "filter", "channel", "data:2,spatial:2", "data:2,filter:2", "data:3+1,spatial:2"]
        {
            let strategy = Strategy::parse(words, 4, &net, &shapes).unwrap();
            assert_eq!(again(&written(&strategy), 4), Ok(strategy));
        }
        let on = |grid: &str, ranks: &[usize]| Placement {
            grid: grid.parse().unwrap(),
            ranks: ranks.iter().copied().map(Rank).collect(),
            shares: vec![],
        };
        let placements =
            vec![on("data:3", &[0, 1, 2]), on("spatial:2", &[2, 0]), on("filter:3", &[2, 1, 0]), on("data:1", &[1])];
        let strategy = mixed(3, placements);
        assert_eq!(strategy.name, "mixed data:3 + spatial:2 + filter:3 + data:1");
        assert_eq!(again(&written(&strategy), 3), Ok(strategy));
    }

    /// They follow from the job and the layer as a whole, whatever its grid; a reader asks the job again.
    #[test]
    fn algorithms_are_said_and_not_read() {
        let mut net = Network::new("thick", &[16, 8, 8]);
        net.push("first", Kind::Convolution(Convolution::new(16, &[3, 3]).padding(1)));
        net.push("second", Kind::Convolution(Convolution::new(16, &[3, 3]).padding(1)));
        net.push("fc", Kind::FullyConnected(FullyConnected::new(2)));
        let [four, two, direct] = ["winograd 4x4", "winograd 2x2", "direct"];
        for (batch, winograd, [forward, weights]) in [
            // Twelve tiles a leaf, and eight.
            (24, Winograd::Four, [four, four]),
            (16, Winograd::Four, [four, direct]),
            (16, Winograd::Two, [two, two]),
            (24, Winograd::Off, [direct, direct]),
        ] {
            let options = Options { winograd, ..Options::plain(batch) };
            let shapes = net.shapes(batch).unwrap();
            for words in ["data", "spatial", "filter"] {
                let strategy = Strategy::parse(words, 4, &net, &shapes).unwrap();
                let remarks = Remarks { algorithms: part::algorithms(&net, &options).unwrap(), predicted: None };
                let text = write(&net, &strategy, &remarks);
                let said = |line: usize| text.lines().nth(6 + line).unwrap().split_once(", \"algorithm\": ");
                assert_eq!(said(0).map(|(_, said)| said), None, "{text}");
                // Nobody wants the gradient of images.
                let first = format!("{{ \"forward\": \"{forward}\", \"weight gradient\": \"{weights}\" }} }},");
                assert_eq!(said(1).map(|(_, said)| said), Some(first.as_str()), "batch {batch}, {words}");
                let second = first.replace(", ", &format!(", \"input gradient\": \"{forward}\", "));
                assert_eq!(said(2).map(|(_, said)| said), Some(second.as_str()), "batch {batch}, {words}");
                let read = |text: &str| parse(text, Path::new("p.json"), 4, &net, &shapes);
                assert_eq!(read(&text.replace("direct", "by hand")), Ok(strategy.clone()));
                assert_eq!(read(&text), Ok(strategy));
            }
        }
    }

    #[test]
    fn what_is_left_out_is_one() {
        let text = r#"{"format": "convoy-plan-1", "network": "x", "ranks": 2, "layers": [{"layer": "fc2", "sample": 2},
            {"layer": "fc1", "filter": 2}, {"layer": "conv", "height": 2}, {"layer": "input", "height": 2}]}"#;
        let grids: Vec<String> = again(text, 2).unwrap().placements.iter().map(|p| p.grid.to_string()).collect();
        assert_eq!(grids, ["spatial:2", "spatial:2", "filter:2", "data:2"]);
    }

    #[test]
    fn rows_that_are_impossible_are_told() {
        let strategy = Strategy::parse("data", 2, &network(), &network().shapes(4).unwrap()).unwrap();
        let text = written(&strategy);
        let told = |from: &str, to: &str| again(&text.replacen(from, to, 1), 2).unwrap_err().to_string();
        let conv = "\"conv\", \"sample\": 2";
        assert_eq!(
            told(conv, "\"conv\", \"sample\": 3"),
            "p.json: layer `conv` is cut into 3 parts (sample 3), the plan is for 2 ranks\n  \
             help: the product of its numbers may be 2 at most"
        );
        assert!(told(conv, "\"conv\", \"sample\": 0").contains("is cut into 0 parts (sample 0)"));
        let huge = "\"conv\", \"ranks\": [0, 1], \"sample\": 9223372036854775807";
        assert!(told(&format!("{conv}, \"filter\": 1"), &format!("{huge}, \"filter\": 4")).contains("too many parts"));
        assert!(
            told(conv, "\"conv\", \"sample\": -1").starts_with("p.json is not a plan: invalid value: integer `-1`")
        );
        assert!(told(conv, "\"conv\", \"samples\": 2").contains("unknown field `samples`, expected one of `layer`"));
        assert!(
            told(conv, "\"conv\", \"ranks\": [1, 1], \"sample\": 2").contains("has ranks [1, 1], wanted 2 different")
        );
        assert!(
            told(conv, "\"conv\", \"ranks\": [1, 2], \"sample\": 2").contains("has ranks [1, 2], wanted 2 different")
        );
        assert!(
            told(conv, "\"conv\", \"shares\": [3], \"sample\": 2").contains("`conv` has shares [3], wanted 2 above 0")
        );
        assert!(told("convoy-plan-1", "convoy-plan-9").contains("its format is \"convoy-plan-9\""));
        assert!(told("\"fc1\"", "\"conv\"").contains("layer `conv` stands in it twice"));
    }
}
