//! Tidiness: every layer has its three files, only tests use reference code, and the guide shows what is there.

use std::fs;
use std::path::{Path, PathBuf};

/// The `crates` folder.
fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates live in a folder").to_path_buf()
}

/// Names of the Rust files of a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"));
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".rs")).collect();
    names.sort();
    names
}

#[test]
fn every_layer_has_three_files() {
    let layers = crates().join("net/src/layers");
    let twins = [crates().join("kernels/src/reference"), crates().join("kernels/src/fast")];
    let mut missing = vec![];
    for name in names(&layers) {
        // The list of layers, and the one that computes nothing.
        if ["mod.rs", "input.rs"].contains(&name.as_str()) {
            continue;
        }
        for folder in &twins {
            let file = folder.join(&name);
            if !file.exists() {
                missing.push(file);
            }
        }
    }
    assert!(missing.is_empty(), "layers without a twin: {missing:#?}");
}

/// All Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// A file's text without its tests, which stand at its end.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().expect("a first part")
}

/// Training steps cannot run reference code where nothing that they run names it.
#[test]
fn only_tests_use_reference_code() {
    let judge = crates().join("kernels/src/twin.rs");
    let library = fs::read_to_string(crates().join("kernels/src/lib.rs")).expect("kernels");
    assert!(library.contains("#[cfg(test)]\nmod twin;"), "the judge uses reference code and must be for tests only");
    let mut found = vec![];
    for entry in fs::read_dir(crates()).expect("crates") {
        sources(&entry.expect("a crate").path().join("src"), &mut found);
    }
    assert!(found.contains(&judge), "{} is not where it was", judge.display());
    found.retain(|path| *path != judge && !path.starts_with(crates().join("kernels/src/reference")));
    for path in found {
        let text = fs::read_to_string(&path).expect("a source");
        for (number, line) in without_tests(&text).lines().enumerate() {
            let code = line.split("//").next().expect("a first part");
            assert!(!code.contains("reference::"), "{}:{}: {line}", path.display(), number + 1);
        }
    }
}

/// The files of the repository that prose names in backticks.
fn named(prose: &str) -> impl Iterator<Item = &str> {
    prose.split('`').skip(1).step_by(2).filter(|name| name.starts_with("crates/") && name.contains('.'))
}

/// Every block of code in the guide stands, line for line, in the file that was named last before it; every file that it
/// names is there. Blocks without a language are commands.
#[test]
fn the_guide_to_adding_a_layer_shows_what_is_there() {
    let root = crates().parent().expect("a root").to_path_buf();
    let guide = fs::read_to_string(root.join("docs/adding-a-layer.md")).expect("the guide");
    let (mut text, mut shown) = (String::new(), 0);
    for (i, part) in guide.split("```").enumerate() {
        if i % 2 == 0 {
            for name in named(part) {
                let file = fs::read_to_string(root.join(name));
                text = file.unwrap_or_else(|e| panic!("the guide names `{name}`: {e}"));
            }
        } else if let Some((language, code)) = part.split_once('\n')
            && !language.is_empty()
        {
            assert!(text.contains(code), "the file named last has not what the guide shows:\n{code}");
            shown += 1;
        }
    }
    assert!(shown > 10, "{shown} blocks of code were found");
}
