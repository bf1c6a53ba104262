//! Documents: what they show is what happens.

mod program;

use convoy::fields;
use program::Place;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a root").to_path_buf()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The blocks of a page that are in a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap_or(rest)).collect()
}

const BEGIN: &str = "<!-- fields: written by the tests from crates/convoy/src/fields.rs -->\n";
const END: &str = "<!-- end of fields -->";

#[test]
fn the_page_about_jobs_lists_every_field() {
    let page = read("docs/job.md");
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for fields");
    let (shown, after) = rest.split_once(END).expect("the place for fields ends");
    let wanted = format!("\n{}", fields::reference());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let page = format!("{before}{BEGIN}{wanted}{END}{after}");
        std::fs::write(root().join("docs/job.md"), page).expect("docs/job.md can be written");
    } else {
        assert!(shown == wanted, "docs/job.md is old: UPDATE_GOLDEN=1 cargo test -p convoy");
    }
}

#[test]
fn jobs_in_documents_are_jobs() {
    let pages = ["README.md", "docs/job.md"].map(read);
    let jobs: Vec<&str> = pages.iter().flat_map(|page| blocks(page, "toml")).collect();
    assert!(!jobs.is_empty());
    for job in jobs {
        convoy::Job::from_toml(job).unwrap_or_else(|errors| panic!("{errors}\n{job}"));
    }
}

/// Commands of the program in the order they are shown, run one after the other in one folder, with few steps.
#[test]
fn commands_in_the_readme_work() {
    let place = Place::new();
    let page = read("README.md");
    let mut count = 0;
    for line in blocks(&page, "sh").iter().flat_map(|block| block.lines()) {
        let command = line.split(" #").next().unwrap_or(line).trim();
        let ours = command.strip_prefix("cargo run --release -- ").or_else(|| command.strip_prefix("convoy "));
        let Some(words) = ours else {
            let script = command.split_whitespace().next().unwrap_or_default();
            let known = script.is_empty() || ["cargo", "git", "cd"].contains(&script) || root().join(script).exists();
            assert!(known, "README.md shows `{command}`");
            continue;
        };
        count += 1;
        let mut words = words.to_string();
        if let Some(newest) = place.runs().last() {
            words = words.replace("RUN", newest.to_str().expect("a path is text"));
        }
        if words.starts_with("train") && !words.contains("--resume") {
            words += " --steps 4 --batch 16";
        }
        if words.starts_with("bench") {
            words += " --steps 1";
        }
        if let Some(job) = words.split_whitespace().find(|word| word.ends_with(".toml")) {
            place.file(job, blocks(&page, "toml").first().expect("the README shows a job"));
        }
        place.good(&words);
    }
    assert!(count >= 4, "{count} commands were found");
}
