//! The bytes of a data file, read by position.
//!
//! Always true
//! - Nothing is allocated on the word of a header: a plain file stays on disk, and what a compressed one holds grows as it
//!   is decompressed.
//! - Reads may come from many threads at once; a read past the end is an error, also when the file shrank since it was opened.

use super::DataError;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Above this many bytes a digest looks at spots instead of everything: it is to notice another file, not to guard it.
const WHOLE_BYTES: u64 = 256 << 20;
const SPOT_BYTES: u64 = 1 << 20;
const SPOTS: u64 = 256;

/// A data file: on disk, or in memory where it had to be decompressed.
pub(super) struct Contents {
    /// How errors call it.
    pub path: PathBuf,
    store: Store,
}

enum Store {
    Disk { file: File, bytes: u64 },
    Memory(Vec<u8>),
}

impl Contents {
    /// Opens a file; one whose name ends in `.gz` is decompressed.
    pub fn open(path: &Path) -> Result<Contents, DataError> {
        let cannot = |error| DataError::Io { path: path.to_owned(), error };
        let mut file = File::open(path).map_err(cannot)?;
        let bytes = file.metadata().map_err(cannot)?.len();
        let store = if path.extension().is_some_and(|e| e == "gz") {
            let mut compressed = Vec::new();
            file.read_to_end(&mut compressed).map_err(cannot)?;
            Store::Memory(decompress(path, &compressed)?)
        } else {
            Store::Disk { file, bytes }
        };
        Ok(Contents { path: path.to_owned(), store })
    }

    /// A gzip file that is part of the binary.
    pub fn embedded(name: &str, compressed: &'static [u8]) -> Result<Contents, DataError> {
        let path = PathBuf::from(name);
        let store = Store::Memory(decompress(&path, compressed)?);
        Ok(Contents { path, store })
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        match &self.store {
            Store::Disk { bytes, .. } => *bytes,
            Store::Memory(all) => all.len() as u64,
        }
    }

    /// Fills `into` with the bytes from `offset` on.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), DataError> {
        match &self.store {
            Store::Disk { file, .. } => file.read_exact_at(into, offset).map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => self.truncated(offset + into.len() as u64),
                _ => DataError::Io { path: self.path.clone(), error },
            }),
            Store::Memory(all) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let found = from.checked_add(into.len()).and_then(|to| all.get(from..to));
                into.copy_from_slice(found.ok_or_else(|| self.truncated(offset + into.len() as u64))?);
                Ok(())
            }
        }
    }

    /// Whether it has exactly the bytes that its header asks for.
    pub fn expect_bytes(&self, wanted: u64) -> Result<(), DataError> {
        match self.bytes() {
            found if found < wanted => Err(self.truncated(wanted)),
            found if found > wanted => Err(DataError::TooLong { path: self.path.clone(), found, wanted }),
            _ => Ok(()),
        }
    }

    fn truncated(&self, wanted: u64) -> DataError {
        DataError::Truncated { path: self.path.clone(), found: self.bytes(), wanted }
    }

    /// Adds length and content to a digest; of a very large file, evenly spaced pieces of it.
    pub fn hash(&self, hasher: &mut blake3::Hasher) -> Result<(), DataError> {
        let bytes = self.bytes();
        hasher.update(&bytes.to_le_bytes());
        let (spots, step) = match bytes {
            0..=WHOLE_BYTES => (bytes.div_ceil(SPOT_BYTES), SPOT_BYTES),
            _ => (SPOTS, (bytes - SPOT_BYTES) / (SPOTS - 1)),
        };
        let mut piece = vec![0; SPOT_BYTES.min(bytes) as usize];
        for offset in (0..spots).map(|spot| spot * step) {
            let size = (bytes - offset).min(SPOT_BYTES) as usize;
            self.read_at(offset, &mut piece[..size])?;
            hasher.update(&piece[..size]);
        }
        Ok(())
    }
}

fn decompress(path: &Path, compressed: &[u8]) -> Result<Vec<u8>, DataError> {
    let mut decoder = flate2::bufread::MultiGzDecoder::new(compressed);
    let mut all = Vec::new();
    match decoder.read_to_end(&mut all) {
        Ok(_) => Ok(all),
        Err(cause) => {
            let byte = (compressed.len() - decoder.get_ref().len()) as u64;
            Err(DataError::Gzip { path: path.to_owned(), byte, cause: cause.to_string() })
        }
    }
}
