//! Random numbers that are a function of what they are for: Philox 4x32-10 (Salmon and others, 2011), keyed.
//!
//! A [`Key`] says whose numbers are wanted; element `i` has its own, whoever asks for it and in whatever order. So initial
//! weights, sample order, augmentation and dropout do not depend on threads, tiles or ranks.
//!
//! Always true
//! - Different keys and elements are different counters: every field has bits of its own, nothing is hashed together.
//!
//! | where | bits | what |
//! |---|---|---|
//! | key 0, 1 | 64 | seed |
//! | counter 0 | 32 | element / 4, low bits; element % 4 chooses one of the four words |
//! | counter 1 | 32 | sample |
//! | counter 2 | 32 | step, low bits |
//! | counter 3, from bit 24 | 8 | step, high bits |
//! | counter 3, from bit 22 | 2 | element / 4, high bits |
//! | counter 3, from bit 16 | 6 | purpose |
//! | counter 3, from bit 0 | 16 | layer |
//!
//! So steps stay below 2^40, elements below 2^36, layers below 2^16; debug builds assert it.

/// Philox 4x32 with ten rounds: four random words from a key and a counter. For one key, different counters give different
/// words.
#[inline(always)]
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let [mut k0, mut k1] = key;
    let [mut a, mut b, mut c, mut d] = counter;
    for _ in 0..10 {
        let (p, q) = (a as u64 * 0xd251_1f53, c as u64 * 0xcd9e_8d57);
        (a, b, c, d) = ((q >> 32) as u32 ^ b ^ k0, q as u32, (p >> 32) as u32 ^ d ^ k1, p as u32);
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    [a, b, c, d]
}

/// What random numbers are for. The numbers are part of results: new purposes go to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Initial weights; `sample` is the parameter's number within its layer.
    Weights,
    /// The order of samples; `step` is the epoch.
    Order,
    /// Changes to an image; `step` is the epoch, `sample` its number in the data.
    Augment,
    /// Which elements a dropout layer drops; `sample` is its number in the global batch.
    Dropout,
    /// Made-up data; `sample` is its number in the data.
    Synthetic,
}

/// Whose random numbers: all that they depend on except the element. What does not apply is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub seed: u64,
    pub purpose: Purpose,
    /// The layer's number in its network, below 2^16.
    pub layer: u32,
    /// Below 2^40.
    pub step: u64,
    pub sample: u32,
}

impl Key {
    /// The words of elements `4 * quad` to `4 * quad + 3`.
    #[inline]
    pub fn words(&self, quad: u64) -> [u32; 4] {
        philox(self.key(), self.counter(quad))
    }

    /// The words of `N` quads from `quad` on: `[word][quad]`. With eight and more this becomes vector code.
    #[inline(always)]
    pub fn many<const N: usize>(&self, quad: u64) -> [[u32; N]; 4] {
        let [mut a, mut b, mut c, mut d] = [[0; N]; 4];
        for (l, (((a, b), c), d)) in a.iter_mut().zip(&mut b).zip(&mut c).zip(&mut d).enumerate() {
            [*a, *b, *c, *d] = self.words(quad + l as u64);
        }
        [a, b, c, d]
    }

    #[inline(always)]
    fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    #[inline(always)]
    fn counter(&self, quad: u64) -> [u32; 4] {
        debug_assert!(self.step < 1 << 40, "bug: step {} has no bits in a counter", self.step);
        debug_assert!(self.layer < 1 << 16, "bug: layer {} has no bits in a counter", self.layer);
        debug_assert!(quad < 1 << 34, "bug: element {quad}·4 has no bits in a counter");
        let high = (self.step >> 32) << 24 | (quad >> 32) << 22 | (self.purpose as u64) << 16 | self.layer as u64;
        [quad as u32, self.sample, self.step as u32, high as u32]
    }

