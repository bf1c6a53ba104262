//! Drafts: a job as it was typed, in a file and as flags. Fields may be missing, wrong or unknown.
//!
//! What was meant is another type, the [`Job`]: [`Draft::job`] makes it, or tells everything that is wrong with the draft at
//! once, each with its place.
//!
//! Always true
//! - A later layer (flags over a file) wins field by field; a table of another kind loses its old fields.

use crate::error::{Error, Errors, Place};
use crate::fields::{self, FIELDS, Field, KIND_TABLES};
use crate::job::Job;
use convoy_net::zoo;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Value};

/// A job as it was typed.
///
/// ```
/// use convoy::Draft;
/// let mut draft = Draft::default();
/// draft.read("[train]\nbatch = 32\nbatchh = 3", "job.toml".as_ref());
/// draft.set("train.optimizer.kind", "adam");
/// let errors = draft.job().unwrap_err();
/// assert!(errors.to_string().starts_with("job.toml, line 3, [train].batchh: unknown field"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Draft {
    entries: BTreeMap<&'static str, Entry>,
    /// What could not even become an entry.
    errors: Vec<Error>,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    origin: Origin,
}

/// Where a value was typed.
#[derive(Clone, Debug)]
enum Origin {
    File { path: PathBuf, line: usize },
    Flag,
}

/// Fields that exclude each other: giving the first takes away the second.
const INSTEAD: [(&str, &str); 3] =
    [("network.model", "network.file"), ("network.file", "network.model"), ("train.epochs", "train.steps")];

/// Fields that stay when the kind of their table changes, because all kinds have them and mean the same.
const OF_EVERY_KIND: [&str; 2] = ["train.schedule.lr", "train.schedule.warmup_epochs"];

impl Draft {
    /// A job's file.
    pub fn open(path: &Path) -> Result<Draft, Error> {
        let network = zoo::names().iter().find(|model| !path.exists() && path.as_os_str() == model.name);
        if let Some(network) = network {
            return Err(Error::NetworkForJob { name: network.name });
        }
        let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
        let mut draft = Draft::default();
        draft.read(&text, path);
        Ok(draft)
    }

    /// Lays a file's text over what there is.
    pub fn read(&mut self, text: &str, path: &Path) {
        let root = match DeTable::parse(text) {
            Ok(root) => root,
            Err(error) => {
                let place = Place::Line { path: path.into(), line: line_at(text, error.span().map_or(0, |s| s.start)) };
                return self.errors.push(Error::Field { place, flaw: error.message().trim_end().into() });
            }
        };
        let mut layer = vec![];
        for (key, value) in root.get_ref() {
            self.flatten(text, path, key.get_ref(), key.span().start, value, &mut layer);
        }
        let has = |key: &str| layer.iter().find(|(field, _)| field.key == key);
        if let (Some(_), Some((field, entry))) = (has("network.model"), has("network.file")) {
            let flaw = "a model is given too, only one of both is possible".into();
            self.errors.push(Error::Field { place: entry.place(field.key), flaw });
        }
        self.lay(layer);
    }

