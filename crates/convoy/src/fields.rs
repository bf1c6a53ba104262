//! The fields of a job: one table, from which flags, `--help`, docs/job.md, completions and all checks of what was typed come.
//!
//! Always true
//! - Every field of a [`Job`](crate::Job) stands here once, with its section, its flag and its default.
//! - A default that is a value is TOML text that its form accepts.
//!
//! Knows nothing of files or of where a value came from.

use convoy_net::zoo;
use convoy_train::data::{Augment, DataSpec};
use convoy_train::{Optimizer, Schedule};
use toml::Value;

/// One field of a job.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Section and name, such as `train.batch`; fields of a table with a kind have one more word.
    pub key: &'static str,
    /// The same on the command line, without dashes.
    pub flag: &'static str,
    /// What stands for the value in help.
    pub value: &'static str,
    pub form: Form,
    pub default: Otherwise,
    /// Kinds of its table that have it; empty where all have.
    pub kinds: &'static [&'static str],
    /// One line.
    pub help: &'static str,
}

/// What a field has when nobody gives it a value.
#[derive(Clone, Copy, Debug)]
pub enum Otherwise {
    /// This, as TOML text.
    Is(&'static str),
    /// Something that follows from the rest, in words.
    Follows(&'static str),
}

/// What a field may hold.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Text,
    File,
    /// A network of the zoo.
    Model,
    /// Which data.
    Data,
    /// Which data, or a word for what to do without.
    TestData,
    /// A list of random changes.
    Augment,
    Whole {
        least: u64,
    },
    /// From 1 to a number beyond which no machine can follow.
    UpTo(u64),
    Number,
    Numbers,
    /// Two numbers.
    Pair,
    /// Channels, then sizes.
    Sizes,
    Truth,
    Choice(&'static [&'static str]),
    /// The same, where it decides which other fields its table has.
    Kind(&'static [&'static str]),
}

use Otherwise::{Follows, Is};

/// Words for test data that are not data.
pub const TEST_WORDS: [&str; 3] = ["own", "hold-out", "none"];
/// Words for [`Winograd`](convoy_kernels::Winograd), in its order.
pub(crate) const WINOGRAD: [&str; 3] = ["4x4", "2x2", "off"];
const LOSSES: &[&str] = &["cross-entropy", "binary-cross-entropy", "mean-squared-error", "dice"];
const NORMALISE: &[&str] = &["measure", "none", "given"];

