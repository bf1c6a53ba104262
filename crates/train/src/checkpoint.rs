//! Checkpoints: all that a run needs to go on with the same bits, in one file that is whole or absent.
//!
//! A checkpoint is a safetensors container, its metadata holding the position as JSON, followed by the 32 bytes of the
//! container's BLAKE3 checksum (docs/formats.md). A folder keeps the newest few as generations.
//!
//! Always true
//! - Every change of a file is noticed when it is read.
//! - A generation is removed only after a newer one is safe on the disk.
//! - Tensors are global and in PyTorch's order, so that any number of ranks can go on from them.
//!
//! Knows nothing of how a step is computed. Random numbers are counters: there is no generator's state to keep.

use crate::safetensors::{self, Container, Damage, View};
use crate::whole::{self, Target};
use crate::{Error, NamedTensor, Weights, number};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The metadata's word for what the file is, with the version of its form.
const FORMAT: &str = "convoy-checkpoint-1";
/// What stands before the names of the two kinds of tensors.
const WEIGHTS: &str = "weights/";
const OPTIMIZER: &str = "optimizer/";
const CHECKSUM_BYTES: usize = 32;

/// The state of a run between two steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Steps done.
    pub step: u64,
    /// Epochs done.
    pub epoch: u64,
    /// Steps done of the epoch that has begun.
    pub epoch_steps: u64,
    /// The job's seed.
    pub seed: u64,
    /// Digest of what the job says about the result: a resumed job must have the same.
    pub job_digest: String,
    /// What was summed of the epoch that has begun.
    pub sums: EpochSums,
    /// Seconds of training so far, over all resumed pieces.
    pub seconds: f64,
    /// Parameters and running statistics.
    pub weights: Weights,
    /// What the optimizer remembers, named `<parameter>.<state>`.
    pub optimizer: Weights,
}

/// What an epoch has summed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochSums {
    /// Samples seen.
    pub samples: u64,
    /// Sum of the samples' losses.
    #[serde(with = "number")]
    pub loss: f64,
    /// Samples whose label had the largest output.
    pub top1: u64,
    /// Samples whose label was among the five largest outputs.
    pub top5: u64,
    /// Seconds since the epoch began.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Of these, seconds spent waiting for data.
    #[serde(with = "number")]
    pub wait_seconds: f64,
}

/// The part of a checkpoint that is not tensors.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    step: u64,
    epoch: u64,
    epoch_steps: u64,
    seed: u64,
    job_digest: String,
    sums: EpochSums,
    #[serde(with = "number")]
    seconds: f64,
}

/// Why bytes are no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("has {bytes} bytes, too few for a checkpoint")]
    Short { bytes: usize },
    #[error("its checksum is wrong, the file is damaged or cut short")]
    Checksum,
    #[error("{0}")]
    Container(Damage),
    #[error("has the format `{found}`, this version reads `{FORMAT}`")]
    Format { found: String },
    #[error("its state is not as it should be: {cause}")]
    State { cause: String },
    #[error("has a tensor `{name}` that is neither a weight nor the optimizer's")]
    Tensor { name: String },
}

