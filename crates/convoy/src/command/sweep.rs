//! `convoy sweep`: how strategies compare as one thing changes: the batch, cores, memory, links, or the number of nodes.
//!
//! The five axes of Castelló et al. 2021 (PAPERS: performance modelling of data and model parallelism), with any strategies; over
//! nodes, strong scaling with a fixed batch or weak scaling with one that grows.

use super::question::{Asked, arguments};
use super::simulate::small_seconds;
use super::{json_argument, path, path_argument, say};
use crate::error::{Error, Errors};
use crate::words::{grouped, table};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::json;

const AXES: [&str; 5] = ["batch", "flops", "memory-bandwidth", "link-bandwidth", "nodes"];

pub fn definition() -> Command {
    Command::new("sweep")
        .about("How strategies compare as the batch, cores, memory, links or the number of nodes change")
        .after_help(
            "Simulates a step for every value and strategy. Values are samples for batch, numbers of nodes for nodes (--ranks is\n\
             then ranks of one node), and factors of what the machine has for the others.",
        )
        .args(arguments())
        .arg(
            Arg::new("axis")
                .long("axis")
                .value_name("AXIS")
                .required(true)
                .value_parser(PossibleValuesParser::new(AXES))
                .help("what changes"),
        )
        .arg(Arg::new("values").long("values").value_name("LIST").help("its values, such as 1,2,4,8 [default: some for each axis]"))
        .arg(
            Arg::new("strategies")
                .long("strategies")
                .value_name("LIST")
                .default_value("data;filter")
                .help("strategies, with semicolons between them"),
        )
        .arg(Arg::new("growing").long("growing").action(ArgAction::SetTrue).help("over nodes: the batch is that of one node"))
        .arg(path_argument("csv").long("csv").value_name("FILE").help("all numbers, as CSV"))
        .arg(path_argument("svg").long("svg").value_name("FILE").help("images a second over the axis, as a plot"))
        .arg(json_argument())
}

/// One strategy at one value.
struct Point {
    value: f64,
    strategy: String,
    batch: usize,
    ranks: usize,
    step_seconds: f64,
    estimate: convoy_predict::Estimate,
}

impl Point {
    fn images_per_second(&self) -> f64 {
        self.batch as f64 / self.step_seconds
    }
}

pub fn run(matches: &ArgMatches) -> Result<(), Errors> {
    let axis = matches.get_one::<String>("axis").expect("bug: required").clone();
    let strategies = matches.get_one::<String>("strategies").expect("bug: it has a default");
    let strategies: Vec<String> =
        strategies.split(';').map(|s| s.trim().to_string()).filter(|s| !s.is_empty()).collect();
    let values = values(matches, &axis)?;
    let (mut points, mut flaws) = (vec![], vec![]);
    for &value in &values {
        let asked = at(Asked::new(matches)?, &axis, value, matches.get_flag("growing"))?;
        for text in &strategies {
            match asked.strategy(text).and_then(|strategy| asked.simulate(&strategy, false)) {
                Ok(found) => points.push(Point {
                    value,
                    strategy: text.clone(),
                    batch: asked.options.batch,
                    ranks: asked.ranks,
                    step_seconds: found.estimate.step_seconds,
                    estimate: found.estimate,
                }),
                Err(error) => flaws.push((value, text.clone(), error)),
            }
        }
    }
    if points.is_empty() {
        return Err(Errors(flaws.into_iter().map(|(_, _, error)| error).take(1).collect()));
    }
    tell(matches, &axis, &values, &strategies, &points, &flaws)
}

/// What was asked, with the axis at a value.
fn at(mut asked: Asked, axis: &str, value: f64, growing: bool) -> Result<Asked, Error> {
    let machine = &mut asked.machine;
    match axis {
        "flops" => machine.groups.iter_mut().for_each(|g| g.core_flops *= value),
        "memory-bandwidth" => machine.groups.iter_mut().for_each(|g| {
            g.core_bandwidth *= value;
            g.node_bandwidth *= value;
        }),
        "link-bandwidth" => machine.levels.iter_mut().for_each(|l| l.bandwidth *= value),
        "batch" => asked.set_batch(value as usize)?,
        _ => {
            let nodes = value as usize;
            asked.ranks_per_node = asked.ranks_per_node.or(Some(asked.ranks));
            asked.ranks *= nodes;
            if growing {
                asked.set_batch(asked.options.batch * nodes)?;
            }
        }
    }
    Ok(asked)
}

fn values(matches: &ArgMatches, axis: &str) -> Result<Vec<f64>, Error> {
    let usual = match axis {
        "batch" => "32,64,128,256,512",
        "nodes" => "1,2,4,8,16",
        _ => "0.25,0.5,1,2,4",
    };
    let text = matches.get_one::<String>("values").map_or(usual, String::as_str);
    let whole = matches!(axis, "batch" | "nodes");
    let is_good = |n: &f64| n.is_finite() && *n > 0.0 && *n <= 1e9 && (!whole || n.fract() == 0.0);
    let values: Option<Vec<f64>> = text.split(',').map(|w| w.trim().parse::<f64>().ok().filter(is_good)).collect();
    let wanted = if whole { "whole numbers above 0" } else { "numbers above 0" };
    values.ok_or_else(|| Error::flag("values", format!("\"{text}\" is not a list of {wanted}")))
}