/// All fields, section by section.
#[rustfmt::skip]
pub static FIELDS: &[Field] = &[
    field("network.model", "model", "NAME", Form::Model, Is("\"lenet\""), "a network that comes with Convoy (`convoy models`)"),
    field("network.file", "network", "FILE", Form::File, Follows("none"), "a network of your own as TOML, instead of a model"),
    field("network.classes", "classes", "N", Form::Whole { least: 1 }, Follows("as the data has, else as the model has"), "classes that a model tells apart"),
    field("network.input", "input-shape", "CxHxW", Form::Sizes, Follows("the data's"), "channels and sizes of a model's input"),
    field("network.loss.kind", "loss", "KIND", Form::Kind(LOSSES), Follows("the network's own: cross-entropy for models"), "what training makes small"),
    field("network.loss.label_smoothing", "label-smoothing", "X", Form::Number, Follows("0"), "share of the target that is spread over all classes").of(&["cross-entropy"]),
    field("network.loss.ignore", "ignore-label", "N", Form::Whole { least: 0 }, Follows("none"), "a label that does not count").of(&["cross-entropy"]),
    field("data.train", "data", "DATA", Form::Data, Is("\"digits\""), "digits, idx:DIR, cifar10:DIR, folder:DIR[:HxW], npy:DIR, npy:IMAGES,LABELS or synthetic:CxHxW[:COUNT]"),
    field("data.test", "test-data", "DATA", Form::TestData, Is("\"own\""), "data as above; own: the test part of the train data, if it has one; hold-out: every tenth sample; none"),
    field("data.augment", "augment", "LIST", Form::Augment, Follows("crop:2 for digits, else none"), "random changes to train images, in order: crop:PIXELS, flip"),
    field("data.normalise.kind", "normalise", "KIND", Form::Kind(NORMALISE), Follows("measure, but none for npy and synthetic"), "measure mean and deviation of each channel in the train data, none, or given"),
    field("data.normalise.mean", "mean", "LIST", Form::Numbers, Follows("measured"), "subtracted, a number for each channel").of(&["given"]),
    field("data.normalise.deviation", "deviation", "LIST", Form::Numbers, Follows("measured"), "divided by, a number for each channel").of(&["given"]),
    field("data.loaders", "loaders", "N", Form::UpTo(256), Is("1"), "threads of each rank that prepare batches in the background"),
    field("train.batch", "batch", "N", Form::Whole { least: 1 }, Is("64"), "samples of a step, over all ranks"),
    field("train.epochs", "epochs", "N", Form::Whole { least: 1 }, Is("8"), "times through the train data"),
    field("train.steps", "steps", "N", Form::Whole { least: 1 }, Follows("as many as the epochs have"), "steps in all, whatever the epochs are"),
    field("train.optimizer.kind", "optimizer", "KIND", Form::Kind(&Optimizer::KINDS), Is("\"sgd\""), "how gradients change weights"),
    field("train.optimizer.momentum", "momentum", "X", Form::Number, Follows("0.9, with rmsprop 0"), "how much of the last change stays").of(&["sgd", "rmsprop", "lars"]),
    field("train.optimizer.nesterov", "nesterov", "BOOL", Form::Truth, Follows("false"), "look ahead along the momentum").of(&["sgd"]),
    field("train.optimizer.weight_decay", "weight-decay", "X", Form::Number, Follows("0, with adamw 0.01"), "times the weight that is added to its gradient"),
    field("train.optimizer.betas", "betas", "X,Y", Form::Pair, Follows("0.9,0.999"), "how much of the means of gradients and of squares stays").of(&["adam", "adamw"]),
    field("train.optimizer.epsilon", "epsilon", "X", Form::Number, Follows("1e-8"), "added to what is divided by").of(&["adam", "adamw", "rmsprop"]),
    field("train.optimizer.alpha", "alpha", "X", Form::Number, Follows("0.99"), "how much of the mean of squares stays").of(&["rmsprop"]),
    field("train.optimizer.trust", "trust", "X", Form::Number, Follows("0.001"), "a step's size over the parameter's, at learning rate 1").of(&["lars"]),
    field("train.schedule.kind", "schedule", "KIND", Form::Kind(&Schedule::KINDS), Is("\"cosine\""), "how the learning rate goes on after warm-up"),
    field("train.schedule.lr", "lr", "X", Form::Number, Follows("0.02, with lars 1, with the others 0.001"), "the learning rate after warm-up"),
    field("train.schedule.warmup_epochs", "warmup-epochs", "X", Form::Number, Follows("0"), "epochs of linear warm-up"),
    field("train.schedule.milestones", "milestones", "LIST", Form::Numbers, Follows("30,60,90"), "epochs at which the rate falls").of(&["step"]),
    field("train.schedule.gamma", "gamma", "X", Form::Number, Follows("0.1"), "what the rate is multiplied by there").of(&["step"]),
    field("train.schedule.power", "power", "X", Form::Number, Follows("1"), "of the share of steps that is left").of(&["polynomial"]),
    field("train.seed", "seed", "N", Form::Whole { least: 0 }, Is("1"), "where all random numbers come from"),
    field("train.leaves", "leaves", "N", Form::UpTo(1024), Is("8"), "groups of samples that sums over a batch are cut into: up to as many data-parallel ranks give the same bits"),
    field("train.winograd", "winograd", "TILE", Form::Choice(&WINOGRAD), Is("\"4x4\""), "tiles of 3x3 convolutions: 4x4 is fastest (and does 5x5 ones too), 2x2 and off round less"),
    field("train.weights", "weights", "FILE", Form::File, Follows("made from the seed"), "weights to start from: safetensors with PyTorch's names"),
    field("parallel.ranks", "ranks", "N", Form::UpTo(256), Is("1"), "ranks, each with its own memory and threads"),
    field("parallel.threads", "threads", "N", Form::UpTo(256), Follows("cores that this process may use, divided by ranks"), "threads of each rank; they never change the result"),
    field("parallel.strategy", "strategy", "WORDS", Form::Text, Is("\"auto\""), "how layers are split over ranks: data, spatial, filter, channel, a product such as data:2,spatial:2x2, data:3+1 for unequal shares, a plan's file (.json), or auto: what is predicted to be fastest (data gives the bits of one rank, others are within rounding)"),
    field("parallel.machine", "machine", "MACHINE", Form::Text, Follows("this computer's calibration, else what some seconds of measuring say"), "what auto plans for: a machine's file, or the name of one that comes with Convoy"),
    field("parallel.batch_norm", "batch-norm", "OVER", Form::Choice(&["global", "team", "local"]), Is("\"global\""), "whose samples batch norm takes together in training: the global batch's, those of ranks that share samples, or each rank's own"),
    field("parallel.home", "home", "WHERE", Form::Choice(&["everywhere", "sharded"]), Is("\"everywhere\""), "where weights and the optimizer's state live: with every rank that uses them, or divided over these, pulled before use; the same result"),
    field("parallel.exact", "exact", "BOOL", Form::Truth, Is("true"), "sum gradients over ranks in a fixed order, with the bits of one rank under data; false: in an order that depends on the number of ranks"),
    field("parallel.sums", "sums", "HOW", Form::Choice(&["ring", "library"]), Is("\"ring\""), "how gradients are summed with exact = false: around a ring, or by the MPI library's own all-reduce"),
    field("parallel.overlap", "overlap", "BOOL", Form::Truth, Is("true"), "compute what needs no halo while halos travel; false: wait for them first, for comparison"),
    field("parallel.memory", "memory", "SIZE", Form::Text, Follows("all that the system has"), "the most that a rank may hold, such as 3GiB"),
    field("parallel.deadline", "deadline", "SECONDS", Form::Whole { least: 1 }, Is("300"), "how long a rank waits for another before it gives up, at least; it warns after half of it"),
    field("run.name", "name", "NAME", Form::Text, Follows("the network's"), "what the run's folder is called, before the time"),
    field("run.folder", "folder", "DIR", Form::File, Is("\"runs\""), "where runs' folders are"),
    field("run.checkpoint_every", "checkpoint-every", "STEPS", Form::Whole { least: 0 }, Is("1000"), "steps between checkpoints, besides one after each epoch; 0: only when interrupted"),
    field("run.keep", "keep", "N", Form::Whole { least: 1 }, Is("2"), "checkpoints that stay"),
    field("run.digest_every", "digest-every", "STEPS", Form::Whole { least: 0 }, Is("100"), "steps between digests of all layers, for `convoy compare`; 0: only after each epoch"),
];

