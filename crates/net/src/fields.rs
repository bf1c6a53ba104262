//! Fields: what each kind of layer and loss says of itself in a file, and in which form.
//!
//! The structs in `layers/` decide; this table is what unknown and ill-formed fields are judged by before the structs see
//! them, so that an error can name line, field and what is possible. Twin: the tests write every kind with all its fields
//! and compare.

/// A field of a table in a file.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub form: Form,
    pub required: bool,
}

/// What a field's value looks like.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A whole number, not below 0.
    Number,
    /// A list of such.
    Numbers,
    /// A list of such or of pairs of such.
    Sides,
    /// Any number.
    Real,
    /// True or false.
    Flag,
    /// Any text.
    Text,
    /// A list of texts.
    Texts,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A table of its own.
    Table,
    /// A list of tables.
    Tables,
}

const fn must(name: &'static str, form: Form) -> Field {
    Field { name, form, required: true }
}
const fn may(name: &'static str, form: Form) -> Field {
    Field { name, form, required: false }
}

const FUNCTIONS: &[&str] =
    &["relu", "leaky-relu", "clip", "sigmoid", "tanh", "silu", "gelu", "hard-swish", "hard-sigmoid"];

const FILTERS: Field = must("filters", Form::Number);
const KERNEL: Field = must("kernel", Form::Numbers);
const STRIDE: Field = may("stride", Form::Numbers);
const PADDING: Field = may("padding", Form::Sides);
const DILATION: Field = may("dilation", Form::Numbers);
const GROUPS: Field = may("groups", Form::Number);
const BIAS: Field = may("bias", Form::Flag);
const CEIL: Field = may("ceil", Form::Flag);
const EPSILON: Field = may("epsilon", Form::Real);

/// What every file has.
pub const FILE: &[Field] =
    &[must("name", Form::Text), must("input", Form::Numbers), may("loss", Form::Table), may("layer", Form::Tables)];

/// What layers of all kinds have.
pub const LAYER: &[Field] = &[must("name", Form::Text), must("kind", Form::Text), may("from", Form::Texts)];

/// Kinds with the fields that only they have.
pub type Kinds = [(&'static str, &'static [Field])];

/// The kinds of layers, in alphabetical order, each with its own fields. The input is none of them: it stands at the top of
/// a file.
pub const KINDS: &Kinds = &[
    (
        "activation",
        &[
            must("function", Form::Word(FUNCTIONS)),
            may("slope", Form::Real),
            may("low", Form::Real),
            may("high", Form::Real),
        ],
    ),
    ("adaptive-average-pool", &[must("output", Form::Numbers)]),
    ("add", &[]),
    ("average-pool", &[KERNEL, STRIDE, PADDING, DILATION, CEIL, may("count_padding", Form::Flag)]),
    ("batch-norm", &[EPSILON, may("momentum", Form::Real), may("activation", Form::Table)]),
    ("concat", &[]),
    (
        "convolution",
        &[FILTERS, KERNEL, STRIDE, PADDING, DILATION, GROUPS, BIAS, may("edge", Form::Word(&["zero", "periodic"]))],
    ),
    ("dropout", &[must("probability", Form::Real)]),
    ("flatten", &[]),
    ("fully-connected", &[must("outputs", Form::Number), BIAS]),
    ("global-average-pool", &[]),
    ("group-norm", &[must("groups", Form::Number), EPSILON]),
    (
        "local-response-norm",
        &[must("size", Form::Number), may("alpha", Form::Real), may("beta", Form::Real), may("k", Form::Real)],
    ),
    ("max-pool", &[KERNEL, STRIDE, PADDING, DILATION, CEIL]),
    ("multiply", &[]),
    ("pad-channels", &[may("before", Form::Number), may("after", Form::Number)]),
    ("softmax", &[]),
    (
        "transposed-convolution",
        &[FILTERS, KERNEL, STRIDE, PADDING, DILATION, may("output_padding", Form::Numbers), GROUPS, BIAS],
    ),
    (
        "upsample",
        &[must("scale", Form::Numbers), must("sampling", Form::Word(&["nearest", "linear", "linear-corners"]))],
    ),
];

/// What losses of all kinds have.
pub const LOSS: &[Field] = &[must("kind", Form::Text)];

/// The kinds of losses, each with its own fields.
pub const LOSSES: &Kinds = &[
    ("cross-entropy", &[may("label_smoothing", Form::Real), may("ignore", Form::Number)]),
    ("binary-cross-entropy", &[]),
    ("mean-squared-error", &[]),
    ("dice", &[]),
];

