//! Bad input: one clear error each, an exit code that is not 0, nothing overwritten, no panic.

mod program;

use convoy_train::data::write_npy;
use program::{PNG, Place, finish};
use std::process::{Command, Stdio};

/// What a command must say.
fn check(place: &Place, words: &str, wanted: &str) {
    assert_eq!(place.bad(words).trim_end(), wanted.trim(), "convoy {words}");
    assert!(place.runs().is_empty(), "convoy {words} left a run");
}

/// Ten images of 8x8 in two classes, as files like MNIST's.
fn idx(place: &Place) {
    for part in ["train", "t10k"] {
        let mut images = vec![0, 0, 8, 3, 0, 0, 0, 10, 0, 0, 0, 8, 0, 0, 0, 8];
        images.extend((0..640).map(|i| (i % 251) as u8));
        let mut labels = vec![0, 0, 8, 1, 0, 0, 0, 10];
        labels.extend((0..10).map(|i| i % 2));
        place.file(&format!("idx/{part}-images-idx3-ubyte"), images);
        place.file(&format!("idx/{part}-labels-idx1-ubyte"), labels);
    }
}

const MODELS: &str = "lenet, alexnet, vgg11, vgg16, vgg19, resnet18, resnet34, resnet50, resnet101, resnet152, \
                      resnet18-cifar, resnet20, mobilenet-v2, unet, unet3d, mesh1k, mesh2k";

#[test]
fn unknown_words_come_with_a_suggestion() {
    let place = Place::new();
    let unknown = format!("unknown model `resnet81`\n  help: did you mean `resnet18`? Else one of {MODELS}");
    check(&place, "train --model resnet81", &format!("error: --model: {unknown}"));
    check(&place, "bench resnet81", &format!("error: {unknown}"));
    place.file("job.toml", "[train]\nbatch = 8\nepoch = 3\n\n[parallel]\nstrategy = \"data\"\nbatch = 8\n");
    check(
        &place,
        "train job.toml",
        "error: job.toml, line 3, [train].epoch: unknown field\n  help: did you mean `epochs`? Else one of batch, epochs, \
         steps, optimizer, schedule, seed, leaves, winograd, weights\n\
         error: job.toml, line 7, [parallel].batch: unknown field\n  help: `batch` belongs under [train]",
    );
    place.file("job.toml", "[train]\noptimizer = { kind = \"adamm\" }\n");
    check(
        &place,
        "train job.toml",
        "error: job.toml, line 2, [train].optimizer: unknown kind \"adamm\"\n  \
         help: did you mean `adam`? Else one of sgd, adam, adamw, rmsprop, lars",
    );
    let tiles = "unknown word `3x3`\n  help: one of 4x4, 2x2, off";
    for command in ["train", "bench lenet", "plan lenet", "eval --model lenet --weights w.safetensors"] {
        check(&place, &format!("{command} --winograd 3x3"), &format!("error: --winograd: {tiles}"));
    }
    place.file("job.toml", "[train]\nwinograd = \"3x3\"\n");
    check(&place, "train job.toml", &format!("error: job.toml, line 2, [train].winograd: {tiles}"));
    check(
        &place,
        "train --optimizer adam --momentum 0.5",
        "error: --momentum: is a field of sgd, rmsprop, lars, the kind here is adam",
    );
    let data = "one of digits, idx:DIR, cifar10:DIR, folder:DIR[:HxW], npy:DIR, npy:IMAGES.npy,LABELS.npy, \
                synthetic:CxHxW[:COUNT]";
    check(&place, "train --data digitss", &format!("error: --data: unknown data `digitss`\n  help: {data}"));
    let flag = place.run("train --batchh 3");
    assert_eq!(flag.code, Some(2));
    assert!(flag.err.contains("a similar argument exists: '--batch'"), "{}", flag.err);
}

