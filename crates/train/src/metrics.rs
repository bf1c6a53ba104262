//! Metrics: what a run wrote down, one JSON object a line in `metrics.jsonl` (docs/formats.md).
//!
//! Always true
//! - Every line is appended in one piece; the last one may be cut off by a crash and is then not read.
//! - After a resume no line tells of a step that was done again.
//!
//! Knows nothing of how the numbers were measured.

use crate::{Error, number, whole};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// One line of metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum MetricsLine {
    /// A training step.
    Step {
        /// Steps done, this one included.
        step: u64,
        /// The epoch it belongs to, from 1.
        epoch: u64,
        /// Mean loss of its batch.
        #[serde(with = "number")]
        loss: f64,
        #[serde(with = "number")]
        learning_rate: f64,
        /// Seconds of training so far.
        #[serde(with = "number")]
        seconds: f64,
    },
    /// The end of an epoch.
    Epoch {
        /// Epochs done.
        epoch: u64,
        /// Steps done.
        step: u64,
        /// Over the epoch's steps, with the weights each step found.
        train: Scores,
        /// On the test data, with the weights after the epoch.
        test: Option<Scores>,
        /// Seconds the epoch took, without the test.
        #[serde(with = "number")]
        seconds: f64,
        /// Of these, seconds spent waiting for data.
        #[serde(with = "number")]
        wait_seconds: f64,
    },
    /// Digests of all layers that have weights, in the network's order: layer, first 16 digits.
    Digest { step: u64, layers: Vec<(String, String)> },
    /// The run has ended as the job said.
    End {
        step: u64,
        /// Mean loss of the last batch.
        #[serde(with = "number")]
        train_loss: f64,
        test: Option<Scores>,
        /// Seconds of training, over all resumed pieces.
        #[serde(with = "number")]
        seconds: f64,
        /// Digest of all final weights.
        weights_digest: String,
    },
}

/// How good a network is on some samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Mean loss.
    #[serde(with = "number")]
    pub loss: f64,
    /// Share of samples whose label had the largest output.
    #[serde(with = "number")]
    pub top1: f64,
    /// Share of samples whose label was among the five largest outputs.
    #[serde(with = "number")]
    pub top5: f64,
}

impl MetricsLine {
    /// Steps done when it was written.
    pub fn step(&self) -> u64 {
        match self {
            MetricsLine::Step { step, .. }
            | MetricsLine::Epoch { step, .. }
            | MetricsLine::Digest { step, .. }
            | MetricsLine::End { step, .. } => *step,
        }
    }

    fn text(&self) -> String {
        let mut text = serde_json::to_string(self).expect("bug: metrics are JSON");
        text.push('\n');
        text
    }
}

/// The lines of a file of metrics.
pub fn read(path: &Path) -> Result<Vec<MetricsLine>, Error> {
    let bytes = fs::read(path).map_err(Error::file("read", path))?;
    let mut lines = Vec::new();
    // What follows the last line's end was cut off by a crash, or is nothing.
    let whole = &bytes[..bytes.iter().rposition(|&b| b == b'\n').unwrap_or(0)];
    for (i, line) in whole.split(|&b| b == b'\n').enumerate() {
        if !line.is_empty() {
            let parsed = serde_json::from_slice(line);
            lines.push(parsed.map_err(|cause| Error::Metrics { path: path.to_path_buf(), line: i + 1, cause })?);
        }
    }
    Ok(lines)
}

/// A file of metrics that grows.
#[derive(Debug)]
pub struct MetricsLog {
    path: PathBuf,
    file: File,
}

impl MetricsLog {
    /// Begins a file that must not exist.
    pub fn create(path: &Path) -> Result<MetricsLog, Error> {
        let file = OpenOptions::new().append(true).create_new(true).open(path).map_err(Error::file("create", path))?;
        Ok(MetricsLog { path: path.to_path_buf(), file })
    }

    /// Goes on after a step: lines of later steps, and that the run ended, are taken out.
    pub fn resume(path: &Path, step: u64) -> Result<MetricsLog, Error> {
        let mut lines = read(path)?;
        lines.retain(|line| line.step() <= step && !matches!(line, MetricsLine::End { .. }));
        let text: String = lines.iter().map(MetricsLine::text).collect();
        whole::write(path, &|out| out.write_all(text.as_bytes()))?;
        let file = OpenOptions::new().append(true).open(path).map_err(Error::file("open", path))?;
        Ok(MetricsLog { path: path.to_path_buf(), file })
    }

    /// Appends a line; others see it at once.
    pub fn append(&mut self, line: &MetricsLine) -> Result<(), Error> {
        self.file.write_all(line.text().as_bytes()).map_err(Error::file("write", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<MetricsLine> {
        let scores = Scores { loss: 0.25, top1: 0.9, top5: 1.0 };
        vec![
            MetricsLine::Step { step: 1, epoch: 1, loss: 2.25, learning_rate: 0.1, seconds: 0.5 },
            MetricsLine::Digest { step: 1, layers: vec![("conv".into(), "0123456789abcdef".into())] },
            MetricsLine::Epoch { epoch: 1, step: 2, train: scores, test: None, seconds: 1.0, wait_seconds: 0.0 },
            MetricsLine::Step { step: 3, epoch: 2, loss: f64::INFINITY, learning_rate: 0.1, seconds: 0.5 },
            MetricsLine::End {
                step: 3,
                train_loss: 0.1,
                test: Some(scores),
                seconds: 2.0,
                weights_digest: "ab".into(),
            },
        ]
    }

    #[test]
    fn lines_look_as_documented() {
        let document = include_str!("../../../docs/formats.md");
        let finite = |line: &&MetricsLine| !matches!(line, MetricsLine::Step { step: 3, .. });
        let text: String = lines().iter().filter(finite).map(MetricsLine::text).collect();
        assert!(document.contains(&format!("```json\n{text}```")), "docs/formats.md should show\n{text}");
        assert!(lines()[3].text().contains(r#""loss":"inf""#));
    }

    #[test]
    fn lines_come_back_and_a_cut_off_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut log = MetricsLog::create(&path).unwrap();
        assert_eq!(read(&path).unwrap(), []);
        for line in lines() {
            log.append(&line).unwrap();
        }
        assert_eq!(read(&path).unwrap(), lines());
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        assert_eq!(read(&path).unwrap(), lines()[..4]);
        assert!(MetricsLog::create(&path).unwrap_err().to_string().starts_with("cannot create "));
    }

    #[test]
    fn resuming_takes_out_what_is_done_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut log = MetricsLog::create(&path).unwrap();
        lines().iter().for_each(|line| log.append(line).unwrap());
        let mut log = MetricsLog::resume(&path, 3).unwrap();
        assert_eq!(read(&path).unwrap(), lines()[..4]);
        log.append(&lines()[4]).unwrap();
        assert_eq!(read(&path).unwrap(), lines());
        MetricsLog::resume(&path, 2).unwrap();
        assert_eq!(read(&path).unwrap(), lines()[..3]);
    }

    #[test]
    fn a_bad_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, "{\"kind\":\"digest\",\"step\":1,\"layers\":[]}\n{\"kind\":\"stop\"}\n").unwrap();
        let text = read(&path).unwrap_err().to_string();
        assert!(
            text.starts_with(&format!("{}, line 2: not a line of metrics\n  cause: unknown", path.display())),
            "{text}"
        );
    }
}
