//! Words for a person, on standard error, which many ranks share.

use std::io::Write;

/// Writes a text and the end of its line at once: what several ranks tell at the same time are whole lines. (`eprintln!` writes
/// piece by piece.) Where nobody can be told, nothing is.
pub fn tell(text: &str) {
    tell_to(&mut std::io::stderr(), text);
}

fn tell_to(place: &mut impl Write, text: &str) {
    let _ = place.write_all(format!("{text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it is written to.
    struct Writes(Vec<String>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_written_at_once() {
        let mut writes = Writes(vec![]);
        tell_to(&mut writes, "warning: rank 1 waits");
        assert_eq!(writes.0, ["warning: rank 1 waits\n"]);
    }
}