#[test]
fn numbers_that_are_not_possible() {
    let place = Place::new();
    check(&place, "train --batch 0", "error: --batch: 0 is not a whole number, 1 or more");
    check(
        &place,
        "train --batch 9001",
        "error: --batch: a batch of 9001 cannot be made of 9000 samples\n  help: a batch of 1 to 9000",
    );
    check(&place, "train --threads 257", "error: --threads: 257 is not a whole number from 1 to 256");
    check(&place, "train --lr -1", "error: --lr: -1 is not possible\n  help: above 0");
    check(&place, "train --lr 1e39", "error: --lr: 1e39 is not possible\n  help: at most 3e38");
    check(&place, "train --lr fast", "error: --lr: \"fast\" is not a number");
    check(&place, "train --momentum 1", "error: --momentum: 1 is not possible\n  help: from 0 to below 1");
    check(
        &place,
        "train --ranks 3 --strategy data:2",
        "error: --strategy: strategy `data:2` has 2 parts, the job has 3 ranks\n  \
         help: the product of all parts must be the number of ranks",
    );
    check(
        &place,
        "train --mean 0.5,0.5 --deviation 1,1",
        "error: --mean: normalisation has 2 means, images have 1 channels",
    );
    check(
        &place,
        "train --sums library",
        "error: --sums: the library takes an order of its own, but exact is true\n  help: exact = false, or leave it out",
    );
    check(
        &place,
        "train --sums library --exact false --ranks 2",
        "error: --sums: ranks are threads of one process here, there is no MPI library\n  \
         help: mpirun -n 2 with a convoy built with --features mpi; or ring",
    );
    check(
        &place,
        "train --home sharded --optimizer lars",
        "error: --home: lars needs whole parameters, sharded ones are divided over ranks\n  \
         help: everywhere, or another optimizer",
    );
}

#[test]
fn plans_that_do_not_fit() {
    let place = Place::new();
    place.good("plan lenet --batch 8 --ranks 4 --machine cpu-10g --strategy data --out plan.json");
    let text = std::fs::read_to_string(place.path().join("plan.json")).unwrap();
    let edit = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}\n{text}");
        place.file("edited.json", text.replacen(from, to, 1));
    };
    let job = "train --data synthetic:1x28x28:32 --test-data none --batch 8 --ranks 4";
    check(
        &place,
        &format!("{job} --model vgg11 --input-shape 1x32x32 --strategy plan.json"),
        "error: --strategy: plan.json is a plan of `lenet`, the network is `vgg11`, which has no layer `c1`\n  \
         help: convoy plan vgg11 --ranks 4 --out plan.json\n\
         error: --data: images are 1x28x28, the network `vgg11` takes 1x32x32",
    );
    check(
        &place,
        "train --ranks 2 --strategy plan.json",
        "error: --strategy: plan.json is a plan for 4 ranks, the job has 2\n  help: --ranks 4, or a plan for 2",
    );
    check(
        &place,
        "simulate lenet --ranks 2 --strategy plan.json",
        "error: --strategy: plan.json is a plan for 4 ranks, the job has 2\n  help: --ranks 4, or a plan for 2",
    );
    // The second pooling leaves 4 rows.
    edit("\"pool2\", \"sample\": 4", "\"pool2\", \"sample\": 1");
    let edited = std::fs::read_to_string(place.path().join("edited.json")).unwrap();
    let (before, after) = edited.split_once("\"pool2\"").unwrap();
    place.file("edited.json", format!("{before}\"pool2\"{}", after.replacen("\"width\": 1", "\"width\": 5", 1)));
    check(
        &place,
        "train --batch 8 --ranks 5 --strategy edited.json",
        "error: --strategy: edited.json is a plan for 4 ranks, the job has 5\n  help: --ranks 4, or a plan for 5",
    );
    let five =
        std::fs::read_to_string(place.path().join("edited.json")).unwrap().replace("\"ranks\": 4", "\"ranks\": 5");
    place.file("edited.json", five);
    check(
        &place,
        "train --batch 8 --ranks 5 --strategy edited.json",
        "error: --strategy: edited.json: layer `pool2` cannot be cut into width:5, its output has 4 along it\n  \
         strategy: spatial:1x5\n  help: width:4 or less here",
    );
    edit("\"layer\": \"c1\"", "\"layer\": \"C1\"");
    check(
        &place,
        &format!("{job} --strategy edited.json"),
        "error: --strategy: edited.json is a plan of `lenet`, the network is `lenet`, which has no layer `C1`, but one called \
         `c1`\n  help: convoy plan lenet --ranks 4 --out edited.json",
    );
    place.file("edited.json", "{ \"format\": 3 }");
    check(
        &place,
        &format!("{job} --strategy edited.json"),
        "error: --strategy: edited.json is not a plan: invalid type: integer `3`, expected a string at line 1 column 13\n  \
         help: `convoy plan NET --ranks N --out FILE` writes one",
    );
    check(
        &place,
        &format!("{job} --strategy missing.json"),
        "error: --strategy: cannot read missing.json\n  cause: No such file or directory (os error 2)",
    );
}

