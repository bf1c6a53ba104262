#!/usr/bin/env python3
"""Samples too large for one rank: the mesh networks of Dryden et al., one sample split over four processes, within a budget of memory.

    python3 run.py --convoy target/release/convoy --out results/<date>-<machine> [--steps 3]
    python3 run.py --table results/<date>-<machine>

Build Convoy with `--features mpi`; needs mpirun. For each network: one rank must be refused within the budget, before anything is
allocated; then four processes train under it with `spatial:2x2`, and each process's peak memory, as the system saw it, is compared with
what was planned. Writes raw.jsonl and table.md.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

# Network, sides of a sample, budget of a rank.
CASES = [("mesh1k", 1024, "2GiB"), ("mesh2k", 2048, "2GiB")]
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}


def run(command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, env={**os.environ, **more})


def measure(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(out / "raw.jsonl", "a") as raw:
        for model, size, budget in CASES:
            job = ["train", "--model", model, "--data", f"synthetic:18x{size}x{size}:{args.steps}", "--batch", "1", "--steps", args.steps,
                   "--test-data", "none", "--threads", "1", "--memory", budget, "--folder", folder, "--json"]
            alone = run([args.convoy, *job])
            if alone.returncode == 0:
                raise SystemExit(f"{model} fits one rank within {budget}")
            launch = ["mpirun", "-n", "4", "--oversubscribe", "--bind-to", "none"]
            four = run([*launch, args.convoy, *job, "--strategy", "spatial:2x2"], **MPI)
            if four.returncode != 0:
                raise SystemExit(four.stdout + four.stderr)
            found = json.loads([line for line in four.stdout.splitlines() if line.startswith("{")][-1])
            keys = ["steps", "seconds", "train_loss", "planned_bytes", "peak_rss_bytes", "weight_bytes", "bytes_sent"]
            line = {"model": model, "size": size, "budget": budget, "one_rank": alone.stderr.strip(), **{k: found[k] for k in keys}}
            raw.write(json.dumps(line) + "\n")
            raw.flush()


def summarise(folder):
    lines = ["| network | budget of a rank | one rank | planned, MiB by rank | peak, MiB by rank | peak / planned, most | seconds a step |",
             "|---|---|---|---|---|---|---|"]
    for line in map(json.loads, open(folder / "raw.jsonl")):
        mib = lambda numbers: " ".join(f"{n / 2**20:.0f}" for n in numbers)
        most = max(peak / planned for peak, planned in zip(line["peak_rss_bytes"], line["planned_bytes"]))
        lines.append(f"| {line['model']} | {line['budget']} | {line['one_rank'].splitlines()[0]} | {mib(line['planned_bytes'])} "
                     f"| {mib(line['peak_rss_bytes'])} | {most:.3f} | {line['seconds'] / line['steps']:.1f} |")
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--convoy", default="target/release/convoy")
parser.add_argument("--out")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--table", help="only the table of results that are there")
args = parser.parse_args()
if not args.table:
    if not args.out:
        parser.error("--out FOLDER is needed")
    measure(args)
summarise(pathlib.Path(args.table or args.out))