fn tell(
    matches: &ArgMatches,
    axis: &str,
    values: &[f64],
    strategies: &[String],
    points: &[Point],
    flaws: &[(f64, String, Error)],
) -> Result<(), Errors> {
    let find = |value: f64, strategy: &str| points.iter().find(|p| p.value == value && p.strategy == strategy);
    let row = |&value: &f64| {
        let mut words = vec![value.to_string()];
        for strategy in strategies {
            let point = find(value, strategy);
            words.push(point.map_or("-".into(), |p| small_seconds(p.step_seconds)));
            words.push(point.map_or("-".into(), |p| grouped(p.images_per_second().round() as u64)));
        }
        let fastest =
            points.iter().filter(|p| p.value == value).min_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
        words.push(fastest.map_or("-".into(), |p| p.strategy.clone()));
        words
    };
    let mut header = vec![axis.to_string()];
    strategies.iter().for_each(|s| header.extend([format!("{s}, step"), "images/s".into()]));
    header.push("fastest".into());
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    say(&table(&header, &[header.len() - 1], values.iter().map(row).collect()))?;
    let crossings = crossings(values, strategies, points);
    for (a, b, at) in &crossings {
        say(&format!("`{a}` and `{b}` are equally fast at {axis} {at:.3}"))?;
    }
    if let Some((value, strategy, error)) = flaws.first() {
        let (first, many) = (error.to_string(), flaws.len());
        say(&format!("not possible: {many}, such as `{strategy}` at {value}: {}", first.lines().next().unwrap_or("")))?;
    }
    if let Some(path) = path(matches, "csv") {
        std::fs::write(path, csv(axis, points)).map_err(Error::file("write", path))?;
    }
    if let Some(path) = path(matches, "svg") {
        std::fs::write(path, svg(axis, strategies, points)).map_err(Error::file("write", path))?;
    }
    if matches.get_flag("json") {
        let rows = points.iter().map(|p| {
            json!({
                "value": p.value, "strategy": p.strategy, "batch": p.batch, "ranks": p.ranks,
                "step_seconds": p.step_seconds, "images_per_second": p.images_per_second(),
            })
        });
        let crossings = crossings.iter().map(|(a, b, at)| json!({ "first": a, "second": b, "value": at }));
        let object = json!({
            "axis": axis, "points": rows.collect::<Vec<_>>(), "crossings": crossings.collect::<Vec<_>>(),
        });
        say(&object.to_string())?;
    }
    Ok(())
}

/// Where one strategy overtakes another: between two values, on straight lines through logarithms.
fn crossings(values: &[f64], strategies: &[String], points: &[Point]) -> Vec<(String, String, f64)> {
    let seconds = |value: f64, strategy: &str| {
        points.iter().find(|p| p.value == value && p.strategy == strategy).map(|p| p.step_seconds)
    };
    let mut found = vec![];
    for (i, a) in strategies.iter().enumerate() {
        for b in &strategies[i + 1..] {
            for pair in values.windows(2) {
                let ratio = |value: f64| Some((seconds(value, a)? / seconds(value, b)?).ln());
                if let (Some(x), Some(y)) = (ratio(pair[0]), ratio(pair[1]))
                    && x * y < 0.0
                {
                    let at = pair[0].ln() + (pair[1].ln() - pair[0].ln()) * x / (x - y);
                    found.push((a.clone(), b.clone(), at.exp()));
                }
            }
        }
    }
    found
}

fn csv(axis: &str, points: &[Point]) -> String {
    let mut text = format!(
        "{axis},strategy,batch,ranks,step_seconds,images_per_second,compute_seconds,halo_seconds,reduction_seconds,\
         redistribution_seconds,wait_seconds,memory_bytes\n"
    );
    for p in points {
        let phases = p.estimate.phases.named().map(|(_, seconds)| seconds.to_string()).join(",");
        text += &format!(
            "{},\"{}\",{},{},{},{},{phases},{}\n",
            p.value,
            p.strategy,
            p.batch,
            p.ranks,
            p.step_seconds,
            p.images_per_second(),
            p.estimate.memory_bytes
        );
    }
    text
}

/// Images a second over the axis, both in logarithms, a line for each strategy.
fn svg(axis: &str, strategies: &[String], points: &[Point]) -> String {
    const COLOURS: [&str; 6] = ["#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#555555"];
    let (width, height, margin) = (640.0, 400.0, 60.0);
    let span = |of: &dyn Fn(&Point) -> f64| {
        let all = points.iter().map(|p| of(p).ln());
        let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        (low, (high - low).max(1e-9))
    };
    let (xs, ys) = (span(&|p| p.value), span(&Point::images_per_second));
    let x = |p: &Point| margin + (p.value.ln() - xs.0) / xs.1 * (width - 2.0 * margin);
    let y = |p: &Point| height - margin - (p.images_per_second().ln() - ys.0) / ys.1 * (height - 2.0 * margin);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{axis}</text>\n\
         <text x=\"14\" y=\"{}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {})\">images/s</text>\n",
        width / 2.0,
        height - 15.0,
        height / 2.0,
        height / 2.0
    );
    for (i, strategy) in strategies.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let of: Vec<&Point> = points.iter().filter(|p| p.strategy == *strategy).collect();
        let line: Vec<String> = of.iter().map(|p| format!("{:.1},{:.1}", x(p), y(p))).collect();
        text += &format!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n",
            line.join(" ")
        );
        for p in of {
            text += &format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>\n", x(p), y(p));
            if i == 0 {
                text += &format!(
                    "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                    x(p),
                    height - margin + 18.0,
                    p.value
                );
            }
            text += &format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" text-anchor=\"middle\">{}</text>\n",
                x(p),
                y(p) - 7.0,
                grouped(p.images_per_second().round() as u64)
            );
        }
        let top = 20.0 + 16.0 * i as f64;
        text += &format!("<text x=\"{margin}\" y=\"{top}\" fill=\"{colour}\">{strategy}</text>\n");
    }
    text + "</svg>\n"
}
