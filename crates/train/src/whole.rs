//! Whole files: a file is there entirely or not at all, also after a crash or on a full disk.
//!
//! Always true
//! - The content is written aside (`<name>.tmp`), synced, renamed into place, and the folder synced.
//! - Until the rename the file that was there before is untouched; a failure leaves no `.tmp`.
//!
//! Knows nothing of what the files hold.

use crate::Error;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What ends the name of a file that is not whole yet.
pub(crate) const ASIDE: &str = ".tmp";

/// A file being written. The second implementation is the full disk of the tests.
pub(crate) trait Target: Write {
    /// Returns once the bytes are safe.
    fn sync(&mut self) -> io::Result<()>;
}

impl Target for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

/// Writes a file that is whole or absent.
pub(crate) fn write(path: &Path, content: &dyn Fn(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
    write_to(path, &|aside| Ok(Box::new(File::create(aside)?)), content)
}

/// The same, to whatever `open` opens.
pub(crate) fn write_to(
    path: &Path,
    open: &dyn Fn(&Path) -> io::Result<Box<dyn Target>>,
    content: &dyn Fn(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let aside = aside(path);
    let result = fill(&aside, open, content).and_then(|()| fs::rename(&aside, path)).and_then(|()| sync_folder(path));
    result.map_err(|cause| {
        // What is aside is worthless now; if it cannot be removed either, the first error is the one to tell.
        let _ = fs::remove_file(&aside);
        Error::File { action: "write", path: path.to_path_buf(), cause }
    })
}

fn fill(
    aside: &Path,
    open: &dyn Fn(&Path) -> io::Result<Box<dyn Target>>,
    content: &dyn Fn(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffered = BufWriter::with_capacity(1 << 20, open(aside)?);
    content(&mut buffered)?;
    let mut target = buffered.into_inner().map_err(|e| e.into_error())?;
    target.flush()?;
    target.sync()
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(ASIDE);
    name.into()
}

/// Makes a rename last. Only Unix lets folders be opened and synced; elsewhere the rename itself must do.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// A disk with little space, for tests here and in `checkpoint`.
#[cfg(test)]
pub(crate) struct SmallDisk {
    pub file: File,
    /// Bytes that still fit.
    pub space: usize,
    /// Whether syncing works.
    pub sync: bool,
}

#[cfg(test)]
impl Write for SmallDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.space == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.file.write(&bytes[..bytes.len().min(self.space)])?;
        self.space -= written;
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
impl Target for SmallDisk {
    fn sync(&mut self) -> io::Result<()> {
        if self.sync { self.file.sync_all() } else { Err(io::ErrorKind::StorageFull.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for text in ["first", "2"] {
            write(&path, &|out| out.write_all(text.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_full_disk_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old").unwrap();
        for (space, sync) in [(0, true), (1, true), (4, true), (5, false)] {
            let open = |aside: &Path| -> io::Result<Box<dyn Target>> {
                Ok(Box::new(SmallDisk { file: File::create(aside)?, space, sync }))
            };
            let error = write_to(&path, &open, &|out| out.write_all(b"newer")).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with(&format!("cannot write {}\n  cause: ", path.display())), "{text}");
            assert!(text.contains("help: free some space"), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "old");
            assert_eq!(names(folder.path()), ["a"]);
        }
    }

    #[test]
    fn a_folder_that_is_a_file_is_one_clear_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = write(&file.join("a"), &|out| out.write_all(b"x")).unwrap_err();
        assert!(error.to_string().starts_with("cannot write "), "{error}");
        assert_eq!(names(folder.path()), ["file"]);
    }
}
