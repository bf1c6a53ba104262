//! Suggestions: the known word that an unknown one was probably meant to be.

/// The known word nearest to `word`, if one is so near that it may be a slip: at most a third of the letters inserted,
/// removed, replaced or swapped with their neighbour (or one, in a short word).
///
/// ```
/// use convoy_net::suggestion;
/// assert_eq!(suggestion("resnet81", ["vgg16", "resnet18"]), Some("resnet18"));
/// assert_eq!(suggestion("inception", ["vgg16", "resnet18"]), None);
/// ```
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let far = (word.chars().count() / 3).max(1);
    let near = known.into_iter().map(|k| (distance(word, k), k)).min_by_key(|&(distance, _)| distance);
    near.filter(|&(distance, _)| distance <= far).map(|(_, k)| k)
}

/// Insertions, removals, replacements and swaps of neighbours that make one word the other, no letter touched twice.
/// Case and the choice between `-`, `_` and nothing cost nothing.
fn distance(a: &str, b: &str) -> usize {
    let letters =
        |s: &str| -> Vec<char> { s.chars().filter(|c| !"-_ ".contains(*c)).flat_map(char::to_lowercase).collect() };
    let (a, b) = (letters(a), letters(b));
    // rows[i][j]: the distance between the first i letters of a and the first j of b.
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    let swap = if swap { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                    replace.min(swap).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let cases = [("", "", 0), ("kernel", "kernal", 1), ("kernel", "krenel", 1), ("stride", "strides", 1)];
        for (a, b, wanted) in cases {
            assert_eq!((distance(a, b), distance(b, a)), (wanted, wanted), "{a} {b}");
        }
        assert_eq!(distance("Max_Pool", "max-pool"), 0);
        assert_eq!(distance("sitting", "kitten"), 3);
    }
}
