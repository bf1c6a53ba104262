#!/usr/bin/env python3
"""Where the time of two ranks goes beside one rank of two threads: resnet18-cifar, from traces.

    python3 traces.py --convoy target/release/convoy --out results/<date>-<machine> [--rounds 5]
    python3 traces.py --table results/<date>-<machine>

In every round both ways run once, one after the other, with `--trace`. Writes traces.jsonl, what all workers together did by kind of op, and
traces.md, medians of the rounds.
"""
import collections
import json
import pathlib
import re
import statistics
import tempfile

import run as ranks

WAYS = {"one rank, two threads": ["--threads", "2"], "two ranks": ranks.TWO_RANKS}
# A trace has three steps, after two that are left out.
TRACED, STEPS = 3, 4
# Kinds of ops by the names they have in a trace: the first that fits.
KINDS = [
    ("waiting", r"^wait$"),
    ("sums of gradients and statistics over ranks", r"^combine "),
    ("updates", r" Update$"),
    ("weights brought into Winograd's domain", r" Transform\((1|4)\)$"),
    ("all else", r""),
]


def milliseconds(path):
    """Of all workers together, by kind, for a step."""
    sums = collections.Counter()
    for event in json.load(open(path)):
        # Threads from 1000 on are messages.
        if event["ph"] == "X" and event["tid"] < 1000:
            kind = next(kind for kind, pattern in KINDS if re.search(pattern, event["name"]))
            sums[kind] += event["dur"] / 1e3 / TRACED
    return sums


def measure(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(out / "traces.jsonl", "a") as raw:
        trace = pathlib.Path(folder) / "trace.json"
        for round_ in range(args.rounds):
            for way, flags in WAYS.items():
                ranks.convoy(args, "threads", [*ranks.RESNET18, *flags, "--trace", str(trace)], 128, STEPS, folder)
                raw.write(json.dumps({"round": round_, "way": way, "milliseconds": milliseconds(trace)}) + "\n")


def summarise(folder):
    runs = [json.loads(line) for line in open(folder / "traces.jsonl")]
    of = lambda way, kind: statistics.median(r["milliseconds"].get(kind, 0.0) for r in runs if r["way"] == way)
    rounds = 1 + max(r["round"] for r in runs)
    lines = [f"| ms of both cores a step, medians of {rounds} rounds | {' | '.join(WAYS)} |", "|---|---|---|"]
    for kind, _ in reversed(KINDS):
        lines.append(f"| {kind} | " + " | ".join(f"{of(way, kind):.0f}" for way in WAYS) + " |")
    (folder / "traces.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    ranks.main(__doc__, measure, summarise, rounds=5)