impl Checkpoint {
    /// Writes all of it: container, then checksum.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        // Every field by name: one that is added and not saved does not compile.
        let Checkpoint { step, epoch, epoch_steps, seed, job_digest, sums, seconds, weights, optimizer } = self;
        let (step, epoch, epoch_steps, seed) = (*step, *epoch, *epoch_steps, *seed);
        let state =
            State { step, epoch, epoch_steps, seed, job_digest: job_digest.clone(), sums: *sums, seconds: *seconds };
        let metadata = BTreeMap::from([
            ("format".to_string(), FORMAT.to_string()),
            ("state".to_string(), serde_json::to_string(&state)?),
        ]);
        let mut views: Vec<View> = weights.tensors.iter().map(|t| View::of(t, WEIGHTS)).collect();
        views.extend(optimizer.tensors.iter().map(|t| View::of(t, OPTIMIZER)));
        let mut summed = Summed { out, hasher: blake3::Hasher::new() };
        safetensors::write_views(&views, &metadata, &mut summed)?;
        let checksum = summed.hasher.finalize();
        out.write_all(checksum.as_bytes())
    }

    /// Reads what [`Checkpoint::write`] wrote.
    pub fn read(bytes: &[u8]) -> Result<Checkpoint, Flaw> {
        let short = Flaw::Short { bytes: bytes.len() };
        let (content, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(short)?;
        if blake3::hash(content) != *checksum {
            return Err(Flaw::Checksum);
        }
        let Container { metadata, weights: all } = safetensors::read(content).map_err(Flaw::Container)?;
        let word = |name: &str| metadata.get(name).map_or("", String::as_str);
        if word("format") != FORMAT {
            return Err(Flaw::Format { found: word("format").into() });
        }
        let state: State =
            serde_json::from_str(word("state")).map_err(|cause| Flaw::State { cause: cause.to_string() })?;
        let State { step, epoch, epoch_steps, seed, job_digest, sums, seconds } = state;
        let (mut weights, mut optimizer) = (Weights::default(), Weights::default());
        for NamedTensor { name, shape, data } in all.tensors {
            let (list, name) = match (name.strip_prefix(WEIGHTS), name.strip_prefix(OPTIMIZER)) {
                (Some(name), _) => (&mut weights, name),
                (_, Some(name)) => (&mut optimizer, name),
                _ => return Err(Flaw::Tensor { name }),
            };
            list.tensors.push(NamedTensor { name: name.to_string(), shape, data });
        }
        Ok(Checkpoint { step, epoch, epoch_steps, seed, job_digest, sums, seconds, weights, optimizer })
    }
}

/// Passes bytes on and sums them up.
struct Summed<'a> {
    out: &'a mut dyn Write,
    hasher: blake3::Hasher,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The folder of a run's checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoints {
    pub folder: PathBuf,
    /// How many generations stay; the one written last always does.
    pub keep: usize,
}

/// A checkpoint that was found, and the newer ones that could not be used.
#[derive(Debug)]
pub struct Found {
    pub checkpoint: Checkpoint,
    pub path: PathBuf,
    /// Newest first; worth a warning each.
    pub skipped: Vec<DamagedCheckpoint>,
}

/// A checkpoint that cannot be used, and why.
#[derive(Debug)]
pub struct DamagedCheckpoint {
    pub path: PathBuf,
    pub flaw: Flaw,
}

impl fmt::Display for DamagedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.flaw)
    }
}

impl Checkpoints {
    /// Generations that are kept where a job does not say.
    pub const KEEP: usize = 2;

