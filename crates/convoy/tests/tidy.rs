//! Tidiness: which crate may use which, why each dependency is there, what must not be left lying about.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// For each crate, the crates it may use.
const EDGES: [(&str, &[&str]); 10] = [
    ("net", &[]),
    ("kernels", &["net"]),
    ("split", &["net"]),
    ("comm", &[]),
    ("predict", &["net", "split", "kernels", "program"]),
    ("plan", &["net", "split", "kernels", "program", "predict"]),
    ("program", &["net", "split", "kernels"]),
    ("engine", &["net", "split", "kernels", "program", "comm"]),
    ("train", &["net", "split", "kernels", "program", "comm", "engine"]),
    ("convoy", &["net", "split", "kernels", "program", "comm", "engine", "train", "predict", "plan"]),
];

/// Crates that may contain unsafe code; `comm` in its module `mpi` alone.
const UNSAFE: [&str; 3] = ["kernels", "engine", "comm"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a root").to_path_buf()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All dependencies of all crates, those for tests included: crate by crate.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates") {
        let folder = entry.expect("a crate").path();
        let manifest: toml::Table = read(&folder.join("Cargo.toml")).parse().expect("a manifest");
        let tables = ["dependencies", "dev-dependencies", "build-dependencies"];
        let names = tables.iter().filter_map(|table| manifest.get(*table)?.as_table()).flat_map(|table| table.keys());
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        all.insert(name, names.cloned().collect());
    }
    all
}

/// Text files that are ours, by their endings.
fn sources() -> Vec<PathBuf> {
    let mut found = vec![];
    let mut folders: Vec<PathBuf> =
        ["crates", "docs", "scripts", ".ci"].map(|name| root().join(name)).into_iter().filter(|f| f.exists()).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let ends = |ends: &[&str]| path.extension().is_none_or(|e| ends.iter().any(|end| e == *end));
            if path.is_dir() {
                folders.push(path);
            } else if ends(&["rs", "md", "toml", "sh", "py"]) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn crates_use_only_what_is_upstream() {
    let found = dependencies();
    assert_eq!(found.keys().collect::<BTreeSet<_>>().len(), EDGES.len(), "a crate without a place in the map");
    for (name, allowed) in EDGES {
        for used in found[name].iter().filter_map(|used| used.strip_prefix("convoy-")) {
            assert!(allowed.contains(&used), "`{name}` must not use `{used}`");
        }
    }
}

#[test]
fn every_dependency_is_explained() {
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let section = architecture.split("## Dependencies").nth(1).expect("ARCHITECTURE.md has a section on dependencies");
    let section = section.split("\n## ").next().unwrap_or(section);
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    let explained: BTreeSet<&str> =
        rows.iter().flat_map(|row| row.split('|').nth(1).unwrap_or("").split('`').skip(1).step_by(2)).collect();
    let used: BTreeSet<String> = dependencies().into_values().flatten().filter(|d| !d.starts_with("convoy-")).collect();
    let used: BTreeSet<&str> = used.iter().map(String::as_str).collect();
    assert_eq!(explained, used, "ARCHITECTURE.md explains those on the left, crates use those on the right");
}

#[test]
fn nothing_is_left_lying_about() {
    // Spelled in parts, so that this file is not found.
    let words =
        [["FIX", "ME"], ["XX", "X"], ["dbg", "!("], ["todo", "!("], ["unimpl", "emented!("]].map(|w| w.concat());
    for path in sources() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            let left = words.iter().find(|word| line.contains(*word));
            assert!(left.is_none(), "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

#[test]
fn only_kernels_engine_and_mpi_are_unsafe() {
    for (name, _) in EDGES {
        let library = read(&root().join("crates").join(name).join("src/lib.rs"));
        let forbids = library.contains("#![forbid(unsafe_code)]");
        assert_eq!(forbids, !UNSAFE.contains(&name), "crate `{name}`");
    }
    let comm = root().join("crates/comm/src");
    assert!(read(&comm.join("lib.rs")).contains("#![deny(unsafe_code)]"));
    for entry in fs::read_dir(&comm).expect("sources") {
        let path = entry.expect("a source").path();
        let allows = read(&path).contains("allow(unsafe_code");
        let may = path.ends_with("mpi.rs") || path.ends_with("library.rs");
        assert_eq!(allows, may, "{}", path.display());
    }
}
