"""Two ways of a training step beside each other: what experiments that compare `convoy bench` with itself share.

In every round each network runs once each way, one after the other, the order changing from round to round. Writes raw.jsonl (every run's own
figures), machine.txt, command.txt and table.md.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import machine

CONVOY = "target/release/convoy"


def steps(net, batch, count, *flags, started=lambda process: None):
    """Figures of so many training steps on two threads; `started` sees the process as soon as it runs."""
    words = ["bench", net, "--batch", str(batch), "--steps", str(count), "--threads", "2", *flags, "--json"]
    process = subprocess.Popen([CONVOY, *words], stdout=subprocess.PIPE, text=True)
    started(process)
    printed, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"convoy {' '.join(words)} ended with {process.returncode}")
    return json.loads(printed.splitlines()[-1])


def measure(out, rounds, cases, ways, run, kept):
    subprocess.run(["cargo", "build", "--release", "-p", "convoy"], check=True, capture_output=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "command.txt").write_text(" ".join(sys.argv) + "\n")
    machine.write(out)
    with open(out / "raw.jsonl", "a") as raw:
        for round_ in range(rounds):
            for net, batch, count in cases:
                for way in ways[:: -1 if round_ % 2 else 1]:
                    found = run(net, batch, count, way)
                    line = {"round": round_, "net": net, "batch": batch, "way": way, **{key: found[key] for key in kept}}
                    raw.write(json.dumps(line) + "\n")
                    raw.flush()
                    print(f"round {round_ + 1}: {net}, {way}: {line['step_seconds']:.4f} s", flush=True)


def summarise(folder, cases, ways, columns):
    """`columns`: head, and what stands there of all runs of the first way and of the second."""
    runs = [json.loads(line) for line in open(folder / "raw.jsonl")]
    head = [f"medians of {1 + max(run['round'] for run in runs)} rounds", *(f"{way}, s" for way in ways), *columns]
    lines = [head, ["---"] * len(head)]
    for net, batch, _ in cases:
        of = [[run for run in runs if (run["net"], run["way"]) == (net, way)] for way in ways]
        if all(of):
            lines.append([f"{net}, batch {batch}", *(f"{median(way):.4f}" for way in of), *(of_both(*of) for of_both in columns.values())])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    (folder / "table.md").write_text(table)
    print(table, end="")


def seconds(runs):
    return [run["step_seconds"] for run in runs]


def median(runs):
    return statistics.median(seconds(runs))


def main(doc, cases, ways, run, columns, kept=("step_seconds", "step_seconds_all")):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nets", type=lambda text: text.split(","), help="some networks only, with commas")
    parser.add_argument("--table", type=pathlib.Path, help="only the table of results that are there")
    args = parser.parse_args()
    if not args.table:
        if not args.out:
            parser.error("--out FOLDER is needed")
        measure(args.out, args.rounds, [case for case in cases if not args.nets or case[0] in args.nets], ways, run, kept)
    summarise(args.table or args.out, cases, ways, columns)
