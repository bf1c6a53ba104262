//! Progress: what a person sees while a network is trained. A bar on a terminal, plain lines elsewhere.

use super::say;
use crate::error::Error;
use crate::ready::Ready;
use crate::words::{grouped, percent, seconds};
use convoy_train::{EpochReport, Observer, Scores, StepReport};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Where there is no bar, a sign of life at least this often.
const SILENCE: Duration = Duration::from_secs(30);

/// Shows steps and epochs.
pub struct Progress {
    /// None where the output is no terminal.
    bar: Option<ProgressBar>,
    epochs: u64,
    batch: u64,
    has_classes: bool,
    last_line: Instant,
    /// Steps done at the last line.
    last_step: u64,
    /// The first thing that could not be printed.
    failed: Option<Error>,
}

impl Progress {
    pub fn new(ready: &Ready, first_step: u64) -> Progress {
        let (steps, per_epoch) = (ready.steps(), ready.steps_per_epoch());
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let bar = terminal.then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} steps, {msg}{eta} left");
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            bar.with_position(first_step).with_style(style.expect("bug: not a template"))
        });
        Progress {
            bar,
            epochs: steps.div_ceil(per_epoch),
            batch: ready.job.train.batch as u64,
            has_classes: ready.network.loss.takes_labels(),
            last_line: Instant::now(),
            last_step: first_step,
            failed: None,
        }
    }

    /// Takes the bar away; tells if something could not be printed.
    pub fn finish(self) -> Result<(), Error> {
        self.bar.inspect(ProgressBar::finish_and_clear);
        self.failed.map_or(Ok(()), Err)
    }

    fn line(&mut self, text: &str, step: u64) {
        let result = match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        };
        (self.last_line, self.last_step) = (Instant::now(), step);
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }

    fn scores(&self, scores: &Scores) -> String {
        about_scores(scores, self.has_classes)
    }
}

/// Loss and, where there are classes, accuracy.
pub fn about_scores(scores: &Scores, has_classes: bool) -> String {
    match has_classes {
        _ if scores.loss.is_nan() => about_loss(scores.loss),
        true => format!("{}, accuracy {}", about_loss(scores.loss), percent(scores.top1)),
        false => format!("loss {:.6}", scores.loss),
    }
}

/// A loss that is no number is an error, unless there is none.
fn about_loss(loss: f64) -> String {
    if loss.is_nan() { "no label counts".into() } else { format!("loss {loss:.4}") }
}

impl Observer for Progress {
    fn step(&mut self, report: &StepReport) {
        if let Some(bar) = &self.bar {
            bar.set_position(report.step);
            bar.set_message(about_loss(report.loss) + ", ");
        } else if self.last_line.elapsed() > SILENCE {
            let images = (report.step - self.last_step) * self.batch;
            let rate = images as f64 / self.last_line.elapsed().as_secs_f64();
            let (step, steps) = (grouped(report.step), grouped(report.steps));
            let loss = about_loss(report.loss);
            self.line(&format!("step {step} of {steps}: {loss}, {rate:.0} images/s"), report.step);
        }
    }

    fn epoch(&mut self, report: &EpochReport) {
        let test = report.test.as_ref().map_or(String::new(), |test| format!("; test {}", self.scores(test)));
        let line = format!(
            "epoch {} of {}: {}{test}; {}, {:.0} images/s, waited {} for data",
            report.epoch,
            self.epochs,
            self.scores(&report.train),
            seconds(report.seconds),
            report.images_per_second,
            seconds(report.wait_seconds)
        );
        self.line(&line, self.last_step);
    }
}
