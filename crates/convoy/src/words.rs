//! Numbers as people read them.

use comfy_table::{CellAlignment, Table, presets};
use convoy_net::Shape;
use std::fmt;

/// The middle of some numbers, of which there is at least one.
pub fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = numbers.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// With a comma after every three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// In the unit that leaves one to four digits before the point.
pub fn bytes(number: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut amount = number as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < units.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:.1} {}", units[unit])
}

/// The bytes of a text such as `3GiB`, `500MB` or `1e9`.
pub fn size(text: &str) -> Result<f64, String> {
    let units =
        [("KiB", 1024.0), ("MiB", 1048576.0), ("GiB", 1073741824.0), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9), ("", 1.0)];
    let found = units.iter().find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number.trim(), factor)));
    let number = found.and_then(|(number, factor)| number.parse::<f64>().ok().map(|n| n * factor));
    let flaw = || format!("\"{text}\" is not a size\n  help: such as 3GiB, 500MB or 1e9");
    number.filter(|n| n.is_finite() && *n > 0.0).ok_or_else(flaw)
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// Seconds, in minutes and hours where they are many.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.2} s"),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// `1 step`, `2 steps`.
pub fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A strategy as people read it: what has a grid for each layer by how many grids there are.
pub fn short(strategy: &str) -> String {
    let (name, sharded) = strategy.strip_suffix(", sharded").map_or((strategy, ""), |name| (name, ", sharded"));
    match name.strip_prefix("mixed ") {
        Some(grids) => format!("mixed of {}{sharded}", count(grids.split(" + ").count() as u64, "grid")),
        None => strategy.into(),
    }
}

/// A table whose first column is text and whose others are numbers, but for those named in `left`.
pub fn table(header: &[&str], left: &[usize], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    table.add_rows(rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        let is_left = i == 0 || left.contains(&i);
        column.set_cell_alignment(if is_left { CellAlignment::Left } else { CellAlignment::Right });
        column.set_padding((if i == 0 { 0 } else { 1 }, 1));
    }
    table.lines().map(|line| line.trim_end().to_string()).collect::<Vec<_>>().join("\n")
}

/// A sample's shape as people write it, without the samples.
pub struct Sizes(pub Shape);

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [_, c, d, h, w] = self.0.0;
        match (d, h) {
            (1, _) => write!(f, "{c}x{h}x{w}"),
            _ => write!(f, "{c}x{d}x{h}x{w}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("3GiB").unwrap(), 3221225472.0);
        assert_eq!((size("1.5 MB").unwrap(), size("1e9").unwrap()), (1.5e6, 1e9));
        for bad in ["", "many", "-3GiB", "3 apples", "nan"] {
            assert!(size(bad).unwrap_err().contains("is not a size"), "{bad}");
        }
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            (grouped(0).as_str(), grouped(999).as_str(), grouped(61_100_840).as_str()),
            ("0", "999", "61,100,840")
        );
        assert_eq!(
            (bytes(0).as_str(), bytes(1536).as_str(), bytes(3 << 30).as_str()),
            ("0.0 KiB", "1.5 KiB", "3.0 GiB")
        );
        assert_eq!((short("data:2"), short("mixed data:2 + filter:2")), ("data:2".into(), "mixed of 2 grids".into()));
        assert_eq!(short("mixed data:2 + filter:2, sharded"), "mixed of 2 grids, sharded");
        assert_eq!((count(1, "step"), count(1200, "step")), ("1 step".into(), "1,200 steps".into()));
        assert_eq!(
            (seconds(0.5), seconds(90.0), seconds(600.0)),
            ("0.50 s".into(), "90.0 s".into(), "10.0 min".into())
        );
    }

    #[test]
    fn tables_align_numbers_on_the_right() {
        let text = table(&["name", "n"], &[], vec![vec!["a".into(), "1".into()], vec!["bc".into(), "1,000".into()]]);
        assert_eq!(text, "name      n\na         1\nbc    1,000");
    }
}
