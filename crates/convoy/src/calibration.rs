//! Calibrations: what was measured of this computer, kept for the next time.
//!
//! A calibration is a machine's file (docs/machines.md) with measured tiles, marked with a digest of the kernels and the name of
//! the computer: one of other kernels or another computer is noticed. There is one for ranks that are threads, and one for ranks
//! that are processes.

use crate::error::Error;
use crate::links::Transport;
use crate::machine;
use convoy_comm::tell;
use convoy_net::suggestion;
use convoy_predict::Machine;
use std::path::{Path, PathBuf};

/// The kernels that this program has.
pub fn kernels_version() -> String {
    format!("convoy-kernels {} of sources {}", env!("CARGO_PKG_VERSION"), convoy_kernels::SOURCES)
}

/// Where this computer's calibration is kept.
pub fn path(transport: Transport) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    let name = match transport {
        Transport::Threads => "machine.toml",
        Transport::Mpi => "machine-mpi.toml",
    };
    Some(cache.join("convoy").join(name))
}

pub fn write(machine: &Machine, path: &Path) -> Result<(), Error> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
    }
    std::fs::write(path, machine.to_toml()).map_err(Error::file("write", path))
}

/// This computer's calibration, if there is one, and what is wrong with it, if anything is.
pub fn cached(transport: Transport) -> Option<(Machine, Option<String>)> {
    let path = path(transport)?;
    let text = std::fs::read_to_string(&path).ok()?;
    let place = path.display();
    match Machine::from_toml(&text) {
        Err(error) => {
            tell(&format!("warning: the calibration {place} cannot be read: {error}\n  help: convoy calibrate"));
            None
        }
        Ok(machine) => {
            let flaw = flaw(&machine).map(|flaw| format!("the calibration {place} {flaw}\n  help: convoy calibrate"));
            Some((machine, flaw))
        }
    }
}

/// The same, if nothing is wrong with it; what is wrong is told.
pub fn sound(transport: Transport) -> Option<Machine> {
    let (machine, flaw) = cached(transport)?;
    flaw.iter().for_each(|flaw| tell(&format!("warning: {flaw}")));
    flaw.is_none().then_some(machine)
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

/// A machine that a person named: a file, or one that comes with Convoy. `wrong` says where a name stands that is neither.
pub fn named(path: &Path, wrong: impl FnOnce(String) -> Error) -> Result<Machine, Error> {
    let name = path.to_string_lossy();
    if let Some(machine) = Machine::shipped(&name) {
        return Ok(machine);
    }
    if !path.exists() && !name.contains(['/', '.']) {
        let known: Vec<&str> = Machine::names().collect();
        let meant =
            suggestion(&name, known.iter().copied()).map_or(String::new(), |m| format!("did you mean `{m}`? Else "));
        return Err(wrong(format!("unknown machine `{name}`\n  help: {meant}one of {}, or a file", known.join(", "))));
    }
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    Machine::from_toml(&text).map_err(|error| Error::MachineFile { path: path.into(), error: Box::new(error) })
}