/// A terabyte of activations is more than test machines have.
#[test]
fn memory_that_is_not_there() {
    let place = Place::new();
    let data = "--model vgg16 --data synthetic:3x224x224:20000 --batch 20000";
    for words in [format!("train {data}"), format!("check {data}"), "bench vgg16 --batch 20000".into()] {
        let error = place.bad(&words);
        assert!(error.starts_with("error: --batch: a batch of 20000 needs 1.3 TiB of memory, "), "{error}");
        assert!(error.ends_with(" can be had\n  help: a smaller batch\n"), "{error}");
        assert!(place.runs().is_empty());
    }
}

#[test]
fn all_errors_are_told_at_once() {
    let place = Place::new();
    place.file(
        "job.toml",
        "[train]\nbatch = 20000\n\n[parallel]\nranks = 2\nstrategy = \"sideways\"\n[data]\ntest = \"idx:x\"\n",
    );
    check(
        &place,
        "check job.toml --weights no.safetensors",
        "error: job.toml, line 2, [train].batch: a batch of 20000 cannot be made of 9000 samples\n  \
         help: a batch of 1 to 9000\n\
         error: job.toml, line 6, [parallel].strategy: strategy `sideways` is not one: \"sideways\" is no axis with a \
         number of parts\n  help: data, spatial, filter, channel, or a product such as data:2,spatial:2x2\n\
         error: job.toml, line 8, [data].test: cannot read `x`: No such file or directory (os error 2)\n\
         error: --weights: cannot read no.safetensors\n  cause: No such file or directory (os error 2)",
    );
    // A draft that is wrong does not hide what else is.
    let errors = place.bad("check job.toml --lr 0 --seed -1");
    let starts: Vec<&str> = errors.lines().filter(|line| line.starts_with("error: ")).map(|l| &l[7..12]).collect();
    assert_eq!(starts, ["job.t", "job.t", "job.t", "--see", "--lr:"], "{errors}");
    // Nor does a network that is not there, whether it is a word or a file.
    place.file("file", "");
    let others = "error: --data: cannot read `no`: No such file or directory (os error 2)\n\
                  error: --test-data: cannot read `nor`: No such file or directory (os error 2)\n\
                  error: --weights: cannot read no.safetensors\n  cause: No such file or directory (os error 2)\n\
                  error: --folder: PLACE/file is not a folder\n";
    let others = others.replace("PLACE", place.path().to_str().unwrap());
    let flags = "--data idx:no --test-data idx:nor --weights no.safetensors --folder file/runs";
    for network in ["--model lenett", "--network no.toml"] {
        let errors = place.bad(&format!("check {network} {flags}"));
        let rest: Vec<&str> =
            errors.lines().filter(|line| !line.contains("lenet") && !line.contains("no.toml")).collect();
        let rest: String = rest.iter().skip(rest.len() - 5).map(|line| format!("{line}\n")).collect();
        assert_eq!(rest, others, "{errors}");
    }
    // A field that is wrong is told once, not also as the default that stands in for it.
    write_npy(&place.path().join("x.npy"), &[4, 1, 28, 28], &[0.5; 4 * 784]).unwrap();
    write_npy(&place.path().join("y.npy"), &[4, 10], &[0.5; 40]).unwrap();
    let words = "check --data npy:x.npy,y.npy --loss mean-squared-error --batch 0";
    check(&place, words, "error: --batch: 0 is not a whole number, 1 or more");
}

