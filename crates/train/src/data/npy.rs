//! NPY: NumPy's arrays, format versions 1 to 3, read by position; and written, for what a network predicts.
//!
//! Images are `[n, c, w]`, `[n, c, h, w]` or `[n, c, d, h, w]`; bytes are scaled to 0..1, other numbers are taken as they
//! are. Labels that are integers are classes: `[n]` per image, `[n, space]` or `[n, 1, space]` per point. Labels that are
//! floats are targets to be met: `[n]`, `[n, c]`, or `[n, c, space]`.
//!
//! Always true
//! - The file has exactly the bytes that its header promises, so every read of a sample inside the shape succeeds.

use super::arrays::{Array, Arrays, Element, Meaning, Possible, Targets, count_point_classes, read_labels};
use super::contents::Contents;
use super::{DataError, Dataset, NpyFiles, OpenOptions, Split, check_folder};
use crate::{Error, whole};
use convoy_net::Shape;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"\x93NUMPY";
/// No header of a plain array comes near; beyond it the length itself is damaged.
const LONGEST_HEADER: u32 = 1 << 16;

/// Opens images with labels.
pub(super) fn open(files: &NpyFiles, split: Split, options: &OpenOptions) -> Result<Box<dyn Dataset>, DataError> {
    let (images, labels) = find(files, split)?;
    let images = Header::read(Contents::open(&images)?)?;
    let labels = Header::read(Contents::open(&labels)?)?;
    if images.shape[0] != labels.shape[0] {
        return Err(DataError::Counts {
            images: images.contents.path,
            found: images.shape[0],
            labels: labels.contents.path,
            wanted: labels.shape[0],
        });
    }
    let dimensions = images.shape.len();
    let images = images.images()?;
    let (targets, classes) = labels.targets(dimensions, options)?;
    Ok(Box::new(Arrays { images: vec![images], targets, classes, names: &[] }))
}

/// Opens images to predict: there are no targets.
pub(super) fn unlabelled(path: &Path) -> Result<Arrays, DataError> {
    let images = Header::read(Contents::open(path)?)?.images()?;
    Ok(Arrays { images: vec![images], targets: Targets::None, classes: None, names: &[] })
}

fn find(files: &NpyFiles, split: Split) -> Result<(PathBuf, PathBuf), DataError> {
    let spec = || super::DataSpec::Npy(files.clone()).to_string();
    match (files, split) {
        (NpyFiles::Pair { images, labels }, Split::Train) => Ok((images.clone(), labels.clone())),
        (NpyFiles::Pair { .. }, Split::Test) => {
            Err(DataError::NoTest { spec: spec(), wanted: "other files are named".into() })
        }
        (NpyFiles::In { dir }, _) => {
            check_folder(dir)?;
            let part = if split == Split::Train { "train-" } else { "test-" };
            let pair = |part: &str| (dir.join(format!("{part}images.npy")), dir.join(format!("{part}labels.npy")));
            // Without a train part of its own the only images are the train part.
            let pairs = [pair(part), pair("")];
            let possible = if split == Split::Train { &pairs[..] } else { &pairs[..1] };
            let found = possible.iter().find(|(images, _)| images.exists());
            found.cloned().ok_or_else(|| match split {
                Split::Train => {
                    DataError::Missing { path: dir.clone(), wanted: "train-images.npy or images.npy".into() }
                }
                Split::Test => DataError::NoTest { spec: spec(), wanted: "test-images.npy".into() },
            })
        }
    }
}

/// What stands before the numbers of a file.
struct Header {
    contents: Contents,
    start: u64,
    element: Element,
    /// At least one size; all above 0.
    shape: Vec<usize>,
}

impl Header {
    fn read(contents: Contents) -> Result<Header, DataError> {
        let path = contents.path.clone();
        let wrong = |(byte, found, wanted): Wrong| DataError::Header { path: path.clone(), byte, found, wanted };
        let mut fixed = [0; 8];
        contents.read_at(0, &mut fixed)?;
        if &fixed[..6] != MAGIC {
            return Err(wrong((0, format!("{:02x?}", &fixed[..6]), "the start of an NPY file".into())));
        }
        let (at, length) = match fixed[6] {
            1 => {
                let mut length = [0; 2];
                contents.read_at(8, &mut length)?;
                (10, u16::from_le_bytes(length) as u32)
            }
            2 | 3 => {
                let mut length = [0; 4];
                contents.read_at(8, &mut length)?;
                (12, u32::from_le_bytes(length))
            }
            version => return Err(wrong((6, format!("format version {version}"), "1 to 3".into()))),
        };
        if length > LONGEST_HEADER {
            return Err(wrong((8, format!("a header of {length} bytes"), format!("at most {LONGEST_HEADER}"))));
        }
        let mut text = vec![0; length as usize];
        contents.read_at(at, &mut text)?;
        let (element, shape) = parse(&text).map_err(|(byte, found, wanted)| wrong((at + byte, found, wanted)))?;
        let start = at + length as u64;
        let numbers = shape.iter().try_fold(1u64, |all, &size| all.checked_mul(size as u64));
        let bytes = numbers.and_then(|n| n.checked_mul(element.bytes() as u64)?.checked_add(start));
        contents.expect_bytes(bytes.unwrap_or(u64::MAX))?;
        match shape.contains(&0) {
            true => Err(DataError::Empty { path }),
            false => Ok(Header { contents, start, element, shape }),
        }
    }

