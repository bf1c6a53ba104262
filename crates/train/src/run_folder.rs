//! The folder of a run: `runs/<name>-<time>/`, where everything that a run leaves lies (docs/formats.md).
//!
//! Always true
//! - A new run has a folder of its own; nothing is ever overwritten by another run.
//! - Files are whole or absent, `metrics.jsonl` up to its last line.
//!
//! Knows nothing of what a job says.

use crate::metrics::{self, MetricsLine, MetricsLog};
use crate::{Checkpoints, Error, Weights, safetensors, whole};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const JOB: &str = "job.toml";
const METRICS: &str = "metrics.jsonl";
const MODEL: &str = "model.safetensors";
const CHECKPOINTS: &str = "checkpoints";

/// The folder of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes the folder `<root>/<name>-<time>`, with a number at its end where that exists.
    pub fn create(root: &Path, name: &str) -> Result<RunFolder, Error> {
        RunFolder::create_at(root, name, SystemTime::now())
    }

    fn create_at(root: &Path, name: &str, time: SystemTime) -> Result<RunFolder, Error> {
        fs::create_dir_all(root).map_err(Error::file("create", root))?;
        let name = format!("{}-{}", plain(name), timestamp(time));
        let mut path = root.join(&name);
        for again in 2.. {
            match fs::create_dir(&path) {
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
                    path = root.join(format!("{name}-{again}"))
                }
                result => {
                    return result.map(|()| RunFolder { path: path.clone() }).map_err(Error::file("create", &path));
                }
            }
        }
        unreachable!("bug: as many runs in a second as there are numbers")
    }

    /// The folder of a run that exists.
    pub fn open(path: &Path) -> Result<RunFolder, Error> {
        fs::metadata(path).map_err(Error::file("open", path))?;
        if !path.join(JOB).is_file() {
            return Err(Error::NotARun { path: path.to_path_buf() });
        }
        Ok(RunFolder { path: path.to_path_buf() })
    }

    /// The folder that another rank has made and writes to. It may not be seen from here.
    pub fn of_another(path: PathBuf) -> RunFolder {
        RunFolder { path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of text, such as `plan.json` or `report.html`.
    pub fn write_text(&self, name: &str, text: &str) -> Result<(), Error> {
        whole::write(&self.path.join(name), &|out| out.write_all(text.as_bytes()))
    }

    /// Reads a file of text.
    pub fn read_text(&self, name: &str) -> Result<String, Error> {
        let path = self.path.join(name);
        fs::read_to_string(&path).map_err(Error::file("read", &path))
    }

    /// Writes the resolved job.
    pub fn write_job(&self, toml: &str) -> Result<(), Error> {
        self.write_text(JOB, toml)
    }

    /// Reads the resolved job.
    pub fn read_job(&self) -> Result<String, Error> {
        self.read_text(JOB)
    }

    /// Begins the metrics.
    pub fn create_metrics(&self) -> Result<MetricsLog, Error> {
        MetricsLog::create(&self.path.join(METRICS))
    }

    /// Goes on with the metrics after a step.
    pub fn resume_metrics(&self, step: u64) -> Result<MetricsLog, Error> {
        MetricsLog::resume(&self.path.join(METRICS), step)
    }

    /// Reads the metrics.
    pub fn read_metrics(&self) -> Result<Vec<MetricsLine>, Error> {
        metrics::read(&self.path.join(METRICS))
    }

    /// Writes the trained model.
    pub fn write_model(&self, weights: &Weights) -> Result<(), Error> {
        safetensors::write_file(&self.model(), weights)
    }

    /// Reads the trained model.
    pub fn read_model(&self) -> Result<Weights, Error> {
        Ok(safetensors::read_file(&self.model())?.weights)
    }

    /// Where the trained model is, once there is one.
    pub fn model(&self) -> PathBuf {
        self.path.join(MODEL)
    }

    /// The checkpoints, of which `keep` stay.
    pub fn checkpoints(&self, keep: usize) -> Checkpoints {
        Checkpoints { folder: self.path.join(CHECKPOINTS), keep }
    }
}

/// A name that every file system takes, and that cannot lead out of its folder.
fn plain(name: &str) -> String {
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
    let plain = plain.trim_matches('-');
    if plain.is_empty() { "run".into() } else { plain.into() }
}

/// `YYYYMMDD-HHMMSS` in UTC.
fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// Year, month and day so many days after 1 January 1970, in the Gregorian calendar.
fn date(mut days: u64) -> (u64, usize, u64) {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // Whole periods of 400 years, all of 146,097 days, at once: a clock that is far off must not make us count for long.
    let mut year = 1970 + days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NamedTensor;
    use std::time::Duration;

    fn after(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn times_are_utc() {
        // Made with `date -u -d @SECONDS +%Y%m%d-%H%M%S`.
        for (seconds, wanted) in [
            (0, "19700101-000000"),
            (951_782_399, "20000228-235959"),
            (951_782_400, "20000229-000000"),
            (1_709_251_199, "20240229-235959"),
            (1_798_761_599, "20261231-235959"),
            (4_107_542_400, "21000301-000000"),
            (12_622_780_800, "23700101-000000"),
        ] {
            assert_eq!(timestamp(after(seconds)), wanted);
        }
    }

    #[test]
    fn runs_of_the_same_second_have_folders_of_their_own() {
        let root = tempfile::tempdir().unwrap();
        let runs = root.path().join("runs");
        let names: Vec<String> = (0..3)
            .map(|_| RunFolder::create_at(&runs, "../my net", after(1_000_000_000)).unwrap())
            .map(|run| run.path().strip_prefix(&runs).unwrap().to_str().unwrap().to_string())
            .collect();
        assert_eq!(names, ["my-net-20010909-014640", "my-net-20010909-014640-2", "my-net-20010909-014640-3"]);
    }

    #[test]
    fn a_run_is_read_back() {
        let root = tempfile::tempdir().unwrap();
        let run = RunFolder::create(root.path(), "lenet").unwrap();
        assert!(RunFolder::open(run.path()).unwrap_err().to_string().contains("it has no job.toml"));
        assert!(RunFolder::open(&root.path().join("x")).unwrap_err().to_string().starts_with("cannot open "));
        run.write_job("[train]\n").unwrap();
        let line = MetricsLine::Digest { step: 0, layers: vec![] };
        run.create_metrics().unwrap().append(&line).unwrap();
        let weights = Weights { tensors: vec![NamedTensor { name: "a".into(), shape: vec![1], data: vec![2.0] }] };
        run.write_model(&weights).unwrap();

        let run = RunFolder::open(run.path()).unwrap();
        assert_eq!(run.read_job().unwrap(), "[train]\n");
        assert_eq!(run.read_metrics().unwrap(), [line]);
        assert_eq!(run.read_model().unwrap(), weights);
        assert!(run.checkpoints(2).newest().unwrap_err().to_string().contains("no checkpoint here"));
    }

    #[test]
    fn a_root_that_is_a_file_is_a_clear_error() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("runs"), "").unwrap();
        let error = RunFolder::create(&root.path().join("runs"), "lenet").unwrap_err().to_string();
        assert!(error.starts_with("cannot create "), "{error}");
    }
}
