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

#[test]
fn plans_rank_strategies_and_say_why() {
    let place = Place::new();
    let words = "plan lenet --batch 64 --ranks 4 --machine cpu-10g --samples 60000 --out plan.json";
    let out = place.good(words);
    for line in
        ["strategies priced", "memory a rank", "data:4", "chosen grid", "The runner-up", "Phases in milliseconds"]
    {
        assert!(out.contains(line), "{line}\n{out}");
    }
    let object = place.json(words);
    let candidates = object["candidates"].as_array().unwrap();
    assert!(candidates.len() >= 3 && candidates.iter().any(|c| c["strategy"] == "data:4"), "{object}");
    let seconds = |c: &serde_json::Value| c["step_seconds"].as_f64().unwrap();
    assert!(candidates.iter().all(|c| seconds(c) >= seconds(&candidates[0])));
    let plan: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(place.path().join("plan.json")).unwrap()).unwrap();
    assert_eq!(plan["strategy"], object["chosen"]["strategy"]);
    assert_eq!(plan["layers"].as_array().unwrap()[1]["layer"], "c1");
}

#[test]
fn a_budget_that_nothing_fits_says_what_would() {
    let place = Place::new();
    let said = place.bad("plan lenet --batch 64 --ranks 2 --machine cpu-10g --memory 1MiB");
    assert!(said.starts_with("error: --memory: no strategy fits 1.0 MiB a rank\n  help: `"), "{said}");
    assert!(said.contains("needs least, "), "{said}");
    check(
        &place,
        "plan lenet --memory lots",
        "error: --memory: \"lots\" is not a size\n  help: such as 3GiB, 500MB or 1e9",
    );
    // Seven ranks divide neither 64 samples nor any size: they are cut unevenly.
    let object = place.json("plan lenet --batch 64 --ranks 7 --machine cpu-10g");
    assert!(object["candidates"].as_array().unwrap().iter().any(|c| c["strategy"] == "data:7"));
}