/// Sections in order, each with its heading.
pub static SECTIONS: &[(&str, &str)] = &[
    ("network", "[network] What is trained"),
    ("data", "[data] On what"),
    ("train", "[train] How"),
    ("parallel", "[parallel] On how many cores"),
    ("run", "[run] What is kept"),
];

/// Tables that have a kind; each may be written as the word of its kind alone.
pub static KIND_TABLES: [&str; 4] = ["network.loss", "data.normalise", "train.optimizer", "train.schedule"];

const fn field(
    key: &'static str,
    flag: &'static str,
    value: &'static str,
    form: Form,
    default: Otherwise,
    help: &'static str,
) -> Field {
    Field { key, flag, value, form, default, kinds: &[], help }
}

impl Field {
    const fn of(mut self, kinds: &'static [&'static str]) -> Field {
        self.kinds = kinds;
        self
    }

    /// The field of this key.
    pub fn find(key: &str) -> Option<&'static Field> {
        FIELDS.iter().find(|field| field.key == key)
    }

    /// The first word of its key.
    pub fn section(&self) -> &'static str {
        self.key.split('.').next().unwrap_or(self.key)
    }

    /// Its key without the section.
    pub fn name(&self) -> &'static str {
        self.key.split_once('.').map_or(self.key, |(_, name)| name)
    }

    /// The table with a kind that it belongs to.
    pub fn table(&self) -> Option<&'static str> {
        self.key.rsplit_once('.').map(|(table, _)| table).filter(|table| KIND_TABLES.contains(table))
    }

    /// The default as people read it.
    pub fn default_words(&self) -> &'static str {
        match self.default {
            Is(text) => text.trim_matches('"'),
            Follows(words) => words,
        }
    }

    /// The default as a value, where it is one.
    pub fn default_value(&self) -> Option<Value> {
        match self.default {
            Is(text) => Some(text.parse().expect("bug: a default that is not TOML")),
            Follows(_) => None,
        }
    }
}

