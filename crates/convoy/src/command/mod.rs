//! The commands: what each takes, and which function does it.
//!
//! Flags for fields come from the table in `fields.rs`; shell completions from the definition here.

mod bed;
mod bench;
mod calibrate;
mod check;
mod eval;
mod models;
mod plan;
mod predict;
mod progress;
mod question;
mod simulate;
mod sweep;
mod times;
mod train;
mod validate;

use crate::draft::Draft;
use crate::error::{Error, Errors};
use crate::fields::{FIELDS, Field, Form, SECTIONS};
use crate::world::World;
use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use convoy_train::{Comparison, RunFolder};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything that can be typed.
pub fn definition() -> Command {
    Command::new("convoy")
        .about("Trains convolutional networks on as many cores as you have.")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(train::definition())
        .subcommand(eval::definition())
        .subcommand(predict::definition())
        .subcommand(bench::definition())
        .subcommand(plan::definition())
        .subcommand(simulate::definition())
        .subcommand(sweep::definition())
        .subcommand(calibrate::definition())
        .subcommand(models::definition())
        .subcommand(check::definition())
        .subcommand(
            Command::new("compare")
                .about("Whether two runs had the same weights; if not, the first step and layer that differ")
                .after_help(
                    "Compares the digests that two runs kept of their layers' weights (run.digest_every).\n\
                     Ends with 0 where they are the same, with 1 where they are not.",
                )
                .args([run_argument("RUN").required(true), run_argument("OTHER").required(true)]),
        )
        .subcommand(
            Command::new("completions")
                .about("A script that completes commands and flags in a shell")
                .arg(Arg::new("SHELL").required(true).value_parser(value_parser!(clap_complete::Shell))),
        )
}

/// Does what was typed; the result is the exit code.
pub fn run(matches: &ArgMatches) -> Result<u8, Errors> {
    let by_several = |(name, matches): &(&str, &ArgMatches)| match *name {
        "train" | "calibrate" => true,
        "bench" => matches.get_flag("validate"),
        _ => false,
    };
    if let Some((name, _)) = matches.subcommand().filter(|command| !by_several(command))
        && let Some(code) = World::alone(name)?
    {
        return Ok(code);
    }
    match matches.subcommand() {
        Some(("train", matches)) => train::run(matches),
        Some(("eval", matches)) => eval::run(matches).map(|()| 0),
        Some(("predict", matches)) => predict::run(matches).map(|()| 0),
        Some(("bench", matches)) => bench::run(matches),
        Some(("plan", matches)) => plan::run(matches).map(|()| 0),
        Some(("sweep", matches)) => sweep::run(matches).map(|()| 0),
        Some(("calibrate", matches)) => calibrate::run(matches),
        Some(("simulate", matches)) => simulate::run(matches).map(|()| 0),
        Some(("models", matches)) => models::run(matches).map(|()| 0),
        Some(("check", matches)) => check::run(matches).map(|()| 0),
        Some(("compare", matches)) => compare(matches),
        Some(("completions", matches)) => completions(matches).map(|()| 0),
        _ => unreachable!("bug: a command without a function"),
    }
}

fn compare(matches: &ArgMatches) -> Result<u8, Errors> {
    let open = |name: &str| RunFolder::open(path(matches, name).unwrap_or(Path::new("")));
    let (first, second) = (open("RUN").map_err(Error::from)?, open("OTHER").map_err(Error::from)?);
    let comparison = convoy_train::compare(&first, &second).map_err(Error::from)?;
    say(&comparison.to_string())?;
    Ok(if matches!(comparison, Comparison::Same { .. }) { 0 } else { 1 })
}

fn completions(matches: &ArgMatches) -> Result<(), Errors> {
    let shell = *matches.get_one::<clap_complete::Shell>("SHELL").expect("bug: required");
    let mut script = vec![];
    clap_complete::generate(shell, &mut definition(), "convoy", &mut script);
    Ok(say(String::from_utf8_lossy(&script).trim_end())?)
}

/// Prints lines on standard output, where a full disk or a closed pipe is an error like any other.
fn say(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|cause| Error::Output(Arc::new(cause)))
}

/// Prints what a person should know but a program that reads our output should not.
fn warn(text: &str) {
    convoy_comm::tell(&format!("warning: {text}"));
}

/// Flags for some fields, under the headings of their sections.
fn field_arguments(takes: impl Fn(&Field) -> bool) -> Vec<Arg> {
    FIELDS.iter().filter(|field| takes(field)).map(field_argument).collect()
}

fn field_argument(field: &'static Field) -> Arg {
    let of = if field.kinds.is_empty() { String::new() } else { format!(" ({})", field.kinds.join(", ")) };
    let heading = SECTIONS.iter().find(|(section, _)| *section == field.section()).map(|(_, heading)| *heading);
    let argument = Arg::new(field.key)
        .long(field.flag)
        .value_name(field.value)
        .help(format!("{}{of} [default: {}]", field.help, field.default_words()))
        .help_heading(heading)
        .allow_negative_numbers(true);
    match field.form {
        // A word that stands alone means true.
        Form::Truth => argument.num_args(0..=1).default_missing_value("true"),
        Form::File => argument.value_hint(clap::ValueHint::AnyPath),
        _ => argument,
    }
    .conflicts_with_all(if field.key == "network.file" { vec!["network.model"] } else { vec![] })
}

/// Lays all fields that were given as flags over a draft.
fn lay_flags(draft: &mut Draft, matches: &ArgMatches) {
    for field in FIELDS {
        if let Ok(Some(text)) = matches.try_get_one::<String>(field.key) {
            draft.set(field.key, text);
        }
    }
}

fn run_argument(name: &'static str) -> Arg {
    path_argument(name).help("the folder of a run")
}

fn path_argument(name: &'static str) -> Arg {
    Arg::new(name).value_parser(ValueParser::path_buf()).value_hint(clap::ValueHint::AnyPath)
}

fn path<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a Path> {
    matches.get_one::<PathBuf>(name).map(PathBuf::as_path)
}

fn json_argument() -> Arg {
    Arg::new("json").long("json").action(ArgAction::SetTrue).help("the last line of standard output is one JSON object")
}

/// Names of all models, for arguments that are one.
fn model_names() -> PossibleValuesParser {
    PossibleValuesParser::new(convoy_net::zoo::names().iter().map(|model| model.name))
}
