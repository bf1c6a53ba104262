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
        let placement = Placement { ranks: vec![Rank(0)], grid: Grid::default() };
        Strategy { ranks: 1, placements: vec![placement; network.layers.len()], name: "data:1".into() }
    }

    /// What a person wrote: `data`, `spatial`, `filter` (or `model`), `channel`, or a product. The same grid for every layer;
    /// where a layer's output has a single point along an axis of space that is cut (after global pooling, fully connected
    /// layers), or cannot be cut so, all ranks take samples instead.
    pub fn parse(text: &str, ranks: usize, network: &Network, shapes: &[Shape]) -> Result<Strategy, Error> {
        let grid = match text {
            "data" => Grid::data(ranks),
            "spatial" => Grid::rows(ranks),
            "filter" | "model" => Grid { filter: ranks, ..Grid::default() },
            "channel" => Grid { channel: ranks, ..Grid::default() },
            text => text.parse()?,
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
            Ok(Placement::over(fitted))
        });
        Ok(Strategy { ranks, placements: placements.collect::<Result<_, _>>()?, name: grid.to_string() })
    }
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