#[test]
fn files_that_are_missing_or_broken() {
    let place = Place::new();
    let missing = "cause: No such file or directory (os error 2)";
    check(&place, "train no.toml", &format!("error: cannot read no.toml\n  {missing}"));
    for command in ["train lenet", "check lenet"] {
        let wanted = "error: cannot read the job lenet, there is no such file\n  help: --model lenet for the network of that name";
        check(&place, command, wanted);
    }
    check(&place, "train --resume no", &format!("error: cannot open no\n  {missing}"));
    check(&place, "eval no", &format!("error: cannot open no\n  {missing}"));
    check(&place, "train --data idx:no", "error: --data: cannot read `no`: No such file or directory (os error 2)");
    place.file("job.toml", "[train]\nbatch = = 3\n");
    assert!(place.bad("train job.toml").starts_with("error: job.toml, line 2: "));
    place.file("job.toml", [0xff, 0xfe]);
    assert!(place.bad("train job.toml").starts_with("error: cannot read job.toml\n  cause: "));
    std::fs::create_dir(place.path().join("empty")).unwrap();
    check(
        &place,
        "compare empty empty",
        "error: empty: not the folder of a run, it has no job.toml\n  help: a run's folder is runs/<name>-<time>",
    );

    idx(&place);
    let images = place.path().join("idx/train-images-idx3-ubyte");
    let whole = std::fs::read(&images).unwrap();
    std::fs::write(&images, &whole[..100]).unwrap();
    check(
        &place,
        "train --data idx:idx",
        "error: --data: file `idx/train-images-idx3-ubyte` ends at byte 100, it should have 656 bytes",
    );
    std::fs::write(&images, [&[9], &whole[1..]].concat()).unwrap();
    assert!(
        place.bad("train --data idx:idx").starts_with("error: --data: file `idx/train-images-idx3-ubyte`, byte 0: ")
    );

    place.file("folder/train/cat/a.png", "no image");
    place.file("folder/train/dog/b.png", "no image");
    let error = place.bad("train --data folder:folder:32x32 --model resnet20 --batch 1");
    assert!(error.starts_with("error: --data: image `folder/train/cat/a.png` cannot be read"), "{error}");
    // The first of each class say how many channels there are; the others are met when channels are measured.
    place.file("folder/train/cat/a.png", PNG);
    place.file("folder/train/cat/c.png", &PNG[..50]);
    place.file("folder/train/dog/b.png", PNG);
    let error = place.bad("check --data folder:folder:32x32 --model resnet20 --batch 1");
    assert!(error.starts_with("error: --data: image `folder/train/cat/c.png` cannot be read: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");

    place.file("x.npy", "\u{93}NUMPY no");
    place.file("w.safetensors", "no weights at all");
    assert!(
        place.bad("train --weights w.safetensors").starts_with("error: --weights: w.safetensors: no safetensors file")
    );
    let error = place.bad("predict --model lenet --weights w.safetensors --input x.npy");
    assert!(error.starts_with("error: w.safetensors: no safetensors file"), "{error}");
}

#[test]
fn data_and_networks_that_do_not_fit() {
    let place = Place::new();
    idx(&place);
    check(
        &place,
        "train --classes 5",
        "error: [data].train: file `train-labels-idx1`, byte 8: sample 0 has label 5, there are 5 classes (0 to 4)",
    );
    check(
        &place,
        "train --data idx:idx --batch 5",
        "error: [network].model: layer `c2` has a window of 5 along height, its padded input has only 2\n  \
         help: the data's images are 1x8x8; choose another model, or data of another size",
    );
    check(
        &place,
        "train --test-data idx:idx",
        "error: --test-data: images are 1x8x8, the network `lenet` takes 1x28x28",
    );
    check(
        &place,
        "train --model unet --data synthetic:1x28x28",
        "error: --model: layer `merge.0.concat` needs inputs that agree in samples and space, they are 1x512x3x3 and \
         1x512x2x2\n  help: the data's images are 1x28x28; choose another model, or data of another size",
    );
    let net =
        "name = \"own\"\ninput = [1, 28, 28]\n\n[[layer]]\nname = \"conv\"\nkind = \"convolution\"\nfilters = 10\n";
    place.file("net.toml", format!("{net}kernel = [31, 31]\n"));
    check(
        &place,
        "train --network net.toml",
        "error: net.toml: line 4: layer `conv` has a window of 31 along height, its padded input has only 28",
    );
    place.file("net.toml", format!("{net}kernel = [3, 3]\n"));
    check(
        &place,
        "train --network net.toml",
        "error: [data].train: targets are 1x1x1; the output of `own` is 10x26x26, its loss wants a class for each point: \
         1x26x26",
    );
    place.file("net.toml", format!("{net}krenel = [3, 3]\n"));
    assert!(place.bad("train --network net.toml").contains("net.toml: line 8, layer `conv`: unknown field `krenel`"));
}

#[test]
fn weights_that_do_not_fit_are_all_listed() {
    let place = Place::new();
    let run =
        place.json("train --classes 12 --steps 1 --batch 8 --test-data none")["run"].as_str().unwrap().to_string();
    let before = std::fs::read_dir(place.path().join("runs")).unwrap().count();
    let error = place.bad(&format!("train --weights {run}/model.safetensors"));
    assert_eq!(
        error,
        format!(
            "error: --weights: {run}/model.safetensors: 2 tensors do not fit the network\n  \
             shape:   `f2.weight` is 12x500, the network wants 10x500\n  \
             shape:   `f2.bias` is 12, the network wants 10\n"
        )
    );
    assert_eq!(std::fs::read_dir(place.path().join("runs")).unwrap().count(), before);
    // A run has its own network.
    for flag in ["--model lenet", "--classes 10", "--loss dice"] {
        let ran = place.run(&format!("eval {run} {flag}"));
        let name = flag.split(' ').next().unwrap();
        let told = ran.err.contains("cannot be used with") && ran.err.lines().next().unwrap().contains(name);
        assert!(ran.code == Some(2) && told, "{ran:?}");
    }
    let error = place.bad(&format!("eval {run} --data synthetic:3x28x28"));
    assert_eq!(error, "error: --data: images are 3x28x28, the network `lenet` takes 1x28x28\n");
    let image = vec![0.0; 28 * 28];
    write_npy(&place.path().join("x.npy"), &[1, 1, 27, 28], &image[..27 * 28]).unwrap();
    let error = place.bad(&format!("predict {run} --input x.npy other.npy"));
    assert_eq!(error, "error: `x.npy` is an array, and there are 2 files\n  help: one array, or image files only\n");
    place.file("y.npy", "precious");
    let error = place.bad(&format!("predict {run} --input x.npy --out y.npy"));
    assert_eq!(error, "error: --input: images are 1x27x28, the network `lenet` takes 1x28x28\n");
    assert_eq!(std::fs::read_to_string(place.path().join("y.npy")).unwrap(), "precious");
}

#[test]
fn a_loss_that_is_no_number_stops_the_run() {
    let place = Place::new();
    let ran = place.run("train --lr 1e6 --steps 20 --batch 16 --test-data none");
    assert_eq!(ran.code, Some(1));
    let (first, rest) = ran.err.split_once('\n').unwrap();
    assert!(first.starts_with("error: the loss became ") && first.contains(" at step "), "{}", ran.err);
    assert!(first.contains("layer `"), "{}", ran.err);
    assert!(rest.starts_with("  help: a smaller learning rate than "), "{}", ran.err);
    assert!(rest.contains("\n  kept: "), "{}", ran.err);
    let runs = place.runs();
    let [run] = &runs[..] else { panic!("{runs:?}") };
    assert!(run.join("metrics.jsonl").exists() && !run.join("model.safetensors").exists());
}

/// After the last step only the test shows what the weights are worth.
#[test]
fn a_test_loss_that_is_no_number_leaves_no_model() {
    let place = Place::new();
    let ran = place.run("train --lr 1e30 --steps 1 --batch 16");
    assert_eq!(ran.code, Some(1));
    let wanted = "error: the loss on the test data became NaN at step 1, in the output, which layer `f2` gives\n  \
                  help: a smaller learning rate than 1e30, or a warm-up\n  kept: ";
    assert!(ran.err.starts_with(wanted), "{}", ran.err);
    assert!(!place.runs()[0].join("model.safetensors").exists());
}

#[test]
fn numbers_in_data_that_are_none() {
    let place = Place::new();
    let mut values = vec![0.5; 6 * 784];
    values[4 * 784 + 17] = f32::NAN;
    write_npy(&place.path().join("x.npy"), &[6, 1, 28, 28], &values).unwrap();
    write_npy(&place.path().join("y.npy"), &[6, 10], &[0.5; 60]).unwrap();
    let job = "--data npy:x.npy,y.npy --loss mean-squared-error --batch 2 --test-data none";
    let ran = place.run(&format!("train {job}"));
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.err.starts_with("error: file `x.npy`: image 4 holds NaN, which is no number to compute with\n"),
        "{}",
        ran.err
    );
    let error = place.bad(&format!("check {job} --normalise measure"));
    assert!(error.starts_with("error: --data: file `x.npy`: image 4 holds NaN, "), "{error}");
}