    fn wrong_shape<T>(&self, wanted: &str) -> Result<T, DataError> {
        let found = format!("an array of shape {:?}", self.shape);
        Err(DataError::Header { path: self.contents.path.clone(), byte: 0, found, wanted: wanted.into() })
    }

    fn array(self, shape: Shape, meaning: Meaning) -> Array {
        let stride = (shape.len() * self.element.bytes()) as u64;
        let (samples, element) = (self.shape[0], self.element);
        Array { contents: self.contents, start: self.start, stride, samples, shape, element, meaning }
    }

    fn images(self) -> Result<Array, DataError> {
        let shape = match self.shape[..] {
            [_, c, w] => Shape([1, c, 1, 1, w]),
            [_, c, h, w] => Shape([1, c, 1, h, w]),
            [_, c, d, h, w] => Shape([1, c, d, h, w]),
            _ => return self.wrong_shape("images: samples, channels and one to three sizes"),
        };
        Ok(self.array(shape, Meaning::Image))
    }

    fn targets(self, dimensions: usize, options: &OpenOptions) -> Result<(Targets, Option<usize>), DataError> {
        let space = |sizes: &[usize]| {
            let mut all = [1; 3];
            all[3 - sizes.len()..].copy_from_slice(sizes);
            all
        };
        // Where one array could be both, integers are labels per point and floats are channels.
        let labels = self.element.is_integer();
        let (channels, [d, h, w]) = match &self.shape[1..] {
            [] | [1] => (1, [1; 3]),
            sizes if labels && sizes.len() == dimensions - 2 => (1, space(sizes)),
            &[channels] if !labels => (channels, [1; 3]),
            [channels, sizes @ ..] if sizes.len() == dimensions - 2 && (!labels || *channels == 1) => {
                (*channels, space(sizes))
            }
            _ if labels => return self.wrong_shape("labels: one per image, or one per point"),
            _ => return self.wrong_shape("targets: samples, channels, and none or all of the images' sizes"),
        };
        let array = self.array(Shape([1, channels, d, h, w]), Meaning::Target);
        if !labels {
            return Ok((Targets::Values(array), None));
        }
        if array.shape.len() == 1 {
            let (labels, classes) = read_labels(&array, options.classes, options.ignore)?;
            return Ok((Targets::Labels(labels), Some(classes)));
        }
        let classes = match options.classes {
            Some(classes) => classes,
            None => count_point_classes(&array, options.ignore)?,
        };
        let possible = Possible { classes, ignore: options.ignore };
        Ok((Targets::Points { labels: array, possible }, Some(classes)))
    }
}

/// Byte, what was found there, what was wanted.
type Wrong = (u64, String, String);

/// Reads a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (60, 1, 28, 28), }`.
fn parse(text: &[u8]) -> Result<(Element, Vec<usize>), Wrong> {
    let mut text = Text { text, at: 0 };
    let (mut element, mut order, mut shape) = (None, None, None);
    text.expect(b'{')?;
    while !text.eat(b'}') {
        let byte = text.at;
        let key = text.quoted()?;
        text.expect(b':')?;
        match key {
            b"descr" => element = Some(text.element()?),
            b"fortran_order" => order = Some(text.c_order()?),
            b"shape" => shape = Some(text.shape()?),
            other => return Err((byte as u64, quote(other), "descr, fortran_order or shape".into())),
        }
        if !text.eat(b',') {
            text.expect(b'}')?;
            break;
        }
    }
    let end = text.at as u64;
    text.skip_space();
    if text.at < text.text.len() {
        return Err((text.at as u64, text.found(), "the end of the header".into()));
    }
    match (element, order, shape) {
        (Some(element), Some(()), Some(shape)) => Ok((element, shape)),
        _ => Err((end, "the end of the header".into(), "descr, fortran_order and shape".into())),
    }
}

