//! How many tiles a pass is cut into: enough that workers share it evenly, none so small that taking it weighs.

/// Tiles that keep up to eight workers busy.
const ENOUGH: usize = 16;
/// Work of a tile, in floating-point operations: usual, and least where the pass is small. A core does some 80 in a nanosecond.
const USUAL: f64 = 5e6;
const LEAST: f64 = 2e6;
/// The same where a pass moves memory, in bytes. A core moves some 15 in a nanosecond.
const USUAL_BYTES: f64 = 1e6;
const LEAST_BYTES: f64 = 256e3;
/// Tests have small passes, and tiles to match.
const PART: f64 = if cfg!(test) { 1.0 / 128.0 } else { 1.0 };

/// For so many floating-point operations.
pub fn of_flops(flops: f64) -> usize {
    between(flops / (USUAL * PART), flops / (LEAST * PART))
}

/// For so many bytes moved.
pub fn of_bytes(bytes: f64) -> usize {
    between(bytes / (USUAL_BYTES * PART), bytes / (LEAST_BYTES * PART))
}

/// The same, no more than workers need.
pub fn enough(tiles: usize) -> usize {
    tiles.min(ENOUGH)
}

fn between(usual: f64, most: f64) -> usize {
    (usual as usize).max(enough(most as usize)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_passes_have_few_tiles() {
        for (flops, tiles) in [(0.0, 1), (3e6, 1), (4e6, 2), (1e7, 5), (5e7, 16), (1e9, 200)] {
            assert_eq!(of_flops(flops * PART), tiles, "{flops}");
        }
        assert_eq!(of_bytes(512e3 * PART), 2);
        assert_eq!(enough(of_bytes(1e9 * PART)), 16);
    }
}