    /// 32 random bits. Elements are below 2^36.
    #[inline]
    pub fn word(&self, element: u64) -> u32 {
        self.words(element / 4)[(element % 4) as usize]
    }

    /// From 0 (possible) to 1 (not), in steps of 2^-24: exact in single precision.
    #[inline]
    pub fn uniform(&self, element: u64) -> f32 {
        uniform(self.word(element))
    }

    /// From the normal distribution with mean 0 and deviation 1: never beyond 6.4.
    pub fn normal(&self, element: u64) -> f32 {
        // In the middle of the 2^-32 that the word stands for: neither 0 nor 1.
        crate::math::normal_quantile((self.word(element) as f64 + 0.5) / 4_294_967_296.0) as f32
    }
}

/// A word as a number from 0 (possible) to 1 (not), in steps of 2^-24.
#[inline]
pub fn uniform(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The vectors that are published with Random123 (`kat_vectors`, philox4x32 10).
    #[test]
    fn published_vectors() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([!0; 2], [!0; 4]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox([0xa4093822, 0x299f31d0], [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    const KEY: Key = Key { seed: 5, purpose: Purpose::Dropout, layer: 0, step: 0, sample: 0 };

    /// Each bit of each field changes the words, and no two changes give the same ones.
    #[test]
    fn every_bit_counts() {
        let mut keys: Vec<(Key, u64)> = vec![(KEY, 0)];
        keys.extend((0..64).map(|b| (Key { seed: 5 ^ (1 << b), ..KEY }, 0)));
        keys.extend((0..16).map(|b| (Key { layer: 1 << b, ..KEY }, 0)));
        keys.extend((0..40).map(|b| (Key { step: 1 << b, ..KEY }, 0)));
        keys.extend((0..32).map(|b| (Key { sample: 1 << b, ..KEY }, 0)));
        keys.extend((0..34).map(|b| (KEY, 1 << b)));
        for purpose in [Purpose::Weights, Purpose::Order, Purpose::Augment, Purpose::Synthetic] {
            keys.push((Key { purpose, ..KEY }, 0));
        }
        let words: HashSet<[u32; 4]> = keys.iter().map(|(key, quad)| key.words(*quad)).collect();
        assert_eq!(words.len(), keys.len());
        assert_eq!(KEY.words(3), std::array::from_fn(|i| KEY.word(12 + i as u64)));
        let quad = (1 << 32) - 3;
        let many = KEY.many::<8>(quad);
        for l in 0..8 {
            assert_eq!(many.map(|word| word[l]), KEY.words(quad + l as u64));
        }
    }

    #[test]
    fn uniform_is_from_zero_to_below_one() {
        assert_eq!((uniform(0), uniform(u32::MAX)), (0.0, 1.0 - 1.0 / 16_777_216.0));
        let count = 1 << 16;
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..count {
            let u = KEY.uniform(i) as f64;
            sum += u;
            squares += u * u;
        }
        let n = count as f64;
        // Four deviations of the mean of n uniform numbers, and of their squares.
        assert!((sum / n - 0.5).abs() < 4.0 * (1.0 / 12.0 / n).sqrt());
        assert!((squares / n - 1.0 / 3.0).abs() < 4.0 * (4.0 / 45.0 / n).sqrt());
    }

    #[test]
    fn normal_has_its_moments() {
        let values: Vec<f64> = (0..1 << 16).map(|i| KEY.normal(i) as f64).collect();
        let n = values.len() as f64;
        let moment = |k: i32| values.iter().map(|v| v.powi(k)).sum::<f64>() / n;
        // Four deviations each: those of x, x² and x⁴ are 1, √2 and √96.
        assert!(moment(1).abs() < 4.0 / n.sqrt());
        assert!((moment(2) - 1.0).abs() < 4.0 * (2.0 / n).sqrt());
        assert!((moment(4) - 3.0).abs() < 4.0 * (96.0 / n).sqrt());
    }
}
