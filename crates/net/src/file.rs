//! Files: networks as readable TOML.
//!
//! Always true
//! - What [`Network::to_toml`] writes of a network that [`Network::verify`] accepts, [`Network::from_toml`] reads back equal.
//! - What is read is verified. What is not a network is one error with its line; no text makes us panic.
//!
//! Fields are judged by the table in `fields.rs` first, then by the structs themselves.

use crate::error::{Flaw, Place};
use crate::fields::{FILE, Field, Form, KINDS, Kinds, LAYER, LOSS, LOSSES};
use crate::{Error, Kind, LayerId, Loss, Network, suggestion};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::HashMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, ValueDeserializer};

/// A file as it is written.
#[derive(Serialize)]
struct Written<'a> {
    name: &'a str,
    input: &'a [usize],
    loss: &'a Loss,
    layer: Vec<WrittenLayer<'a>>,
}

#[derive(Serialize)]
struct WrittenLayer<'a> {
    name: &'a str,
    #[serde(flatten)]
    kind: &'a Kind,
    /// Only where it is not simply the layer before.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Vec<&'a str>>,
}

impl Network {
    /// The network as a readable file, for one that [`Network::verify`] accepts.
    pub fn to_toml(&self) -> String {
        let input: &[usize] = match self.layers.first().map(|layer| &layer.kind) {
            Some(Kind::Input(input)) => &input.shape,
            _ => &[],
        };
        let layer = (1..self.layers.len()).map(|i| {
            let layer = &self.layers[i];
            let names = || layer.inputs.iter().map(|input| self.layers[input.0].name.as_str()).collect();
            let from = (layer.inputs != [LayerId(i - 1)]).then(names);
            WrittenLayer { name: &layer.name, kind: &layer.kind, from }
        });
        let written = Written { name: &self.name, input, loss: &self.loss, layer: layer.collect() };
        toml::to_string(&written).expect("bug: a verified network has a number that TOML has not")
    }

    /// The network that a file describes.
    ///
    /// ```
    /// use convoy_net::Network;
    /// let net = Network::from_toml(r#"
    ///     name = "tiny"
    ///     input = [1, 8, 8]            # channels, height, width
    ///
    ///     [[layer]]
    ///     name = "conv"
    ///     kind = "convolution"
    ///     filters = 4
    ///     kernel = [3, 3]
    ///     padding = [1, 1]
    ///
    ///     [[layer]]
    ///     name = "sum"
    ///     kind = "add"
    ///     from = ["conv", "conv"]      # without `from`: the layer before
    ///
    ///     [[layer]]
    ///     name = "fc"
    ///     kind = "fully-connected"
    ///     outputs = 10
    /// "#).unwrap();
    /// assert_eq!(net.shapes(32).unwrap().last().unwrap().channels(), 10);
    /// assert_eq!(Network::from_toml(&net.to_toml()).unwrap(), net);
    /// ```
    pub fn from_toml(text: &str) -> Result<Network, Error> {
        let root = DeTable::parse(text).map_err(|error| syntax(text, &error))?;
        let file = Table { text, place: Place::File, line: 1, fields: root.get_ref() };
        file.check(FILE, &[])?;
        let mut network = Network::new(file.words("name")?, &file.read::<Vec<usize>>("input")?);
        if let Some(loss) = file.table("loss", Place::Loss) {
            network.loss = loss.read_kind(LOSS, LOSSES)?;
        }
        let mut lines = HashMap::from([("input".to_string(), file.line_of("input"))]);
        for layer in file.layers() {
            layer.add_to(&mut network)?;
            lines.insert(network.layers[network.output().0].name.clone(), layer.line);
        }
        network.verify().map_err(|error| match error.layer().and_then(|layer| lines.get(layer)) {
            Some(&line) => Error::Line { line, error: Box::new(error) },
            None => error,
        })?;
        Ok(network)
    }
}

