//! Strategies: one placement per layer.

use crate::{Error, Grid, Placement, Rank, Uncut};
use convoy_net::{Axis, AxisMap, Edge, Kind, LayerId, Network, Shape};

/// One placement per layer, over `ranks` ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strategy {
    pub ranks: usize,
    /// By layer.
    pub placements: Vec<Placement>,
    /// As a person would write it.
    pub name: String,
}

impl Strategy {
    /// Everything on one rank.
    pub fn single(network: &Network) -> Strategy {
        let placement = Placement { ranks: vec![Rank(0)], grid: Grid::default(), shares: vec![] };
        Strategy { ranks: 1, placements: vec![placement; network.layers.len()], name: "data:1".into() }
    }

    /// What a person wrote: `data`, `spatial`, `filter` (or `model`), `channel`, or a product. The same grid for every layer;
    /// where a layer's output has a single point along an axis that is cut (after global pooling, fully connected layers), or no
    /// network of its kind could be cut so (the input's channels, the output's, parts of groups, group norm in space), all ranks take samples
    /// instead. A layer that is only too small is an error. `data:3+1` is two parts of the samples, one with three times as
    /// many as the other.
    pub fn parse(text: &str, ranks: usize, network: &Network, shapes: &[Shape]) -> Result<Strategy, Error> {
        let (words, shares) = shares(text)?;
        let grid = match words.as_str() {
            "data" => Grid::data(ranks),
            "spatial" => Grid::rows(ranks),
            "filter" | "model" => Grid { filter: ranks, ..Grid::default() },
            "channel" => Grid { channel: ranks, ..Grid::default() },
            words => words.parse()?,
        };
        if grid.parts() != ranks {
            return Err(Error::Ranks { grid, parts: grid.parts(), ranks });
        }
        let layers = (0..network.layers.len()).map(LayerId);
        let placements = layers.map(|l| {
            // Group norm sums over all of a sample's space.
            let whole = matches!(network.layers[l.0].kind, Kind::GroupNorm(_));
            let uncut = |(axis, parts): (Axis, usize)| parts > 1 && (whole || shapes[l.0].along(axis) == 1);
            let by_nature = |why: Uncut| why.is_nature();
            let by_samples = Axis::SPACE.into_iter().zip(grid.space()).any(uncut)
                || uncut_channels(&grid, l, network, shapes).is_some_and(by_nature);
            let fitted = if by_samples { Grid::data(ranks) } else { grid };
            check(&fitted, l, network, shapes)?;
            // Ranks that have a part of the samples together have equal parts of it.
            let each = fitted.sample / grid.sample;
            let shares = shares.iter().flat_map(|&share| vec![share; each]).collect();
            Ok(Placement { shares, ..Placement::over(fitted) })
        });
        let mut name = grid.to_string();
        if !shares.is_empty() {
            let named: Vec<String> = shares.iter().map(usize::to_string).collect();
            name = name.replacen(&format!("data:{}", shares.len()), &format!("data:{}", named.join("+")), 1);
        }
        Ok(Strategy { ranks, placements: placements.collect::<Result<_, _>>()?, name })
    }
}

/// The largest share: sums of them are far from too large.
const MOST: usize = 1 << 20;

/// Words with plain numbers of parts, and the shares that stood in their place, if any.
fn shares(text: &str) -> Result<(String, Vec<usize>), Error> {
    let mut shares = vec![];
    let mut words = vec![];
    for word in text.split(',') {
        let wrong = || Error::Word { text: text.into(), word: word.into() };
        match word.strip_prefix("data:").filter(|parts| parts.contains('+')) {
            Some(parts) => {
                let all: Result<Vec<usize>, _> = parts.split('+').map(str::parse).collect();
                let possible = |all: &Vec<usize>| all.iter().all(|share| (1..=MOST).contains(share));
                shares = all.ok().filter(possible).ok_or_else(wrong)?;
                words.push(format!("data:{}", shares.len()));
            }
            None => words.push(word.into()),
        }
    }
    Ok((words.join(","), shares))
}