    /// Writes a checkpoint, then removes what is too old, and what a run left that went further before it was resumed from
    /// an older generation. Returns the new file.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf, Error> {
        self.save_to(checkpoint, &|aside| Ok(Box::new(File::create(aside)?)))
    }

    fn save_to(
        &self,
        checkpoint: &Checkpoint,
        open: &dyn Fn(&Path) -> io::Result<Box<dyn Target>>,
    ) -> Result<PathBuf, Error> {
        fs::create_dir_all(&self.folder).map_err(Error::file("create", &self.folder))?;
        let path = self.folder.join(file_name(checkpoint.step));
        whole::write_to(&path, open, &|out| checkpoint.write(out))?;
        self.tidy(checkpoint.step)?;
        Ok(path)
    }

    /// Removes generations beyond those to keep, and halves that a crash left aside.
    fn tidy(&self, newest: u64) -> Result<(), Error> {
        let remove = |path: &Path| fs::remove_file(path).map_err(Error::file("remove", path));
        let mut older = 0;
        for (step, path) in self.list()? {
            older += usize::from(step < newest);
            if step > newest || older >= self.keep.max(1) {
                remove(&path)?;
            }
        }
        for name in self.names()? {
            if name.strip_suffix(whole::ASIDE).is_some_and(|name| step_of(name).is_some()) {
                remove(&self.folder.join(name))?;
            }
        }
        Ok(())
    }

    /// The newest checkpoint that is sound.
    pub fn newest(&self) -> Result<Found, Error> {
        let mut skipped = Vec::new();
        for (_, path) in self.list()? {
            let bytes = fs::read(&path).map_err(Flaw::Unreadable);
            match bytes.and_then(|bytes| Checkpoint::read(&bytes)) {
                Ok(checkpoint) => return Ok(Found { checkpoint, path, skipped }),
                Err(flaw) => skipped.push(DamagedCheckpoint { path, flaw }),
            }
        }
        let folder = self.folder.clone();
        Err(if skipped.is_empty() {
            Error::NoCheckpoint { folder }
        } else {
            Error::AllDamaged { folder, damaged: skipped }
        })
    }

    /// Steps and files of all generations, sound or not, newest first.
    pub fn list(&self) -> Result<Vec<(u64, PathBuf)>, Error> {
        let names = self.names()?;
        let mut list: Vec<(u64, PathBuf)> =
            names.iter().filter_map(|name| Some((step_of(name)?, self.folder.join(name)))).collect();
        list.sort_by_key(|(step, _)| std::cmp::Reverse(*step));
        Ok(list)
    }

    /// Names in the folder; none where there is no folder yet.
    fn names(&self) -> Result<Vec<String>, Error> {
        let entries = match fs::read_dir(&self.folder) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(Error::file("list", &self.folder))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::file("list", &self.folder))?;
            // A name that is not text is not ours.
            names.extend(entry.file_name().into_string());
        }
        Ok(names)
    }
}

fn file_name(step: u64) -> String {
    format!("step-{step:08}.ckpt")
}