impl Form {
    /// A flag's text as the value that would stand in a file. What is not of this form becomes text, and is judged as such.
    pub fn read_flag(&self, text: &str) -> Value {
        let of = |word: &str| match self {
            Form::Whole { .. } | Form::UpTo(_) | Form::Sizes => word.parse().map(Value::Integer).ok(),
            Form::Number | Form::Numbers | Form::Pair => word.parse().map(Value::Float).ok(),
            Form::Truth => word.parse().map(Value::Boolean).ok(),
            _ => None,
        };
        let one = |word: &str| of(word.trim()).unwrap_or_else(|| Value::String(word.trim().into()));
        let list = |sign: char| Value::Array(text.split(sign).filter(|w| !w.trim().is_empty()).map(one).collect());
        match self {
            Form::Augment | Form::Numbers | Form::Pair => list(','),
            Form::Sizes => list('x'),
            Form::Whole { .. } | Form::UpTo(_) | Form::Number | Form::Truth => one(text),
            _ => Value::String(text.into()),
        }
    }

    /// What is wrong with a value: a sentence that follows the field's place.
    pub fn judge(&self, value: &Value) -> Result<(), String> {
        let is_whole = |v: &Value, least: u64| v.as_integer().is_some_and(|n| n >= 0 && n as u64 >= least);
        let is_number = |v: &Value| v.is_float() || v.is_integer();
        let all = |test: &dyn Fn(&Value) -> bool| value.as_array().is_some_and(|list| list.iter().all(test));
        match self {
            Form::Text | Form::File => words(value, "text").map(drop),
            Form::Model => {
                let name = words(value, "the name of a model")?;
                let known = || zoo::names().iter().map(|model| model.name);
                if known().any(|model| model == name) { Ok(()) } else { Err(unknown("model", name, known())) }
            }
            Form::Data => data(words(value, "which data")?),
            Form::TestData => match words(value, "which data")? {
                word if TEST_WORDS.contains(&word) => Ok(()),
                spec => data(spec),
            },
            Form::Augment => {
                let list = value.as_array().ok_or_else(|| found(value, "a list such as [\"crop:4\", \"flip\"]"))?;
                list.iter().try_for_each(|v| {
                    Augment::parse(words(v, "crop:PIXELS or flip")?).map(drop).map_err(|e| e.to_string())
                })
            }
            Form::Whole { least } if is_whole(value, *least) => Ok(()),
            Form::Whole { least } => Err(found(value, &format!("a whole number, {least} or more"))),
            Form::UpTo(most) if is_whole(value, 1) && !is_whole(value, most + 1) => Ok(()),
            Form::UpTo(most) => Err(found(value, &format!("a whole number from 1 to {most}"))),
            Form::Number if is_number(value) => Ok(()),
            Form::Number => Err(found(value, "a number")),
            Form::Numbers if all(&is_number) => Ok(()),
            Form::Numbers => Err(found(value, "a list of numbers")),
            Form::Pair if all(&is_number) && value.as_array().is_some_and(|list| list.len() == 2) => Ok(()),
            Form::Pair => Err(found(value, "a list of two numbers")),
            Form::Sizes if all(&|v| is_whole(v, 1)) => Ok(()),
            Form::Sizes => Err(found(value, "a list of whole numbers above 0")),
            Form::Truth if value.is_bool() => Ok(()),
            Form::Truth => Err(found(value, "true or false")),
            Form::Choice(known) => {
                let word = words(value, "a word")?;
                if known.contains(&word) { Ok(()) } else { Err(unknown("word", word, known.iter().copied())) }
            }
            Form::Kind(known) => {
                let kind = words(value, "a kind")?;
                match known.contains(&kind) {
                    true => Ok(()),
                    false => Err(format!("unknown kind \"{kind}\"{}", help(kind, known.iter().copied()))),
                }
            }
        }
    }
}