/// Whether a layer can be cut by a grid.
pub fn check(grid: &Grid, l: LayerId, network: &Network, shapes: &[Shape]) -> Result<(), Error> {
    let layer = network.layers[l.0].name.clone();
    if let (Kind::GroupNorm(norm), true) = (&network.layers[l.0].kind, grid.space() != [1; 3]) {
        return Err(Error::Space { layer, grid: *grid, groups: norm.groups });
    }
    for (axis, parts) in Axis::SPACE.into_iter().zip(grid.space()) {
        let size = shapes[l.0].along(axis);
        if size < parts {
            return Err(Error::TooMany { layer, axis: axis.name(), parts, size, grid: *grid });
        }
    }
    let cut = Grid { filter: grid.filter, channel: grid.channel, ..Grid::default() };
    uncut_channels(grid, l, network, shapes).map_or(Ok(()), |why| Err(Error::Channels { layer, cut, why }))
}

/// Why a layer's filters and channels cannot be cut by a grid; nothing where they can.
fn uncut_channels(grid: &Grid, l: LayerId, network: &Network, shapes: &[Shape]) -> Option<Uncut> {
    let (filter, channel) = (grid.filter, grid.channel);
    if filter * channel == 1 {
        return None;
    }
    let (layer, output) = (&network.layers[l.0], shapes[l.0]);
    let inputs = network.input_shapes(l, shapes);
    let Some(input) = inputs.first() else { return Some(Uncut::Input) };
    if l == network.output() {
        return Some(Uncut::Output);
    }
    if output.channels() < filter * channel {
        return Some(Uncut::Outputs(output.channels()));
    }
    if layer.kind.operation().sums_channels() && input.channels() < channel {
        let few = if layer.inputs[0] == LayerId(0) { Uncut::Data } else { Uncut::Inputs };
        return Some(few(input.channels()));
    }
    let maps = layer.kind.operation().maps(&inputs, output, 0);
    let some_channels = channel > 1 || maps[Axis::Channel as usize] != AxisMap::All;
    if some_channels && layer.inputs[0] == LayerId(0) && maps.iter().any(|map| map.edge() == Edge::Periodic) {
        return Some(Uncut::JoinedEdges);
    }
    // Groups stay whole.
    let groups = match (&layer.kind, maps[Axis::Channel as usize]) {
        (Kind::GroupNorm(norm), _) => norm.groups,
        (kind, AxisMap::Group { inputs, .. }) if !kind.operation().parameters(&[*input]).is_empty() => {
            input.channels() / inputs
        }
        _ => return None,
    };
    let per_group = output.channels() / groups;
    let placement = Placement::over(*grid);
    let cuts_groups = |region: &convoy_net::Region| {
        let (first, end) = region.range(Axis::Channel);
        !(first as usize).is_multiple_of(per_group) || !(end as usize).is_multiple_of(per_group)
    };
    let cuts_any = placement.owned(output, grid.parts()).iter().any(cuts_groups);
    cuts_any.then_some(Uncut::Groups(groups, per_group))
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoy_net::layers::{Convolution, FullyConnected, GroupNorm};
    use convoy_net::{Region, zoo};

    fn small() -> Network {
        let mut net = Network::new("small", &[3, 8, 8]);
        net.push("conv", Kind::Convolution(Convolution::new(6, &[3, 3]).padding(1)));
        net.push("mask", Kind::Convolution(Convolution::new(1, &[1, 1])));
        net.push("wide", Kind::Convolution(Convolution::new(12, &[3, 3]).padding(1)));
        net.push("norm", Kind::GroupNorm(GroupNorm { groups: 4, epsilon: 1e-5 }));
        net.push("fc", Kind::FullyConnected(FullyConnected::new(2)));
        net
    }

    fn grids(words: &str, ranks: usize) -> Result<Vec<String>, String> {
        let net = small();
        let strategy = Strategy::parse(words, ranks, &net, &net.shapes(8).unwrap()).map_err(|e| e.to_string())?;
        Ok(strategy.placements.iter().map(|p| p.grid.to_string()).collect())
    }

    #[test]
    fn layers_that_no_strategy_of_a_kind_can_cut_take_samples() {
        let by_filter = ["data:2", "filter:2", "data:2", "filter:2", "filter:2", "data:2"];
        assert_eq!(grids("filter", 2).unwrap(), by_filter);
        // Data have few channels, and nobody chose them.
        let by_channel = ["data:4", "data:4", "data:4", "data:4", "channel:4", "data:4"];
        assert_eq!(grids("channel", 4).unwrap(), by_channel);
        // Groups stay whole.
        assert_eq!(grids("filter", 3).unwrap()[3..5], ["filter:3", "data:3"]);
        assert_eq!(grids("spatial", 2).unwrap()[4], "data:2");
    }

    #[test]
    fn a_layer_that_is_too_small_is_an_error_that_says_what_fits() {
        assert_eq!(
            grids("filter", 8).unwrap_err(),
            "layer `conv` cannot be cut into filter:8: its output has 6 channels\n  help: filter:6 or less here"
        );
        assert_eq!(
            grids("filter:4,channel:2", 8).unwrap_err(),
            "layer `conv` cannot be cut into filter:4,channel:2: its output has 6 channels\n  \
             help: filters times channels may be 6 at most here"
        );
        let net = small();
        let shapes = net.shapes(8).unwrap();
        let of = |words: &str, layer: usize| {
            check(&words.parse().unwrap(), LayerId(layer), &net, &shapes).unwrap_err().to_string()
        };
        let few = Error::Channels { layer: "narrow".into(), cut: "channel:4".parse().unwrap(), why: Uncut::Inputs(3) };
        assert_eq!(
            few.to_string(),
            "layer `narrow` cannot be cut into channel:4: its input has 3 channels\n  help: channel:3 or less here"
        );
        assert_eq!(
            of("filter:3", 4),
            "layer `norm` cannot be cut into filter:3: its groups of 3 channels would be cut\n  \
             help: 2 parts here, or another divisor of its 4 groups"
        );
        assert_eq!(
            of("data:2,spatial:2", 4),
            "layer `norm` cannot be cut into data:2,spatial:2: it sums over all of a sample's space\n  \
             help: spatial:1 here; cut it along samples, or its 4 groups, filter:4 at most"
        );
        assert_eq!(
            of("filter:2", 5),
            "layer `fc` cannot be cut into filter:2: the loss reads all channels of the output\n  \
             help: cut it along samples or space instead"
        );
        assert_eq!(
            of("spatial:9", 1),
            "layer `conv` cannot be cut into height:9, its output has 8 along it\n  strategy: spatial:9\n  help: height:8 or less here"
        );
    }

    #[test]
    fn shares_are_read_and_named() {
        let net = zoo::model("lenet", Default::default()).unwrap();
        let shapes = net.shapes(8).unwrap();
        let strategy = Strategy::parse("data:3+1,spatial:2", 4, &net, &shapes).unwrap();
        assert_eq!(strategy.name, "data:3+1,spatial:2");
        let again = Strategy::parse(&strategy.name, 4, &net, &shapes);
        assert_eq!(again.as_ref(), Ok(&strategy));
        let samples = |l: usize| {
            let owned: Vec<Region> = strategy.placements[l].owned(shapes[l], 4);
            owned.iter().map(|r| r.range(Axis::Sample)).collect::<Vec<_>>()
        };
        assert_eq!(samples(1), [(0, 6), (0, 6), (6, 8), (6, 8)]);
        // Fully connected layers are cut along samples alone.
        assert_eq!(samples(net.layers.len() - 1), [(0, 3), (3, 6), (6, 7), (7, 8)]);
        for (text, word) in [("data:3+0", "data:3+0"), ("data:1+x", "data:1+x"), ("spatial:1+2", "spatial:1+2")] {
            let found = Strategy::parse(text, 2, &net, &shapes);
            assert_eq!(found, Err(Error::Word { text: text.into(), word: word.into() }));
        }
        assert!(matches!(Strategy::parse("data:1+2+3", 2, &net, &shapes), Err(Error::Ranks { parts: 3, .. })));
    }
}
