//! Strategies: one placement per layer.

use crate::{Error, Grid, Placement, Rank};
use convoy_net::{Axis, Network, Shape};

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

    /// What a person wrote: `data`, `spatial`, or a product. The same grid for every layer; where a layer's output has a
    /// single point along an axis that is cut (after global pooling, fully connected layers), those ranks take samples
    /// instead.
    pub fn parse(text: &str, ranks: usize, network: &Network, shapes: &[Shape]) -> Result<Strategy, Error> {
        let grid = match text {
            "data" => Grid::data(ranks),
            "spatial" => Grid::rows(ranks),
            text => text.parse()?,
        };
        if grid.filter > 1 || grid.channel > 1 {
            return Err(Error::NotYet { text: text.into() });
        }
        if grid.parts() != ranks {
            return Err(Error::Ranks { grid, parts: grid.parts(), ranks });
        }
        let placements = shapes.iter().zip(&network.layers).map(|(shape, layer)| {
            let mut fitted = grid;
            for (axis, parts) in Axis::SPACE.into_iter().zip(grid.space()) {
                let size = shape.along(axis);
                if size == 1 && parts > 1 {
                    fitted = Grid::data(ranks);
                } else if size < parts {
                    let (layer, strategy) = (layer.name.clone(), text.to_string());
                    return Err(Error::TooMany { layer, axis: axis.name(), parts, size, strategy });
                }
            }
            Ok(Placement::over(fitted))
        });
        Ok(Strategy { ranks, placements: placements.collect::<Result<_, _>>()?, name: grid.to_string() })
    }
}