/// The step that a file's name tells, if it is a checkpoint's.
fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.strip_suffix(".ckpt")?.parse().ok()?;
    (file_name(step) == name).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whole::SmallDisk;
    use proptest::prelude::*;
    use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

    fn tensor(name: &str, shape: &[usize], first: f32) -> NamedTensor {
        let data = (0..shape.iter().product()).map(|i| first + 0.1 * i as f32).collect();
        NamedTensor { name: name.into(), shape: shape.to_vec(), data }
    }

    /// Every field different from its default, and from its neighbours.
    fn sample(step: u64) -> Checkpoint {
        Checkpoint {
            step,
            epoch: 3,
            epoch_steps: 7,
            seed: u64::MAX - 1,
            job_digest: "ab12".into(),
            sums: EpochSums { samples: 448, loss: 0.1 + 0.2, top1: 400, top5: 440, seconds: 1.25, wait_seconds: 0.5 },
            seconds: 1e-3 / 3.0,
            weights: Weights {
                tensors: vec![tensor("conv.weight", &[2, 1, 3, 3], 1.0), tensor("conv.bias", &[2], 2.0)],
            },
            optimizer: Weights { tensors: vec![tensor("conv.weight.momentum", &[2, 1, 3, 3], -1.0)] },
        }
    }

    fn bytes(checkpoint: &Checkpoint) -> Vec<u8> {
        let mut bytes = Vec::new();
        checkpoint.write(&mut bytes).unwrap();
        bytes
    }

    fn steps(checkpoints: &Checkpoints) -> Vec<u64> {
        checkpoints.list().unwrap().into_iter().map(|(step, _)| step).collect()
    }

    #[test]
    fn reading_gives_back_what_was_written() {
        assert_eq!(Checkpoint::read(&bytes(&sample(120))).unwrap(), sample(120));
        assert_eq!(Checkpoint::read(&bytes(&Checkpoint::default())).unwrap(), Checkpoint::default());
    }

    /// A field that is added must be saved. `write` destructures without `..`, so it does not compile until it names the
    /// new field; this list does not compile until it has one; and each field named must change the file.
    #[test]
    fn every_field_is_saved() {
        let Checkpoint { step, epoch, epoch_steps, seed, job_digest, sums, seconds, weights, optimizer } = sample(120);
        let zero = Checkpoint::default;
        let each = [
            Checkpoint { step, ..zero() },
            Checkpoint { epoch, ..zero() },
            Checkpoint { epoch_steps, ..zero() },
            Checkpoint { seed, ..zero() },
            Checkpoint { job_digest, ..zero() },
            Checkpoint { sums, ..zero() },
            Checkpoint { seconds, ..zero() },
            Checkpoint { weights, ..zero() },
            Checkpoint { optimizer, ..zero() },
        ];
        for checkpoint in each {
            assert_ne!(checkpoint, zero());
            assert_eq!(Checkpoint::read(&bytes(&checkpoint)).unwrap(), checkpoint);
        }
    }

    #[test]
    fn a_checkpoint_without_its_checksum_is_a_safetensors_file() {
        let bytes = bytes(&sample(5));
        let oracle = ::safetensors::SafeTensors::deserialize(&bytes[..bytes.len() - CHECKSUM_BYTES]).unwrap();
        let mut names = oracle.names();
        names.sort();
        assert_eq!(names, ["optimizer/conv.weight.momentum", "weights/conv.bias", "weights/conv.weight"]);
    }

    #[test]
    fn generations_are_kept_newest_first() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints { folder: folder.path().join("checkpoints"), keep: 2 };
        assert_eq!(steps(&checkpoints), [] as [u64; 0]);
        fs::create_dir(&checkpoints.folder).unwrap();
        fs::write(checkpoints.folder.join("step-00000007.ckpt.tmp"), "half").unwrap();
        fs::write(checkpoints.folder.join("notes.txt"), "mine").unwrap();
        for step in [100, 200, 123_456_789] {
            let path = checkpoints.save(&sample(step)).unwrap();
            assert_eq!(checkpoints.newest().unwrap().path, path);
        }
        assert_eq!(steps(&checkpoints), [123_456_789, 200]);
        assert_eq!(checkpoints.newest().unwrap().checkpoint, sample(123_456_789));
        let mut names = checkpoints.names().unwrap();
        names.sort();
        assert_eq!(names, ["notes.txt", "step-00000200.ckpt", "step-123456789.ckpt"]);
    }

    #[test]
    fn saving_after_a_fall_back_replaces_what_was_ahead() {
        let folder = tempfile::tempdir().unwrap();
        for keep in [0, 1, 2, 3] {
            let checkpoints = Checkpoints { folder: folder.path().join(keep.to_string()), keep };
            fs::create_dir(&checkpoints.folder).unwrap();
            fs::write(checkpoints.folder.join(file_name(200)), "damaged").unwrap();
            fs::write(checkpoints.folder.join(file_name(100)), bytes(&sample(100))).unwrap();
            checkpoints.save(&sample(150)).unwrap();
            let wanted: &[u64] = if keep < 2 { &[150] } else { &[150, 100] };
            assert_eq!(steps(&checkpoints), wanted);
        }
    }

    #[test]
    fn a_damaged_newest_one_falls_back_to_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints { folder: folder.path().into(), keep: 2 };
        checkpoints.save(&sample(100)).unwrap();
        let newest = checkpoints.save(&sample(200)).unwrap();
        let mut damaged = fs::read(&newest).unwrap();
        damaged[90] ^= 1;
        fs::write(&newest, damaged).unwrap();
        let found = checkpoints.newest().unwrap();
        assert_eq!(found.checkpoint, sample(100));
        let warnings: Vec<String> = found.skipped.iter().map(|d| d.to_string()).collect();
        let wanted = format!("{}: its checksum is wrong, the file is damaged or cut short", newest.display());
        assert_eq!(warnings, [wanted]);
    }

    #[test]
    fn all_damaged_lists_each() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints { folder: folder.path().into(), keep: 2 };
        let none = checkpoints.newest().unwrap_err().to_string();
        assert!(none.contains("no checkpoint here"), "{none}");
        fs::write(folder.path().join(file_name(1)), "short").unwrap();
        fs::create_dir(folder.path().join(file_name(2))).unwrap();
        let mut other = Vec::new();
        let metadata = BTreeMap::from([("format".to_string(), "convoy-checkpoint-9".to_string())]);
        safetensors::write(&Weights::default(), &metadata, &mut other).unwrap();
        other.extend(*blake3::hash(&other).as_bytes());
        fs::write(folder.path().join(file_name(3)), other).unwrap();
        let text = checkpoints.newest().unwrap_err().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("all checkpoints are damaged"), "{text}");
        assert!(lines[1].ends_with("has the format `convoy-checkpoint-9`, this version reads `convoy-checkpoint-1`"));
        assert!(lines[2].contains("step-00000002.ckpt: cannot be read: "), "{text}");
        assert!(lines[3].ends_with("step-00000001.ckpt: has 5 bytes, too few for a checkpoint"), "{text}");
    }

    #[test]
    fn a_full_disk_leaves_older_generations_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints { folder: folder.path().into(), keep: 1 };
        let path = checkpoints.save(&sample(100)).unwrap();
        let before = fs::read(&path).unwrap();
        let size = bytes(&sample(200)).len();
        for (space, sync) in (0..size).step_by(37).map(|space| (space, true)).chain([(size - 1, true), (size, false)]) {
            let open = |aside: &Path| -> io::Result<Box<dyn Target>> {
                Ok(Box::new(SmallDisk { file: File::create(aside)?, space, sync }))
            };
            let error = checkpoints.save_to(&sample(200), &open).unwrap_err().to_string();
            assert!(error.starts_with("cannot write ") && error.contains("step-00000200.ckpt\n"), "{error}");
            assert_eq!(checkpoints.names().unwrap(), ["step-00000100.ckpt"]);
            assert_eq!(fs::read(&path).unwrap(), before);
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_a_clear_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let checkpoints = Checkpoints { folder: folder.path().join("file/checkpoints"), keep: 2 };
        let error = checkpoints.save(&sample(1)).unwrap_err().to_string();
        assert!(error.starts_with("cannot create "), "{error}");
    }

    /// Any change of a file is noticed: bytes changed, put in, taken out, cut off.
    #[test]
    fn mutations_never_panic_and_are_noticed() {
        let valid = bytes(&sample(120));
        let config = ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        runner
            .run(&(0..4, 0..valid.len(), any::<u8>()), |(what, at, byte)| {
                let mut bytes = valid.clone();
                match what {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    2 => drop(bytes.remove(at)),
                    _ => bytes.truncate(at),
                }
                prop_assert!(bytes == valid || Checkpoint::read(&bytes).is_err());
                Ok(())
            })
            .unwrap();
    }

    /// The same below the checksum: content that was changed and summed again is refused or read, never a panic.
    #[test]
    fn changed_content_with_a_right_checksum_never_panics() {
        let valid = bytes(&sample(120));
        let header = 8 + u64::from_le_bytes(valid[..8].try_into().unwrap()) as usize;
        let config = ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        runner
            .run(&(0..header, any::<u8>()), |(at, byte)| {
                let mut content = valid[..valid.len() - CHECKSUM_BYTES].to_vec();
                content[at] = byte;
                content.extend(*blake3::hash(&content).as_bytes());
                if let Ok(read) = Checkpoint::read(&content) {
                    let count = read.weights.tensors.len() + read.optimizer.tensors.len();
                    prop_assert_eq!(count, 3);
                }
                Ok(())
            })
            .unwrap();
    }
}