    /// Fields of a table in a file, by whole key; tables inside of tables likewise.
    fn flatten(
        &mut self,
        text: &str,
        path: &Path,
        key: &str,
        start: usize,
        value: &Spanned<DeValue>,
        layer: &mut Vec<(&'static Field, Entry)>,
    ) {
        let origin = Origin::File { path: path.into(), line: line_at(text, start) };
        // The word of a kind alone is short for its table.
        let full =
            if KIND_TABLES.contains(&key) && value.get_ref().is_str() { format!("{key}.kind") } else { key.into() };
        let is_table = FIELDS.iter().any(|field| field.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')));
        if let Some(field) = Field::find(&full) {
            match Value::deserialize(ValueDeserializer::from(value.clone())) {
                Ok(value) => layer.push((field, Entry { value, origin })),
                Err(error) => self.wrong(key, &origin, error.message().into()),
            }
        } else if !is_table {
            self.wrong(key, &origin, format!("unknown field{}", suggestion(key)));
        } else if let DeValue::Table(table) = value.get_ref() {
            for (inner, value) in table {
                self.flatten(text, path, &format!("{key}.{}", inner.get_ref()), inner.span().start, value, layer);
            }
        } else {
            self.wrong(key, &origin, "is a table, not a value".into());
        }
    }

    fn wrong(&mut self, key: &str, origin: &Origin, flaw: String) {
        self.errors.push(Error::Field { place: origin.place(key), flaw });
    }

    /// Lays one field over what there is, as a flag gives it. The key must be a field's; a table with a kind may be given
    /// whole, as TOML in braces.
    pub fn set(&mut self, key: &str, text: &str) {
        let field = Field::find(key).expect("bug: a flag without a field");
        let table = field.table().filter(|_| text.trim_start().starts_with('{'));
        let Some(table) = table else {
            return self.lay(vec![(field, Entry { value: field.form.read_flag(text), origin: Origin::Flag })]);
        };
        let Ok(Value::Table(values)) = text.parse() else {
            let flaw = format!("{text} is not a table of TOML\n  help: such as {{ kind = \"sgd\", momentum = 0.9 }}");
            return self.errors.push(Error::Field { place: Place::Flag(field.flag), flaw });
        };
        let mut layer = vec![];
        for (name, value) in values {
            match Field::find(&format!("{table}.{name}")) {
                Some(field) => layer.push((field, Entry { value, origin: Origin::Flag })),
                None => {
                    let flaw = format!("unknown field `{name}`{}", suggestion(&format!("{table}.{name}")));
                    self.errors.push(Error::Field { place: Place::Flag(field.flag), flaw });
                }
            }
        }
        self.lay(layer);
    }

    fn lay(&mut self, layer: Vec<(&'static Field, Entry)>) {
        for (field, entry) in &layer {
            let mut gone: Vec<&str> =
                INSTEAD.iter().filter(|(key, _)| *key == field.key).map(|(_, gone)| *gone).collect();
            if let (true, Some(table)) = (field.key.ends_with(".kind"), field.table())
                && self.kind(table).as_ref() != Some(&entry.value)
            {
                let loses = |f: &&Field| f.table() == Some(table) && !OF_EVERY_KIND.contains(&f.key);
                gone.extend(FIELDS.iter().filter(loses).map(|f| f.key));
            }
            // What this same layer gives stays.
            gone.retain(|key| layer.iter().all(|(field, _)| field.key != *key));
            gone.iter().for_each(|key| drop(self.entries.remove(key)));
        }
        self.entries.extend(layer.into_iter().map(|(field, entry)| (field.key, entry)));
    }

    /// The kind of a table, as typed, as it follows from the fields given, or by default.
    fn kind(&self, table: &str) -> Option<Value> {
        let field = FIELDS.iter().find(|f| f.table() == Some(table) && f.key.ends_with(".kind"))?;
        match self.entries.get(field.key) {
            Some(entry) => Some(entry.value.clone()),
            None => field.default_value().or_else(|| self.implied(table)),
        }
    }

    /// The kind that fields tell, where only one kind has them: a mean is given by hand, a label to ignore is cross-entropy's.
    fn implied(&self, table: &str) -> Option<Value> {
        let given = self.entries.keys().filter_map(|key| Field::find(key)).filter(|f| f.table() == Some(table));
        given.filter(|f| f.kinds.len() == 1).map(|f| Value::from(f.kinds[0])).next()
    }

    /// Whether a field was given.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Where a field was given: what errors about it name.
    pub fn place(&self, key: &'static str) -> Place {
        self.entries.get(key).map_or(Place::Field(key.into()), |entry| entry.place(key))
    }

    /// The same errors, those about a field with the place where it was given. A table with a kind may have been given by any of
    /// its fields.
    pub fn located(&self, errors: Errors) -> Errors {
        let given = |key: &str| {
            let table = Field::find(key).and_then(Field::table);
            let of_table = |field: &&Field| table.is_some() && field.table() == table;
            let candidates = Field::find(key).into_iter().chain(FIELDS.iter().filter(of_table));
            candidates.map(|field| field.key).find(|key| self.has(key))
        };
        let locate = |error| match error {
            Error::Field { place: Place::Field(key), flaw } => {
                let place = given(&key).map_or(Place::Field(key), |key| self.place(key));
                Error::Field { place, flaw }
            }
            error => error,
        };
        Errors(errors.0.into_iter().map(locate).collect())
    }

    /// What was meant; or everything that is wrong.
    pub fn job(&self) -> Result<Job, Errors> {
        let mut errors = self.errors.clone();
        errors.extend(self.flaws());
        let job = self.sound_job();
        let impossible = job.as_ref().map(Job::verify).unwrap_or_default();
        errors.extend(self.located(Errors(impossible)).0);
        if errors.is_empty() { Ok(job?) } else { Err(Errors(errors).by_line()) }
    }

    /// The job of all that is sound, with defaults for the rest: what can still be checked when something is wrong.
    pub(crate) fn sound_job(&self) -> Result<Job, Error> {
        let mut sound = Draft { entries: self.entries.clone(), errors: vec![] };
        sound.entries.retain(|key, entry| entry.flaw(key, self).is_none());
        Job::from_table(sound.table())
    }

    /// Fields that have errors.
    pub(crate) fn broken(&self) -> Vec<&'static str> {
        let of_entry = |(key, entry): (&&'static str, &Entry)| entry.flaw(key, self).map(|_| *key);
        self.entries.iter().filter_map(of_entry).collect()
    }

    fn flaws(&self) -> Vec<Error> {
        let flaw = |(key, entry): (&&'static str, &Entry)| {
            entry.flaw(key, self).map(|flaw| Error::Field { place: entry.place(key), flaw })
        };
        self.entries.iter().filter_map(flaw).collect()
    }

    /// The complete job as nested tables.
    fn table(&self) -> toml::Table {
        let mut root = toml::Table::new();
        for field in FIELDS {
            let given = self.entries.get(field.key).map(|entry| entry.value.clone());
            let implied =
                || field.table().filter(|_| field.key.ends_with(".kind")).and_then(|table| self.implied(table));
            if let Some(value) = given.or_else(implied).or_else(|| field.default_value()) {
                put(&mut root, field.key, value);
            }
        }
        if self.has("network.file") {
            root.get_mut("network").and_then(Value::as_table_mut).map(|table| table.remove("model"));
        }
        root
    }
}

impl Entry {
    fn place(&self, key: &str) -> Place {
        self.origin.place(key)
    }

    /// What is wrong with the value, or with its being there at all.
    fn flaw(&self, key: &str, draft: &Draft) -> Option<String> {
        let field = Field::find(key)?;
        if let Err(flaw) = field.form.judge(&self.value) {
            return Some(flaw);
        }
        let kind = field.table().and_then(|table| draft.kind(table))?;
        let kind = kind.as_str()?;
        let foreign = !field.kinds.is_empty() && !field.kinds.contains(&kind);
        foreign.then(|| format!("is a field of {}, the kind here is {kind}", field.kinds.join(", ")))
    }
}

impl Origin {
    fn place(&self, key: &str) -> Place {
        match self {
            Origin::File { path, line } => Place::InFile { path: path.clone(), line: *line, key: key.into() },
            Origin::Flag => Field::find(key).map_or(Place::Field(key.into()), |field| Place::Flag(field.flag)),
        }
    }
}

/// Puts a value at a key with dots.
fn put(table: &mut toml::Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => drop(table.insert(key.into(), value)),
        Some((first, rest)) => {
            let inner = table.entry(first).or_insert_with(|| Value::Table(toml::Table::new()));
            put(inner.as_table_mut().expect("bug: a field that is a table and a value"), rest, value);
        }
    }
}

/// What to write instead of an unknown field: the table in which its name is known, else the nearest name where it stands.
fn suggestion(key: &str) -> String {
    let (table, name) = key.rsplit_once('.').unwrap_or(("", key));
    let last_word = |field: &Field| field.key.trim_end_matches(".kind").rsplit('.').next() == Some(name);
    if let Some(field) = FIELDS.iter().find(|field| last_word(field)) {
        let home = field.key.trim_end_matches(".kind").rsplit_once('.').map_or("", |(home, _)| home);
        return format!("\n  help: `{name}` belongs under [{home}]");
    }
    let below = |field: &'static Field| match table {
        "" => field.key.split('.').next(),
        table => field.key.strip_prefix(table)?.strip_prefix('.')?.split('.').next(),
    };
    let mut names: Vec<&str> = FIELDS.iter().filter_map(below).collect();
    names.dedup();
    fields::help(name, names.iter().copied())
}

/// The line of a byte, from 1.
fn line_at(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|&&b| b == b'\n').count() + 1
}