/// A header while it is read.
struct Text<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Text<'a> {
    fn skip_space(&mut self) {
        self.at += self.text[self.at..].iter().take_while(|b| b.is_ascii_whitespace()).count();
    }

    fn eat(&mut self, byte: u8) -> bool {
        self.skip_space();
        let found = self.text.get(self.at) == Some(&byte);
        self.at += found as usize;
        found
    }

    fn expect(&mut self, byte: u8) -> Result<(), Wrong> {
        match self.eat(byte) {
            true => Ok(()),
            false => Err((self.at as u64, self.found(), format!("`{}`", byte as char))),
        }
    }

    fn found(&self) -> String {
        self.text.get(self.at).map_or("the end of the header".into(), |b| quote(&[*b]))
    }

    fn quoted(&mut self) -> Result<&'a [u8], Wrong> {
        let mark = if self.eat(b'"') { b'"' } else { b'\'' };
        if mark == b'\'' {
            self.expect(mark)?;
        }
        let rest = &self.text[self.at..];
        let len = rest.iter().position(|&b| b == mark);
        let len = len.ok_or_else(|| (self.at as u64, "a text without end".into(), format!("`{}`", mark as char)))?;
        self.at += len + 1;
        Ok(&rest[..len])
    }

    fn word(&mut self) -> &'a [u8] {
        self.skip_space();
        let rest = &self.text[self.at..];
        let len = rest.iter().take_while(|b| b.is_ascii_alphanumeric()).count();
        self.at += len;
        &rest[..len]
    }

    fn element(&mut self) -> Result<Element, Wrong> {
        self.skip_space();
        let byte = self.at as u64;
        let descr = self.quoted()?;
        let wanted = "numbers of type u1, i1, u2, i2, u4, i4, u8, i8, f2, f4, f8 or b1";
        match descr {
            [b'<' | b'|' | b'=', kind @ ..] => match kind {
                b"u1" => Ok(Element::U8),
                // Truth is 0 or 1, not a brightness of 255.
                b"i1" | b"b1" => Ok(Element::I8),
                b"u2" => Ok(Element::U16),
                b"i2" => Ok(Element::I16),
                b"u4" => Ok(Element::U32),
                b"i4" => Ok(Element::I32),
                b"u8" => Ok(Element::U64),
                b"i8" => Ok(Element::I64),
                b"f2" => Ok(Element::F16),
                b"f4" => Ok(Element::F32),
                b"f8" => Ok(Element::F64),
                _ => Err((byte, quote(descr), wanted.into())),
            },
            [b'>', ..] => {
                let help = "little-endian numbers (save array.astype(array.dtype.newbyteorder('<')))";
                Err((byte, quote(descr), help.into()))
            }
            _ => Err((byte, quote(descr), wanted.into())),
        }
    }

    fn c_order(&mut self) -> Result<(), Wrong> {
        self.skip_space();
        let byte = self.at as u64;
        match self.word() {
            b"False" => Ok(()),
            b"True" => Err((byte, "Fortran order".into(), "C order (save numpy.ascontiguousarray(array))".into())),
            other => Err((byte, quote(other), "True or False".into())),
        }
    }

    fn shape(&mut self) -> Result<Vec<usize>, Wrong> {
        let mut sizes = Vec::new();
        self.expect(b'(')?;
        while !self.eat(b')') {
            let byte = self.at as u64;
            let word = self.word();
            let size = std::str::from_utf8(word).ok().and_then(|w| w.parse().ok());
            sizes.push(size.ok_or_else(|| (byte, quote(word), "a size".into()))?);
            if !self.eat(b',') {
                self.expect(b')')?;
                break;
            }
        }
        match sizes.is_empty() {
            true => Err((self.at as u64, "no size".into(), "an array with samples".into())),
            false => Ok(sizes),
        }
    }
}

fn quote(bytes: &[u8]) -> String {
    format!("`{}`", bytes.escape_ascii())
}

/// Writes an array of f32, format version 1: whole or not at all.
pub fn write_npy(path: &Path, shape: &[usize], numbers: &[f32]) -> Result<(), Error> {
    assert_eq!(shape.iter().product::<usize>(), numbers.len(), "bug: an array whose shape is not its length");
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
    // The numbers start at a multiple of 64 bytes, after a line end.
    let padded = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(64) - MAGIC.len() - 4;
    header.push_str(&" ".repeat(padded - 1 - header.len()));
    header.push('\n');
    let content = |out: &mut dyn Write| {
        out.write_all(MAGIC)?;
        out.write_all(&[1, 0])?;
        out.write_all(&(header.len() as u16).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        numbers.iter().try_for_each(|number| out.write_all(&number.to_le_bytes()))?;
        out.flush()
    };
    // What is there and no file, such as a pipe, cannot be put in place.
    if path.exists() && !path.is_file() {
        let written = File::create(path).and_then(|file| content(&mut BufWriter::new(file)));
        return written.map_err(Error::file("write", path));
    }
    whole::write(path, &content)
}
