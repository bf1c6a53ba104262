//! Calibrations: what was measured of this computer, kept for the next time.
//!
//! A calibration is a machine's file (docs/machines.md) with measured tiles, marked with the version of the kernels and the name of
//! the computer: one of another version or another computer is noticed.

use crate::error::Error;
use crate::machine;
use convoy_predict::Machine;
use std::path::{Path, PathBuf};

/// The version of the kernels that this program has.
pub fn kernels_version() -> String {
    format!("convoy-kernels {}", env!("CARGO_PKG_VERSION"))
}

/// Where this computer's calibration is kept.
pub fn path() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("convoy").join("machine.toml"))
}

pub fn write(machine: &Machine, path: &Path) -> Result<(), Error> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
    }
    std::fs::write(path, machine.to_toml()).map_err(Error::file("write", path))
}

/// This computer's calibration, if there is one, and what is wrong with it, if anything is.
pub fn cached() -> Option<(Machine, Option<String>)> {
    let path = path()?;
    let text = std::fs::read_to_string(&path).ok()?;
    let place = path.display();
    match Machine::from_toml(&text) {
        Err(error) => {
            eprintln!("warning: the calibration {place} cannot be read: {error}\n  help: convoy calibrate");
            None
        }
        Ok(machine) => {
            let flaw = flaw(&machine).map(|flaw| format!("the calibration {place} {flaw}\n  help: convoy calibrate"));
            Some((machine, flaw))
        }
    }
}

/// What a calibration is not.
fn flaw(machine: &Machine) -> Option<String> {
    let (name, version) = (machine::name(), kernels_version());
    if machine.name != name {
        return Some(format!("is of another computer, {}; this is {name}", machine.name));
    }
    let made_with = machine.kernels.as_deref().unwrap_or("unknown kernels");
    (made_with != version).then(|| format!("was made with {made_with}; this is {version}"))
}
