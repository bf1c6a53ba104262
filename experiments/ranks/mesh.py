#!/usr/bin/env python3
"""Samples too large for one rank: the mesh networks of Dryden et al., one sample split over four processes, within a budget of memory.

    python3 mesh.py --convoy target/release/convoy --out results/<date>-<machine> [--rounds 1]
    python3 mesh.py --table results/<date>-<machine>

Build Convoy with `--features mpi`; needs mpirun. For each network: one rank must be refused within the budget, before anything is
allocated; then four processes train under it with `spatial:2x2`, and each process's peak memory, as the system saw it, is compared with
what was planned. Writes mesh.jsonl and mesh.md.
"""
import json
import pathlib
import subprocess
import tempfile

import run as ranks

# Network, sides of a sample, budget of a rank.
CASES = [("mesh1k", 1024, "2GiB"), ("mesh2k", 2048, "2GiB")]
STEPS = 3


def measure(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(out / "mesh.jsonl", "a") as raw:
        for model, size, budget in CASES * args.rounds:
            if args.only and args.only not in model:
                continue
            job = ["train", "--model", model, "--data", f"synthetic:18x{size}x{size}:{STEPS}", "--batch", "1", "--steps", STEPS,
                   "--test-data", "none", "--threads", "1", "--memory", budget, "--folder", folder, "--json"]
            job = [str(word) for word in job]
            alone = subprocess.run([args.convoy, *job], capture_output=True, text=True)
            if alone.returncode == 0:
                raise SystemExit(f"{model} fits one rank within {budget}")
            launch = ["mpirun", "-n", "4", "--oversubscribe", "--bind-to", "none"]
            found = ranks.run([*launch, args.convoy, *job, "--strategy", "spatial:2x2"], **ranks.MPI)
            keys = ["steps", "seconds", "train_loss", "planned_bytes", "peak_rss_bytes", "weight_bytes", "bytes_sent"]
            line = {"model": model, "size": size, "budget": budget, "one_rank": alone.stderr.strip(), **{k: found[k] for k in keys}}
            raw.write(json.dumps(line) + "\n")
            raw.flush()


def summarise(folder):
    lines = ["| network | budget of a rank | one rank | planned, MiB by rank | peak, MiB by rank | peak / planned, most | seconds a step |",
             "|---|---|---|---|---|---|---|"]
    for line in map(json.loads, open(folder / "mesh.jsonl")):
        mib = lambda numbers: " ".join(f"{n / 2**20:.0f}" for n in numbers)
        most = max(peak / planned for peak, planned in zip(line["peak_rss_bytes"], line["planned_bytes"]))
        lines.append(f"| {line['model']} | {line['budget']} | {line['one_rank'].splitlines()[0]} | {mib(line['planned_bytes'])} "
                     f"| {mib(line['peak_rss_bytes'])} | {most:.3f} | {line['seconds'] / line['steps']:.1f} |")
    (folder / "mesh.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    ranks.main(__doc__, measure, summarise, rounds=1)