/// Files may grow to so many blocks of 512 bytes (1,024 in some shells); beyond, writing fails as on a full disk.
fn with_little_space(place: &Place, blocks: usize, words: &str) -> program::Ran {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec {} {words}", env!("CARGO_BIN_EXE_convoy"));
    finish(Command::new("sh").args(["-c", &script]).current_dir(place.path()).stdin(Stdio::null()))
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    let place = Place::new();
    let job = "train --data synthetic:1x28x28:32 --batch 16 --test-data none --schedule constant";
    let run = place.json(&format!("{job} --steps 2"))["run"].as_str().unwrap().to_string();
    let checkpoints = || {
        let entries = std::fs::read_dir(format!("{run}/checkpoints")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(checkpoints(), ["step-00000002.ckpt"]);
    let ran = with_little_space(&place, 1000, &format!("train --resume {run} --steps 4"));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.starts_with(&format!("error: cannot write {run}/checkpoints/step-00000004.ckpt\n  cause: ")),
        "{ran:?}"
    );
    assert!(
        ran.err.contains(&format!("kept: {run}, last checkpoint at step 2\n  help: convoy train --resume")),
        "{ran:?}"
    );
    assert_eq!(checkpoints(), ["step-00000002.ckpt"]);
    // And there is nothing wrong with what was there.
    let resumed = place.json(&format!("train --resume {run} --steps 4"));
    assert_eq!(resumed["weights_digest"], place.json(&format!("{job} --steps 4"))["weights_digest"]);

    if std::path::Path::new("/dev/full").exists() {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = place.command("models").stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("error: cannot write to standard output\n  cause: "), "{text}");
    }
}