/// A table of a file while it is read.
struct Table<'a> {
    text: &'a str,
    place: Place,
    line: usize,
    fields: &'a DeTable<'a>,
}

impl<'a> Table<'a> {
    /// That it has all fields it must have and no others, each in its form; the first flaw in the text is the one told.
    fn check(&self, of_all: &'static [Field], own: &'static [Field]) -> Result<(), Error> {
        let known = || of_all.iter().chain(own);
        let mut entries: Vec<_> = self.fields.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let (line, name) = (line_at(self.text, key.span().start), key.get_ref().to_string());
            match known().find(|field| field.name == name) {
                None => {
                    let known: Vec<&str> = known().map(|field| field.name).collect();
                    let suggestion = suggestion(&name, known.iter().copied()).map(String::from);
                    return Err(self.flaw(line, Flaw::UnknownField { name, suggestion, known }));
                }
                Some(field) if !field.form.holds(value.get_ref()) => {
                    let found = self.snippet(value);
                    return Err(self.flaw(line, Flaw::Form { name, found, wanted: field.form.wanted() }));
                }
                Some(_) => {}
            }
        }
        match known().find(|field| field.required && self.get(field.name).is_none()) {
            Some(field) => Err(self.flaw(self.line, Flaw::Missing { name: field.name })),
            None => Ok(()),
        }
    }

    /// What a table with a kind describes: a layer's [`Kind`] or a [`Loss`]. Its kind decides which fields it may have.
    fn read_kind<T: DeserializeOwned>(&self, of_all: &'static [Field], kinds: &Kinds) -> Result<T, Error> {
        let name = self.words("kind")?;
        let Some(&(_, own)) = kinds.iter().find(|(kind, _)| *kind == name) else {
            let known: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
            let suggestion = suggestion(name, known.iter().copied()).map(String::from);
            let flaw = Flaw::UnknownKind { name: name.into(), suggestion, known };
            return Err(self.flaw(self.line_of("kind"), flaw));
        };
        self.check(of_all, own)?;
        let is_own = |key: &str| key == "kind" || own.iter().any(|field| field.name == key);
        let fields = self.fields.iter().filter(|(key, _)| is_own(key.get_ref()));
        let fields: DeTable = fields.map(|(key, value)| (key.clone(), value.clone())).collect();
        // What remains are relations between fields, such as a slope that only one function has.
        let table = Deserializer::from(Spanned::new(0..0, fields));
        T::deserialize(table).map_err(|error| self.flaw(self.line, Flaw::Other { message: error.message().into() }))
    }

    /// Adds the layer that it describes.
    fn add_to(&self, network: &mut Network) -> Result<(), Error> {
        let kind = self.read_kind(LAYER, KINDS)?;
        let name = self.words("name")?;
        let from = match self.get("from") {
            None => vec![network.output()],
            Some(_) => {
                let of = |input: &String| self.earlier(network, input);
                self.read::<Vec<String>>("from")?.iter().map(of).collect::<Result<_, _>>()?
            }
        };
        network.join(name, kind, &from);
        Ok(())
    }

    /// The layer of this name among those that the network has already.
    fn earlier(&self, network: &Network, name: &str) -> Result<LayerId, Error> {
        let names = || network.layers.iter().map(|layer| layer.name.as_str());
        names().position(|known| known == name).map(LayerId).ok_or_else(|| {
            let suggestion = suggestion(name, names()).map(String::from);
            self.flaw(self.line_of("from"), Flaw::UnknownLayer { name: name.into(), suggestion })
        })
    }

    /// The tables of `[[layer]]`, in order. Each is called by its name, or by its number if it has none.
    fn layers(&self) -> impl Iterator<Item = Table<'a>> {
        let list = self.get("layer").and_then(|(_, value)| value.get_ref().as_array());
        list.into_iter().flatten().enumerate().filter_map(|(i, value)| {
            let fields = value.get_ref().as_table()?;
            let line = line_at(self.text, value.span().start);
            let table = Table { text: self.text, place: Place::LayerNumber(i + 1), line, fields };
            let place = table.words("name").map(|name| Place::Layer(name.into()));
            Some(Table { place: place.unwrap_or(Place::LayerNumber(i + 1)), ..table })
        })
    }

    /// A table within this one.
    fn table(&self, name: &'static str, place: Place) -> Option<Table<'a>> {
        let (line, value) = self.get(name)?;
        value.get_ref().as_table().map(|fields| Table { text: self.text, place, line, fields })
    }

    /// The text that a field holds.
    fn words(&self, name: &'static str) -> Result<&'a str, Error> {
        let (line, value) = self.get(name).ok_or_else(|| self.flaw(self.line, Flaw::Missing { name }))?;
        value.get_ref().as_str().ok_or_else(|| {
            let flaw = Flaw::Form { name: name.into(), found: self.snippet(value), wanted: Form::Text.wanted() };
            self.flaw(line, flaw)
        })
    }

    /// What a field holds.
    fn read<T: DeserializeOwned>(&self, name: &'static str) -> Result<T, Error> {
        let (line, value) = self.get(name).ok_or_else(|| self.flaw(self.line, Flaw::Missing { name }))?;
        let read = T::deserialize(ValueDeserializer::from(value.clone()));
        read.map_err(|error| self.flaw(line, Flaw::Other { message: error.message().into() }))
    }

    /// A field's line and value.
    fn get(&self, name: &str) -> Option<(usize, &'a Spanned<DeValue<'a>>)> {
        let (key, value) = self.fields.iter().find(|(key, _)| key.get_ref() == name)?;
        Some((line_at(self.text, key.span().start), value))
    }

    fn line_of(&self, name: &str) -> usize {
        self.get(name).map_or(self.line, |(line, _)| line)
    }

    /// What the text says there, if it is short its whole.
    fn snippet(&self, value: &Spanned<DeValue>) -> String {
        let line = self.text.get(value.span()).and_then(|text| text.lines().next()).unwrap_or_default();
        match line.char_indices().nth(40) {
            Some((end, _)) => format!("{}...", &line[..end]),
            None => line.to_string(),
        }
    }

    fn flaw(&self, line: usize, flaw: Flaw) -> Error {
        Error::File { line, place: self.place.clone(), flaw: Box::new(flaw) }
    }
}

impl Form {
    /// Whether a value has this form.
    fn holds(&self, value: &DeValue) -> bool {
        let all = |holds: &dyn Fn(&DeValue) -> bool| {
            value.as_array().is_some_and(|list| list.iter().all(|entry| holds(entry.get_ref())))
        };
        match self {
            Form::Number => is_number(value),
            Form::Numbers => all(&is_number),
            Form::Sides => all(&|side| is_number(side) || is_pair(side)),
            Form::Real => value.is_float() || value.is_integer(),
            Form::Flag => value.is_bool(),
            Form::Text => value.is_str(),
            Form::Texts => all(&|entry| entry.is_str()),
            Form::Word(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Form::Table => value.is_table(),
            Form::Tables => all(&|entry| entry.is_table()),
        }
    }
}

/// Whole, not below 0, and no more than TOML's numbers are.
fn is_number(value: &DeValue) -> bool {
    let number = value.as_integer().and_then(|number| i64::from_str_radix(number.as_str(), number.radix()).ok());
    number.is_some_and(|number| number >= 0)
}

fn is_pair(value: &DeValue) -> bool {
    value.as_array().is_some_and(|pair| pair.len() == 2 && pair.iter().all(|side| is_number(side.get_ref())))
}

fn syntax(text: &str, error: &toml::de::Error) -> Error {
    let line = line_at(text, error.span().map_or(0, |span| span.start));
    Error::File { line, place: Place::File, flaw: Box::new(Flaw::Other { message: error.message().into() }) }
}

/// The number of the line that holds byte `offset`.
fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}
