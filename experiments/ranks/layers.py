#!/usr/bin/env python3
"""The four layers that Dryden et al. measured, alone, cut along their height over 1, 2 and 4 ranks, with and without overlap.

    python3 layers.py --convoy target/release/convoy --out results/<date>-<machine> [--rounds 3]
    python3 layers.py --table results/<date>-<machine>

A network is one such layer behind a factor for each channel (so that the layer has an input gradient) and before a mean squared error.
Each rank has one thread; on fewer cores than ranks, ranks share them, and efficiency is against as many cores as there are. Build with
`--features mpi`. Writes layers.jsonl and layers.md.
"""
import json
import os
import pathlib
import statistics
import tempfile

import run as ranks

# Name: channels, size, filters, kernel, padding, stride, batch.
LAYERS = {
    "resnet50 conv1": (3, 224, 64, 7, 3, 2, 4),
    "resnet50 res3b_branch2a": (512, 28, 128, 1, 0, 1, 8),
    "mesh2k conv1_1": (18, 2048, 128, 5, 2, 2, 1),
    "mesh2k conv6_1": (384, 64, 128, 3, 1, 2, 4),
}
WAYS = [(1, "threads", True)] + [(n, kind, overlap) for n in (2, 4) for kind in ("threads", "mpi") for overlap in (True, False)]
STEPS = 3
NETWORK = """name = "layer"
input = [{channels}, {size}, {size}]

[loss]
kind = "mean-squared-error"

[[layer]]
name = "factors"
kind = "convolution"
filters = {channels}
kernel = [1, 1]
groups = {channels}
bias = false

[[layer]]
name = "layer"
kind = "convolution"
filters = {filters}
kernel = [{kernel}, {kernel}]
padding = [{padding}, {padding}]
stride = [{stride}, {stride}]
bias = false
"""


def measure(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, open(out / "layers.jsonl", "a") as raw:
        for round_ in range(args.rounds):
            for name, (channels, size, filters, kernel, padding, stride, batch) in LAYERS.items():
                if args.only and args.only not in name:
                    continue
                file = pathlib.Path(folder) / "layer.toml"
                file.write_text(NETWORK.format(**locals()))
                data = f"synthetic:{channels}x{size}x{size}:{{samples}}"
                flags = ["--network", str(file), "--data", data, "--batch", str(batch), "--threads", "1"]
                for count, kind, overlap in WAYS:
                    more = ["--strategy", f"spatial:{count}x1", "--overlap", str(overlap).lower()] if count > 1 else []
                    if kind == "threads":
                        more += ["--ranks", str(count)]
                    found = ranks.convoy(args, kind, [*flags, *more], batch, STEPS, folder, count)
                    line = {"round": round_, "layer": name, "ranks": count, "kind": kind, "overlap": overlap, "batch": batch, **found}
                    raw.write(json.dumps(line) + "\n")
                    raw.flush()
                    print(f"round {round_ + 1}: {name}: {count} {kind}, overlap {overlap}: {found['seconds']:.4f} s", flush=True)


def summarise(folder):
    runs = [json.loads(line) for line in open(folder / "layers.jsonl")]
    cores = len(os.sched_getaffinity(0))
    lines = ["| layer, batch | ranks | overlap | ms a step | MiB sent a step | times as fast as one rank | efficiency |", "|---|---|---|---|---|---|---|"]
    for name in LAYERS:
        one = statistics.median([r["seconds"] for r in runs if r["layer"] == name and r["ranks"] == 1] or [float("nan")])
        for count, kind, overlap in WAYS:
            own = [r for r in runs if (r["layer"], r["ranks"], r["kind"], r["overlap"]) == (name, count, kind, overlap)]
            if not own:
                continue
            seconds = statistics.median(r["seconds"] for r in own)
            sent = sum(own[0]["bytes_sent"]) / (STEPS + ranks.WARM_UP) / 2**20
            who = "1" if count == 1 else f"{count} {'threads' if kind == 'threads' else 'processes'}"
            lines.append(f"| {name}, {own[0]['batch']} | {who} | {'yes' if overlap else 'no'} | {1e3 * seconds:.1f} | {sent:.2f} "
                         f"| {one / seconds:.2f} | {one / seconds / min(count, cores):.2f} |")
    (folder / "layers.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    ranks.main(__doc__, measure, summarise, rounds=3)
