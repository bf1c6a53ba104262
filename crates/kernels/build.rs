//! A digest of this crate's sources: what was measured with other kernels is noticed by it (`SOURCES` in `lib.rs`).

use std::path::{Path, PathBuf};
use std::{fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=src");
    let mut files = vec![];
    collect(Path::new("src"), &mut files)?;
    files.sort();
    // FNV-1a over names and contents.
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for path in files {
        let text = fs::read(&path)?;
        for byte in path.to_string_lossy().bytes().chain([0]).chain(text).chain([0]) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=CONVOY_KERNELS_SOURCES={digest:016x}");
    Ok(())
}

/// All files below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}
