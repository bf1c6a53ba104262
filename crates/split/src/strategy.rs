//! Strategies: one placement per layer.

use crate::{Error, Grid, Placement, Rank};
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
    /// where a layer's output has a single point along an axis of space that is cut (after global pooling, fully connected
    /// layers), or cannot be cut so, all ranks take samples instead. `data:3+1` is two parts of the samples, one with three times as
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
            let space = Axis::SPACE.into_iter().zip(grid.space()).any(uncut);
            let fitted =
                if space || check_channels(&grid, l, network, shapes).is_err() { Grid::data(ranks) } else { grid };
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
    if matches!(network.layers[l.0].kind, Kind::GroupNorm(_)) && grid.space() != [1; 3] {
        return Err(Error::Space { layer, grid: *grid });
    }
    for (axis, parts) in Axis::SPACE.into_iter().zip(grid.space()) {
        let size = shapes[l.0].along(axis);
        if size < parts {
            return Err(Error::TooMany { layer, axis: axis.name(), parts, size, grid: *grid });
        }
    }
    check_channels(grid, l, network, shapes)
}

/// Whether a layer's filters and channels can be cut by a grid.
fn check_channels(grid: &Grid, l: LayerId, network: &Network, shapes: &[Shape]) -> Result<(), Error> {
    let (filter, channel) = (grid.filter, grid.channel);
    if filter * channel == 1 {
        return Ok(());
    }
    let (layer, output) = (&network.layers[l.0], shapes[l.0]);
    let no = |why: String| Err(Error::Channels { layer: layer.name.clone(), filter, channel, why });
    let inputs = network.input_shapes(l, shapes);
    let Some(input) = inputs.first() else { return no("it is the input".into()) };
    if l == network.output() {
        return no("the loss reads all channels of the output".into());
    }
    if output.channels() < filter * channel {
        return no(format!("its output has {} channels", output.channels()));
    }
    if layer.kind.operation().sums_channels() && input.channels() < channel {
        return no(format!("its input has {} channels", input.channels()));
    }
    let maps = layer.kind.operation().maps(&inputs, output, 0);
    let some_channels = channel > 1 || maps[Axis::Channel as usize] != AxisMap::All;
    if some_channels && layer.inputs[0] == LayerId(0) && maps.iter().any(|map| map.edge() == Edge::Periodic) {
        return no("the edges of the network's input are joined".into());
    }
    // Groups stay whole.
    let groups = match (&layer.kind, maps[Axis::Channel as usize]) {
        (Kind::GroupNorm(norm), _) => norm.groups,
        (kind, AxisMap::Group { inputs, .. }) if !kind.operation().parameters(&[*input]).is_empty() => {
            input.channels() / inputs
        }
        _ => return Ok(()),
    };
    let per_group = output.channels() / groups;
    let placement = Placement::over(*grid);
    let cuts_groups = |region: &convoy_net::Region| {
        let (first, end) = region.range(Axis::Channel);
        !(first as usize).is_multiple_of(per_group) || !(end as usize).is_multiple_of(per_group)
    };
    match placement.owned(output, grid.parts()).iter().any(cuts_groups) {
        true => no(format!("its groups of {per_group} channels would be cut")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoy_net::{Region, zoo};

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
