//! The program as others see it: arguments in, exit code and text out.

#![allow(dead_code, reason = "every test file uses its own part of this")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A grey picture of 2x2 points: black and white above white and black.
#[rustfmt::skip]
pub const PNG: [u8; 69] = [
    137, 80, 78, 71, 13, 10, 26, 10, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0, 0, 2, 0, 0, 0, 2, 8, 0, 0, 0, 0, 87, 221,
    82, 248, 0, 0, 0, 12, 73, 68, 65, 84, 120, 218, 99, 96, 248, 15, 132, 0, 6, 0, 1, 255, 173, 44, 55, 37, 0, 0,
    0, 0, 73, 69, 78, 68, 174, 66, 96, 130,
];

/// A folder to work in, removed afterwards.
pub struct Place {
    folder: TempDir,
}

/// What a command left.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Place {
    pub fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder to work in") }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(&path, contents).expect("a file");
        path
    }

    /// The command with these words.
    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_convoy"));
        command.args(words.split_whitespace()).current_dir(self.path()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, words: &str) -> Ran {
        finish(&mut self.command(words))
    }

    pub fn start(&self, words: &str) -> Child {
        self.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("convoy starts")
    }

    /// The output of a command that must end well.
    pub fn good(&self, words: &str) -> String {
        let ran = self.run(words);
        assert_eq!(ran.code, Some(0), "convoy {words}\n{}\n{}", ran.out, ran.err);
        ran.out
    }

    /// The object on the last line of a command that must end well.
    pub fn json(&self, words: &str) -> serde_json::Value {
        let out = self.good(&format!("{words} --json"));
        let last = out.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("convoy {words}: {error}: {last}"))
    }

    /// The text of a command that must fail, without panicking and without a word on standard output.
    pub fn bad(&self, words: &str) -> String {
        let ran = self.run(words);
        assert!(matches!(ran.code, Some(1 | 2)), "convoy {words}: {ran:?}");
        assert!(!ran.err.contains("panicked") && !ran.err.contains("bug"), "convoy {words}: {}", ran.err);
        assert!(ran.err.starts_with("error: "), "convoy {words}: {}", ran.err);
        ran.err
    }

    /// Folders of runs, oldest first.
    pub fn runs(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.path().join("runs")) else { return vec![] };
        let mut runs: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        runs.sort();
        runs
    }
}

pub fn finish(command: &mut Command) -> Ran {
    let output = command.output().expect("the program runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is text");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}