fn words<'a>(value: &'a Value, wanted: &str) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| found(value, wanted))
}

fn data(spec: &str) -> Result<(), String> {
    DataSpec::parse(spec).map(drop).map_err(|error| error.to_string())
}

fn found(value: &Value, wanted: &str) -> String {
    format!("{value} is not {wanted}")
}

fn unknown<'a>(what: &str, word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    format!("unknown {what} `{word}`{}", help(word, known))
}

/// What to write instead of something unknown.
pub(crate) fn help<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let list = || known.clone().collect::<Vec<_>>().join(", ");
    match convoy_net::suggestion(word, known.clone()) {
        Some(near) => format!("\n  help: did you mean `{near}`? Else one of {}", list()),
        None => format!("\n  help: one of {}", list()),
    }
}

/// All fields as tables in Markdown: what docs/job.md shows.
pub fn reference() -> String {
    let mut page = String::new();
    for (section, heading) in SECTIONS {
        page += &format!("## {heading}\n\n| field | flag | default | what |\n|---|---|---|---|\n");
        for field in FIELDS.iter().filter(|field| field.section() == *section) {
            let default = match field.default {
                Is(text) => format!("`{text}`"),
                Follows(words) => words.into(),
            };
            let of = if field.kinds.is_empty() { "".into() } else { format!(" ({})", field.kinds.join(", ")) };
            let help = field.help.replace('|', "\\|");
            page += &format!("| `{}` | `--{} {}` | {default} | {help}{of} |\n", field.name(), field.flag, field.value);
        }
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_key_and_flag_stands_once_and_in_a_section() {
        let keys: HashSet<&str> = FIELDS.iter().map(|field| field.key).collect();
        let flags: HashSet<&str> = FIELDS.iter().map(|field| field.flag).collect();
        assert_eq!((keys.len(), flags.len()), (FIELDS.len(), FIELDS.len()));
        for field in FIELDS {
            assert!(SECTIONS.iter().any(|(section, _)| *section == field.section()), "{}", field.key);
        }
    }

    #[test]
    fn defaults_are_of_their_form_and_flags_read_like_files() {
        for field in FIELDS {
            let Some(value) = field.default_value() else { continue };
            assert_eq!(field.form.judge(&value), Ok(()), "{}", field.key);
            assert_eq!(field.form.read_flag(field.default_words()), value, "{}", field.key);
        }
        assert_eq!(Form::Sizes.read_flag("3x32x32").to_string(), "[3, 32, 32]");
        assert_eq!(Form::Numbers.read_flag("0.9,0.999").to_string(), "[0.9, 0.999]");
        assert_eq!(Form::Augment.read_flag("crop:4, flip").to_string(), "[\"crop:4\", \"flip\"]");
    }

    #[test]
    fn values_of_another_form_are_told() {
        let judge = |form: Form, text: &str| form.judge(&form.read_flag(text)).unwrap_err();
        assert_eq!(judge(Form::Whole { least: 1 }, "0"), "0 is not a whole number, 1 or more");
        assert_eq!(judge(Form::Whole { least: 1 }, "-3"), "-3 is not a whole number, 1 or more");
        assert_eq!(judge(Form::Whole { least: 1 }, "many"), "\"many\" is not a whole number, 1 or more");
        assert_eq!(judge(Form::Sizes, "3x0x32"), "[3, 0, 32] is not a list of whole numbers above 0");
        assert!(
            judge(Form::Model, "resnet81").starts_with("unknown model `resnet81`\n  help: did you mean `resnet18`?")
        );
        assert!(judge(Form::Kind(&Optimizer::KINDS), "adamm").contains("did you mean `adam`?"));
        assert!(judge(Form::Data, "digit").starts_with("unknown data `digit`"));
    }
}