#[test]
fn runs_that_cannot_go_on() {
    let place = Place::new();
    let job = "train --data synthetic:1x28x28:32 --batch 16 --test-data none --steps 2";
    let run = place.json(job)["run"].as_str().unwrap().to_string();
    let error = place.bad(&format!("train --resume {run}"));
    assert!(error.starts_with(&format!("error: {run}: all 2 steps of this run are done\n  help: ")), "{error}");
    let error = place.bad(&format!("train --resume {run} --steps 5 --lr 0.5 --batch 8"));
    let wanted =
        format!("error: {run}: [train].batch and [train].schedule are not what it was when the checkpoint was written");
    assert!(error.starts_with(&wanted), "{error}");
    let error = place.bad(&format!("train --resume {run} --steps 5 --lr fast"));
    assert_eq!(error, "error: --lr: \"fast\" is not a number\n");

    // A damaged checkpoint is passed over with a warning, where there is one before it.
    place.good(&format!("train --resume {run} --steps 4 --checkpoint-every 1"));
    let newest = format!("{run}/checkpoints/step-00000004.ckpt");
    let mut bytes = std::fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    let ran = place.run(&format!("train --resume {run} --steps 5"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.starts_with("warning: passed over a damaged checkpoint: "), "{ran:?}");
    assert!(ran.out.contains("goes on after step 3 of 5"), "{ran:?}");

    std::fs::remove_file(format!("{run}/model.safetensors")).unwrap();
    let error = place.bad(&format!("eval {run}"));
    assert_eq!(error, format!("error: {run}: the run has no model yet\n  help: convoy train --resume {run}\n"));
    let ran = place.run("eval");
    assert_eq!((ran.code, ran.err.lines().next()), (Some(2), Some("error: which network?")));
}

#[test]
fn a_budget_that_one_rank_cannot_keep_is_refused_with_what_would_fit() {
    let place = Place::new();
    let words = "train --model unet --data synthetic:1x256x256:8 --batch 1 --steps 1 --threads 1 --optimizer sgd";
    let said = place.bad(&format!("{words} --memory 520MiB"));
    assert!(said.starts_with("error: --memory: a rank needs "), "{said}");
    assert!(said.contains(" under data:1 on 1 rank, 520.0 MiB is allowed\n  help: --ranks "), "{said}");
    assert!(place.runs().is_empty());
    check(
        &place,
        &format!("{words} --memory much"),
        "error: --memory: \"much\" is not a size\n  help: such as 3GiB, 500MB or 1e9",
    );
}
