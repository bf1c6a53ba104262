//! Predictions from the command line: what is printed, and what is said about bad input.

mod program;

use program::Place;

/// What a command must say.
fn check(place: &Place, words: &str, wanted: &str) {
    assert_eq!(place.bad(words).trim_end(), wanted.trim(), "convoy {words}");
}

#[test]
fn simulate_prints_an_estimate_and_writes_a_trace() {
    let place = Place::new();
    let words =
        "simulate lenet --batch 64 --ranks 8 --strategy data:4,spatial:2 --machine cpu-10g --layers --trace t.json";
    let out = place.good(words);
    for line in ["lenet, batch 64, 8 ranks with 16 threads each, strategy data:4,spatial:2, on cpu-10g", "bottleneck: "]
    {
        assert!(out.contains(line), "{line}\n{out}");
    }
    let object = place.json(words);
    let number = |name: &str| object[name].as_f64().unwrap_or_else(|| panic!("{name}: {object}"));
    let phases = ["compute", "halo", "reduction", "redistribution", "wait"].map(|p| number(&format!("{p}_seconds")));
    assert!((phases.iter().sum::<f64>() / number("step_seconds") - 1.0).abs() < 1e-9);
    assert!(number("halo_seconds") > 0.0 && number("sent_bytes") > 0.0 && number("messages") > 0.0);
    assert!((number("images_per_second") * number("step_seconds") - 64.0).abs() < 1e-9);
    // The engine of a rank holds weights, their gradients and momenta at least.
    assert!(number("memory_bytes") > 3.0 * 4.0 * 431_080.0);
    assert!(object["layers"].as_array().unwrap().iter().any(|row| row["layer"] == "c1"));
    let trace: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path().join("t.json")).unwrap()).unwrap();
    let events = trace.as_array().unwrap();
    assert!(events.iter().any(|e| e["name"] == "c1 Forward" && e["pid"] == 1 && e["dur"].as_f64().unwrap() > 0.0));
}

#[test]
fn a_thousand_ranks_are_as_fast_to_ask_about_as_one() {
    let place = Place::new();
    let object = place.json("simulate lenet --batch 4096 --ranks 1024 --machine v100-cluster");
    assert_eq!((object["ranks"].as_u64(), object["simulated_ranks"].as_u64()), (Some(1024), Some(4)));
    let one = place.json("simulate lenet --batch 4 --ranks 1 --machine v100-cluster");
    assert!(object["step_seconds"].as_f64() > one["step_seconds"].as_f64(), "sums over ranks take time");
}

#[test]
fn machines_of_ones_own_are_read() {
    let place = Place::new();
    let text = include_str!("../../../machines/cpu-10g.toml");
    place.file("slow.toml", text.replace("core_flops = 60e9", "core_flops = 6e6").replace("\"cpu-10g\"", "\"slow\""));
    let seconds =
        |machine: &str| place.json(&format!("simulate lenet --machine {machine}"))["step_seconds"].as_f64().unwrap();
    assert!(seconds("slow.toml") > 10.0 * seconds("cpu-10g"));
}

#[test]
fn bad_input_is_told() {
    let place = Place::new();
    let text = include_str!("../../../machines/cpu-10g.toml");
    for (from, to, wanted) in [
        ("cores = 16\n", "", "[[nodes]] number 1, `cores` is missing\n  help: a whole number from 1 to 65536"),
        (
            "bandwidth = 1.25e9",
            "bandwidth = -5",
            "[[levels]] number 2, bandwidth = -5 is not possible\n  help: a number from 1e0 to 1e16",
        ),
        (
            "memory_bytes = 64e9",
            "memory_bytes = 64e90",
            "[[nodes]] number 1, memory_bytes = 6.4e91 is not possible\n  help: a number from 1e6 to 1e18",
        ),
    ] {
        place.file("m.toml", text.replacen(from, to, 1));
        check(&place, "simulate lenet --machine m.toml", &format!("error: m.toml: {wanted}"));
    }
    check(
        &place,
        "simulate lenet --machine abcd",
        "error: --machine: unknown machine `abcd`\n  help: did you mean `abci`? Else one of v100-cluster, abci, cpu-10g, or a \
         file",
    );
    check(
        &place,
        "simulate lenet --ranks 3 --strategy data:2",
        "error: --strategy: strategy `data:2` has 2 parts, the job has 3 ranks\n  \
         help: the product of all parts must be the number of ranks",
    );
    check(&place, "simulate lenet --ranks 0", "error: --ranks: 0 is not a whole number from 1 to 1048576");
    check(&place, "simulate lenet --batch 0", "error: --batch: 0 is not a whole number, 1 or more");
    check(
        &place,
        "simulate unet --batch 1 --ranks 256 --strategy spatial:16x16",
        "error: 256 of 256 ranks have different work, at most 64 can be told apart\n  help: fewer parts in space, or a batch \
         that the parts of samples divide",
    );
}
