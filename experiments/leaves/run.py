#!/usr/bin/env python3
"""What sums over leaves cost: training steps with eight leaves beside steps with one, on one machine.

    python3 run.py --out results/<date>-<machine> [--rounds 5] [--nets lenet,resnet50]
    python3 run.py --table results/<date>-<machine>

Builds with cargo and runs from the repository's root. In every round each network runs once with one leaf and once with eight, one after the
other, the order changing from round to round. Writes raw.jsonl, every run's own figures, machine.txt and table.md.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import machine

CONVOY = "target/release/convoy"
# Network, batch, steps that are measured.
CASES = [
    ("lenet", 128, 120),
    ("resnet18-cifar", 128, 3),
    ("resnet50", 16, 3),
    ("vgg16", 8, 3),
    ("unet", 4, 3),
    ("alexnet", 64, 3),
    ("mobilenet-v2", 32, 3),
]
LEAVES = [1, 8]
KEPT = ["step_seconds", "step_seconds_all", "fold_seconds", "threads", "leaves", "planned_bytes"]


def output(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measure(out, rounds, nets):
    output(["cargo", "build", "--release", "-p", "convoy"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "command.txt").write_text(" ".join(sys.argv) + "\n")
    machine.write(out)
    with open(out / "raw.jsonl", "a") as raw:
        for round_ in range(rounds):
            for net, batch, steps in (case for case in CASES if not nets or case[0] in nets):
                for leaves in LEAVES[:: -1 if round_ % 2 else 1]:
                    words = f"bench {net} --batch {batch} --steps {steps} --threads 2 --leaves {leaves} --json"
                    found = json.loads(output([CONVOY, *words.split()]).splitlines()[-1])
                    line = {"round": round_, "net": net, "batch": batch, **{key: found[key] for key in KEPT}}
                    raw.write(json.dumps(line) + "\n")
                    raw.flush()
                    print(f"round {round_ + 1}: {net}, leaves {leaves}: {line['step_seconds']:.4f} s", flush=True)


def summarise(folder):
    runs = [json.loads(line) for line in open(folder / "raw.jsonl")]
    rounds = 1 + max(run["round"] for run in runs)
    lines = [
        f"| medians of {rounds} rounds | 1 leaf, s | 8 leaves, s | more, % of the step | least and most of a round, % | of these, adding leaves in memory, % |",
        "|---|---|---|---|---|---|",
    ]
    for net, batch, _ in CASES:
        of = {leaves: [run for run in runs if run["net"] == net and run["leaves"] == leaves] for leaves in LEAVES}
        if not all(of.values()):
            continue
        one, eight = (statistics.median(run["step_seconds"] for run in of[leaves]) for leaves in LEAVES)
        more = lambda one, eight: 100 * (eight - one) / eight
        each = sorted(more(a["step_seconds"], b["step_seconds"]) for a, b in zip(of[1], of[8]))
        # Seconds of all threads, of the threads' time.
        fold = 100 * statistics.median(run["fold_seconds"] / run["threads"] / run["step_seconds"] for run in of[8])
        lines.append(f"| {net}, batch {batch} | {one:.4f} | {eight:.4f} | {more(one, eight):.1f} | {each[0]:.1f} to {each[-1]:.1f} | {fold:.1f} |")
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nets", type=lambda text: text.split(","), help="some networks only, with commas")
    parser.add_argument("--table", type=pathlib.Path, help="only the table of results that are there")
    args = parser.parse_args()
    if not args.table:
        if not args.out:
            parser.error("--out FOLDER is needed")
        measure(args.out, args.rounds, args.nets)
    summarise(args.table or args.out)


if __name__ == "__main__":
    main()
