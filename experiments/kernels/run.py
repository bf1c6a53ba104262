#!/usr/bin/env python3
"""Convolutions per pass against the peak, Winograd against direct, and two threads against one, on one machine.

    python3 run.py --out results/<date>-<machine> [--rounds 3]
    python3 run.py --table results/<date>-<machine>

Builds with cargo and runs from the repository's root. In every round each way runs once, one after the other. Passes are sums over a network's
layers as often as they occur, of the processor time of two threads; steps are by wall clock. Writes raw.jsonl, every run's own output, machine.txt and
table.md.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import machine

EXAMPLE = "target/release/examples/convolutions"
CONVOY = "target/release/convoy"
THREE = "kernel [3, 3] stride 1"
# Name: the example's arguments.
PASSES = {
    "resnet50 direct": ["resnet50", "16", "2", "off"],
    "vgg16 3x3 direct": ["vgg16", "8", "2", "off", THREE],
    "vgg16 3x3 winograd": ["vgg16", "8", "2", "4x4", THREE],
    "unet 3x3 direct": ["unet", "4", "2", "off", THREE],
    "unet 3x3 winograd": ["unet", "4", "2", "4x4", THREE],
}
STEPS = {"resnet18-cifar": "64", "resnet50": "8"}


def output(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measure(out, rounds):
    output(["cargo", "build", "--release", "-p", "convoy-kernels", "--example", "convolutions"])
    output(["cargo", "build", "--release", "-p", "convoy"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "command.txt").write_text(" ".join(sys.argv) + "\n")
    machine.write(out)
    with open(out / "raw.jsonl", "a") as raw:
        for round_ in range(rounds):
            for name, arguments in PASSES.items():
                text = output([EXAMPLE, *arguments])
                (out / f"{name.replace(' ', '-')}-{round_ + 1}.txt").write_text(text)
                cells = re.findall(r"(\d+) +([\d.]+)", text.splitlines()[-1])
                line = {"percent": [float(p) for p, _ in cells], "milliseconds": [float(t) for _, t in cells]}
                raw.write(json.dumps({"round": round_, "what": name, **line}) + "\n")
            for net, batch in STEPS.items():
                for threads in "12":
                    text = output([CONVOY, "bench", net, "--batch", batch, "--threads", threads, "--steps", "3", "--json"])
                    seconds = json.loads(text.splitlines()[-1])["step_seconds"]
                    raw.write(json.dumps({"round": round_, "what": f"{net} step, {threads}", "seconds": seconds}) + "\n")
            raw.flush()


def summarise(folder):
    runs = [json.loads(line) for line in open(folder / "raw.jsonl")]

    def median(what, key, *at):
        values = [run[key] for run in runs if run["what"] == what]
        return statistics.median(value[at[0]] if at else value for value in values)

    passes = lambda what, key: [median(what, key, i) for i in range(3)]
    rounds = 1 + max(run["round"] for run in runs)
    lines = [f"| medians of {rounds} rounds | forward | input gradient | weight gradient |", "|---|---|---|---|"]
    for name in PASSES:
        lines.append("| " + " | ".join([f"{name}, % of peak", *(f"{v:.0f}" for v in passes(name, "percent"))]) + " |")
    for net in ["vgg16", "unet"]:
        pairs = zip(*(passes(f"{net} 3x3 {how}", "milliseconds") for how in ["direct", "winograd"]))
        lines.append("| " + " | ".join([f"{net} 3x3, winograd against direct", *(f"{a / b:.2f}" for a, b in pairs)]) + " |")
    lines += ["", "| step | 1 thread, s | 2 threads, s | times as fast |", "|---|---|---|---|"]
    for net in STEPS:
        one, two = (median(f"{net} step, {threads}", "seconds") for threads in "12")
        lines.append(f"| {net}, batch {STEPS[net]} | {one:.3f} | {two:.3f} | {one / two:.2f} |")
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", type=pathlib.Path, help="only the table of results that are there")
    args = parser.parse_args()
    if not args.table:
        if not args.out:
            parser.error("--out FOLDER is needed")
        measure(args.out, args.rounds)
    summarise(args.table or args.out)


if __name__ == "__main__":
    main()