#[test]
fn sweeps_find_where_strategies_cross() {
    let place = Place::new();
    let words = "sweep lenet --axis link-bandwidth --values 0.001,1,1000 --batch 8 --ranks 4 --machine cpu-10g \
                 --strategies data;data:2,spatial:2 --csv s.csv --svg s.svg";
    let object = place.json(words);
    let points = object["points"].as_array().unwrap();
    assert_eq!(points.len(), 6);
    let seconds = |i: usize| points[i]["step_seconds"].as_f64().unwrap();
    assert!(seconds(0) > seconds(2) && seconds(2) > seconds(4), "faster links, faster steps: {object}");
    let csv = std::fs::read_to_string(place.path().join("s.csv")).unwrap();
    assert_eq!(csv.lines().count(), 7, "{csv}");
    let svg = std::fs::read_to_string(place.path().join("s.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.matches("<polyline").count() == 2 && svg.ends_with("</svg>\n"));
    // Growing batches: a node's time stays, but for the sums.
    let weak = place.json(
        "sweep lenet --axis nodes --values 1,4 --growing --batch 16 --ranks 1 --machine cpu-10g --strategies data",
    );
    let batches: Vec<u64> = weak["points"].as_array().unwrap().iter().map(|p| p["batch"].as_u64().unwrap()).collect();
    assert_eq!(batches, [16, 64]);
    check(
        &place,
        "sweep lenet --axis batch --values 8,none",
        "error: --values: \"8,none\" is not a list of whole numbers above 0",
    );
}

#[test]
fn calibrations_are_kept_used_and_told_when_they_are_old() {
    let place = Place::new();
    let with_cache = |words: &str| {
        let mut command = place.command(words);
        command.env("XDG_CACHE_HOME", place.path().join("cache"));
        program::finish(&mut command)
    };
    let ran = with_cache("calibrate --seconds 1 --json");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let object: serde_json::Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    assert!(object["tiles"].as_u64().unwrap() > 0 && object["core_flops"].as_f64().unwrap() > 1e7, "{object}");
    let file = place.path().join("cache/convoy/machine.toml");
    let ran = with_cache("simulate lenet --batch 8");
    assert!(ran.err.is_empty() && ran.out.contains(object["machine"].as_str().unwrap()), "{ran:?}");
    // What is predicted with it is held against what steps take; memory is exact.
    let ran = with_cache(
        "bench --validate --only cifar+16+2x1+data,cifar+16+2x1+chosen --seconds 1 --out cases.jsonl --json",
    );
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let object: serde_json::Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    let cases = object["cases"].as_array().unwrap();
    let lines = std::fs::read_to_string(place.path().join("cases.jsonl")).unwrap();
    assert_eq!((cases.len(), lines.lines().count()), (2, 2), "{object}");
    for case in cases {
        let number = |name: &str| case[name].as_f64().unwrap();
        let accuracy = 1.0 - (number("predicted_seconds") / number("measured_seconds") - 1.0).abs();
        assert!((accuracy - number("accuracy_raw")).abs() < 1e-9, "{case}");
        assert_eq!(case["predicted_bytes"], case["planned_bytes"], "{case}");
    }
    let regret = &object["regrets"][0];
    assert!(regret["regret"].as_f64().unwrap() >= 0.0 && object["regrets"].as_array().unwrap().len() == 1, "{object}");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("convoy-kernels", "older-kernels")).unwrap();
    let ran = with_cache("simulate lenet --batch 8");
    assert!(ran.err.contains("was made with older-kernels"), "{}", ran.err);
    assert!(ran.err.contains("help: convoy calibrate"), "{}", ran.err);
    std::fs::write(&file, text.replacen("name = \"", "name = \"another ", 1)).unwrap();
    let ran = with_cache("simulate lenet --batch 8");
    assert!(ran.code == Some(1) && ran.err.starts_with("error: --machine: the calibration "), "{ran:?}");
    assert!(ran.err.contains(" is of another computer, another "), "{}", ran.err);
}

/// A small network that any computer has memory for.
const SMALL: &str = "train --data synthetic:1x28x28:32 --test-data none --batch 8 --steps 1 --threads 1";

#[test]
fn auto_is_the_default_and_its_choice_stays() {
    let place = Place::new();
    let with_cache = |words: &str| {
        let mut command = place.command(words);
        command.env("XDG_CACHE_HOME", place.path().join("cache"));
        program::finish(&mut command)
    };
    // One rank: nothing to choose, nothing to say.
    let one = with_cache(SMALL);
    assert!(one.err.is_empty() && !one.out.contains("chosen"), "{one:?}");
    // Nothing is known of this computer: some seconds of measuring, which are told.
    let ran = with_cache(&format!("{SMALL} --ranks 2 --json"));
    assert!(ran.err.starts_with("no calibration of this computer: measures for up to 4 s; "), "{ran:?}");
    for words in
        [" chosen: ", "ms a step and", "a rank predicted by what was measured just now, limited", "weights will "]
    {
        assert!(ran.out.contains(words), "{words}: {ran:?}");
    }
    let two: serde_json::Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    let (chosen, run) = (two["strategy"].as_str().unwrap(), two["run"].as_str().unwrap());
    let read = |name: &str| std::fs::read_to_string(format!("{run}/{name}")).unwrap();
    assert!(read("plan.json").contains(&format!("\"strategy\": \"{chosen}\"")), "{chosen}");
    assert!(read("job.toml").contains("strategy = \"auto\""), "what was asked for");
    // A run goes on with what was chosen when it began, without a word; on other ranks with another plan.
    let more = with_cache(&format!("train --resume {run} --steps 2 --json"));
    assert!(more.err.is_empty() && !more.out.contains("chosen"), "{more:?}");
    assert!(more.out.contains(&format!("\"strategy\":\"{chosen}\"")), "{more:?}");
    let three = place.json(&format!("train --resume {run} --steps 3 --ranks 3 --machine cpu-10g"));
    assert_eq!((three["ranks"].as_u64(), three["steps"].as_u64()), (Some(3), Some(3)));
}

#[test]
fn auto_plans_for_the_machine_and_the_memory_that_the_job_names() {
    let place = Place::new();
    let two = format!("{SMALL} --ranks 2 --machine cpu-10g");
    let out = place.good(&two);
    assert!(out.contains(" a rank predicted by the machine cpu-10g, limited by "), "{out}");
    // What is chosen is what `plan` puts first, or keeps the bits and is as good as that; the memory predicted is what is held.
    let plan = place.json("plan lenet --batch 8 --ranks 2 --machine cpu-10g --ranks-per-node 2 --threads 1");
    let ran = place.json(&two);
    let mut candidates = plan["candidates"].as_array().unwrap().iter().filter(|c| c["ranks"] == 2);
    let best = candidates.clone().next().unwrap()["step_seconds"].as_f64().unwrap();
    let first = candidates.find(|c| c["strategy"] == ran["strategy"]).unwrap();
    let seconds = first["step_seconds"].as_f64().unwrap();
    assert!(seconds == best || seconds < 1.03 * best && ran["strategy"] == "data:2", "{seconds} of {best}");
    let planned = ran["planned_bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap()).max();
    assert_eq!(planned, first["memory_bytes"].as_u64());
    let least = plan["candidates"].as_array().unwrap().iter().filter(|c| c["ranks"] == 2);
    let least = least.map(|c| c["memory_bytes"].as_u64().unwrap()).min().unwrap();
    let tight = place.json(&format!("{two} --memory {least}"));
    let held = tight["planned_bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap()).max().unwrap();
    assert!(held <= least, "{held} of {least}");
    let said = place.bad(&format!("{two} --memory 1MiB"));
    assert!(said.starts_with("error: --memory: no strategy for 2 ranks fits 1.0 MiB a rank\n  help: `"), "{said}");
    check(
        &place,
        &format!("{SMALL} --ranks 2 --machine abcd"),
        "error: --machine: unknown machine `abcd`\n  help: did you mean `abci`? Else one of v100-cluster, abci, cpu-10g, or a \
         file",
    );
}

/// Where weights live, whose samples norms take and how sums are made is part of what is predicted, and of what auto plans.
#[test]
fn predictions_know_how_ranks_divide_their_work() {
    let place = Place::new();
    let simulate = "simulate resnet20 --batch 16 --ranks 4 --machine cpu-10g";
    let plain = place.json(simulate);
    let bytes = |object: &serde_json::Value| object["memory_bytes"].as_u64().unwrap();
    assert!(bytes(&place.json(&format!("{simulate} --home sharded"))) < bytes(&plain));
    let messages = |more: &str| place.json(&format!("{simulate} {more}"))["messages"].as_f64().unwrap();
    assert!(messages("--batch-norm local") < messages(""), "no sums for norms");
    let ring = place.json(&format!("{simulate} --exact false"));
    assert!(ring["step_seconds"].as_f64() > plain["step_seconds"].as_f64(), "a ring has more turns");
    let library = place.json(&format!("{simulate} --exact false --sums library"));
    assert!(library["messages"].as_f64() < plain["messages"].as_f64(), "a sum is handed over once");
    // A budget that only divided weights fit.
    let plan = "plan vgg16 --batch 4 --ranks 4 --machine cpu-10g";
    let all = place.json(&format!("{plan} --goal memory"));
    assert!(all["candidates"].as_array().unwrap().iter().any(|c| c["home"] == "sharded"), "{all}");
    let said = place.good(&format!("{plan} --goal memory"));
    assert!(said.contains(", sharded"), "{said}");
    for more in ["--batch-norm local", "--home sharded", "--exact false"] {
        let two = place.json(&format!(
            "train --model resnet20 --data synthetic:3x32x32:16 --test-data none --batch 8 --steps 2 --threads 1 --ranks 2 \
             --machine cpu-10g {more}"
        ));
        assert_eq!(two["steps"], 2, "{more}");
    }
}