impl Form {
    /// What people call it.
    pub fn wanted(&self) -> String {
        match self {
            Form::Number => "a whole number, not below 0".into(),
            Form::Numbers => "a list of whole numbers such as [3, 3]".into(),
            Form::Sides => "a list such as [1, 1], or with before and after apart [[0, 1], [0, 1]]".into(),
            Form::Real => "a number".into(),
            Form::Flag => "true or false".into(),
            Form::Text => "a text in quotes".into(),
            Form::Texts => "a list of texts such as [\"a\", \"b\"]".into(),
            Form::Word(words) => format!("one of {}", words.join(", ")),
            Form::Table => "a table".into(),
            Form::Tables => "a list of tables, each begun by [[layer]]".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Edge, Kind, Loss, Sampling, layers::*};
    use serde::de::DeserializeOwned;
    use toml::{Table, Value};

    /// Every kind of layer with all fields other than what they are when a file does not say.
    fn layers() -> Vec<Kind> {
        let windows =
            Windows { kernel: vec![3, 3], stride: vec![2, 2], padding: vec![[1, 0], [1, 1]], dilation: vec![2, 2] };
        vec![
            Kind::Activation(Activation::LeakyRelu { slope: 0.5 }),
            Kind::Activation(Activation::Clip { low: 0.0, high: 6.0 }),
            Kind::AdaptiveAveragePool(AdaptiveAveragePool::new(&[2, 2])),
            Kind::Add(Add),
            Kind::AveragePool(AveragePool { windows: windows.clone(), ceil: true, count_padding: false }),
            Kind::BatchNorm(BatchNorm { epsilon: 0.5, momentum: 0.5, activation: Some(Activation::Relu) }),
            Kind::Concat(Concat),
            Kind::Convolution(Convolution {
                filters: 8,
                windows: windows.clone(),
                groups: 2,
                bias: false,
                edge: Edge::Periodic,
                activation: None,
            }),
            Kind::Dropout(Dropout { probability: 0.5 }),
            Kind::Flatten(Flatten),
            Kind::FullyConnected(FullyConnected { outputs: 4, bias: false }),
            Kind::GlobalAveragePool(GlobalAveragePool),
            Kind::GroupNorm(GroupNorm { groups: 2, epsilon: 0.5 }),
            Kind::LocalResponseNorm(LocalResponseNorm { size: 5, alpha: 0.5, beta: 0.5, k: 2.0 }),
            Kind::MaxPool(MaxPool { windows: windows.clone(), ceil: true }),
            Kind::Multiply(Multiply),
            Kind::PadChannels(PadChannels { before: 1, after: 2 }),
            Kind::Softmax(Softmax),
            Kind::TransposedConvolution(TransposedConvolution {
                filters: 8,
                windows,
                output_padding: vec![1, 1],
                groups: 2,
                bias: false,
            }),
            Kind::Upsample(Upsample { scale: vec![2, 2], sampling: Sampling::Linear }),
        ]
    }

    fn losses() -> Vec<Loss> {
        let cross_entropy = Loss::CrossEntropy { label_smoothing: 0.5, ignore: Some(3) };
        vec![cross_entropy, Loss::BinaryCrossEntropy, Loss::MeanSquaredError, Loss::Dice]
    }

    /// Names and values of all fields of all samples of a kind.
    fn written(samples: &[Table], kind: &str) -> Table {
        let of_kind = samples.iter().filter(|table| table["kind"].as_str() == Some(kind)).cloned();
        of_kind.flatten().filter(|(name, _)| name != "kind" && name != "function").collect()
    }

    /// The names of an enum's variants, from what serde says of an unknown one.
    fn variants<T: DeserializeOwned>(unknown: Value) -> Vec<String> {
        let message = T::deserialize(unknown).err().unwrap().message().to_string();
        message.split('`').skip(3).step_by(2).map(String::from).collect()
    }

    /// The table has the kinds and the fields that the structs have; what it requires they require.
    fn check<T: DeserializeOwned>(samples: &[Table], kinds: &Kinds, not_in_files: &[&str]) {
        let unknown = Value::Table(Table::from_iter([("kind".to_string(), Value::from("?"))]));
        let mut theirs = variants::<T>(unknown);
        theirs.retain(|kind| !not_in_files.contains(&kind.as_str()));
        let ours: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(ours, theirs);
        for (kind, fields) in kinds {
            let mut ours: Vec<&str> = fields.iter().map(|field| field.name).filter(|n| *n != "function").collect();
            ours.sort();
            let written = written(samples, kind);
            assert_eq!(ours, written.keys().collect::<Vec<_>>(), "{kind}");
            // An activation's other fields depend on its function.
            for field in fields.iter().filter(|_| *kind != "activation") {
                let mut without = written.clone();
                without.remove(field.name);
                without.insert("kind".into(), Value::from(*kind));
                assert_eq!(T::deserialize(without).is_err(), field.required, "{kind} without {}", field.name);
            }
        }
    }

    #[test]
    fn the_table_says_what_the_structs_say() {
        let tables: Vec<Table> = layers().iter().map(|layer| Table::try_from(layer).unwrap()).collect();
        check::<Kind>(&tables, KINDS, &["input"]);
        let tables: Vec<Table> = losses().iter().map(|loss| Table::try_from(loss).unwrap()).collect();
        check::<Loss>(&tables, LOSSES, &[]);
    }

    #[test]
    fn words_are_those_of_the_enums() {
        let words = |kind: &str, name: &str| {
            let (_, fields) = KINDS.iter().find(|(k, _)| *k == kind).unwrap();
            match fields.iter().find(|field| field.name == name).unwrap().form {
                Form::Word(words) => words.to_vec(),
                form => panic!("{name} is {form:?}"),
            }
        };
        let functions = Value::Table(Table::from_iter([("function".to_string(), Value::from("?"))]));
        assert_eq!(words("activation", "function"), variants::<Activation>(functions));
        assert_eq!(words("convolution", "edge"), variants::<Edge>(Value::from("?")));
        assert_eq!(words("upsample", "sampling"), variants::<Sampling>(Value::from("?")));
    }

    /// A layer's name in files is the name that the layer itself gives.
    #[test]
    fn kinds_know_their_names() {
        for layer in layers() {
            let table = Table::try_from(&layer).unwrap();
            assert_eq!(table["kind"].as_str(), Some(layer.name()));
            assert_eq!(table.try_into::<Kind>().unwrap(), layer);
        }
    }
}
