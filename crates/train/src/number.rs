//! Numbers in JSON that come back with the same value: JSON has no NaN and no infinity, so those are written as words.
//!
//! For `#[serde(with = "number")]`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if x.is_finite() { x.serialize(serializer) } else { x.to_string().serialize(serializer) }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number, \"NaN\", \"inf\" or \"-inf\"")]
    enum Written {
        Number(f64),
        Word(Word),
    }
    #[derive(Deserialize)]
    enum Word {
        NaN,
        #[serde(rename = "inf")]
        Infinity,
        #[serde(rename = "-inf")]
        MinusInfinity,
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::Number(x) => x,
        Written::Word(Word::NaN) => f64::NAN,
        Written::Word(Word::Infinity) => f64::INFINITY,
        Written::Word(Word::MinusInfinity) => f64::NEG_INFINITY,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Line(#[serde(with = "super")] f64);

    #[test]
    fn values_come_back_with_the_same_bits() {
        for x in [0.1 + 0.2, -0.0, 1e-310, 2.3e17, f64::MAX, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let text = serde_json::to_string(&Line(x)).unwrap();
            assert_eq!(serde_json::from_str::<Line>(&text).unwrap().0.to_bits(), x.to_bits(), "{text}");
        }
        assert!(serde_json::from_str::<Line>("\"nine\"").is_err());
    }
}
