#!/usr/bin/env python3
"""Steps of several ranks beside one rank, and beside PyTorch's DistributedDataParallel, on one machine.

    python3 run.py --convoy target/release/convoy --out results/<date>-<machine> [--rounds 5] [--only CASES]
    python3 run.py --table results/<date>-<machine>

Build Convoy with `--features mpi`; needs mpirun, and torch for the comparison with DDP. In every round each way of a case runs once, one
after the other, in processes of its own. A way's figure is the median over rounds of the median step. Steps of Convoy are
those of `convoy train` on synthetic data, from its metrics. Writes raw.jsonl, machine.txt and table.md.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import machine

DDP = HERE.parent / "against-pytorch" / "bench_ddp.py"
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}

RESNET18 = ["--model", "resnet18-cifar", "--data", "synthetic:3x32x32:{samples}", "--batch", "128"]
UNET = ["--model", "unet", "--input-shape", "1x512x512", "--data", "synthetic:1x512x512:{samples}", "--batch", "1"]
RESNET50 = ["--model", "resnet50", "--data", "synthetic:3x224x224:{samples}", "--batch", "16"]
LENET = ["--model", "lenet", "--data", "synthetic:1x28x28:{samples}", "--batch", "128"]
ONE = ["--threads", "1"]
TWO_RANKS = ["--ranks", "2", *ONE]
LOCAL = ["--batch-norm", "local"]
# Case: (flags, batch, steps, base, ways). A way: (name, kind, flags). The ratio is base's seconds / way's seconds.
CASES = {
    "resnet18-cifar data": (RESNET18, 128, 4, "1 rank, 2 threads", [
        ("1 rank, 2 threads", "threads", ["--threads", "2"]),
        ("2 ranks", "threads", TWO_RANKS),
        ("2 processes", "mpi", ONE),
        ("2 ranks, batch norm local", "threads", [*TWO_RANKS, *LOCAL]),
        ("2 that know nothing of each other, half a batch each", "alone", ONE),
    ]),
    "unet 512 spatial": (UNET, 1, 3, "1 rank, 2 threads", [
        ("1 rank, 2 threads", "threads", ["--threads", "2"]),
        ("2 ranks, spatial:2x1", "threads", [*TWO_RANKS, "--strategy", "spatial:2x1"]),
        ("2 processes, spatial:2x1", "mpi", [*ONE, "--strategy", "spatial:2x1"]),
    ]),
    "resnet50 against DDP": (RESNET50, 16, 3, "best of DDP", [
        ("2 ranks, batch norm local", "threads", [*TWO_RANKS, *LOCAL]),
        ("DDP plain/nchw", "ddp", ["resnet50", "plain", "nchw"]),
        ("2 ranks, batch norm global", "threads", TWO_RANKS),
        ("DDP eager/nhwc", "ddp", ["resnet50", "eager", "nhwc"]),
        ("2 processes, batch norm local", "mpi", [*ONE, *LOCAL]),
        ("DDP plain/nhwc", "ddp", ["resnet50", "plain", "nhwc"]),
        ("2 processes, batch norm global", "mpi", ONE),
    ]),
    "lenet against DDP": (LENET, 128, 200, "best of DDP", [
        ("2 ranks", "threads", TWO_RANKS),
        ("DDP eager/nhwc", "ddp", ["lenet", "eager", "nhwc"]),
        ("2 processes", "mpi", ONE),
        ("DDP plain/nhwc", "ddp", ["lenet", "plain", "nhwc"]),
        ("DDP eager/nchw", "ddp", ["lenet", "eager", "nchw"]),
    ]),
}
WARM_UP = 2


def run(command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env={**os.environ, **more})
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    # PyTorch's processes may fail as they end, with their figures printed.
    if not lines or done.returncode != 0 and DDP not in command:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def convoy(args, kind, flags, batch, steps, folder, processes=2):
    flags = [word.format(samples=batch * (steps + WARM_UP)) for word in flags]
    if "--strategy" not in flags:
        flags += ["--strategy", "data"]
    flags += ["--epochs", "1", "--test-data", "none", "--digest-every", "0", "--checkpoint-every", "0", "--folder", folder, "--json"]
    launch = ["mpirun", "-n", str(processes), "--oversubscribe", "--bind-to", "core"] if kind == "mpi" else []
    found = run([*launch, args.convoy, "train", *flags], **(MPI if kind == "mpi" else {}))
    metrics = [json.loads(line) for line in open(pathlib.Path(found["run"]) / "metrics.jsonl")]
    times = [0.0] + [line["seconds"] for line in metrics if line["kind"] == "step"]
    seconds = [b - a for a, b in zip(times, times[1:])][WARM_UP:]
    return {"seconds": statistics.median(seconds), "all": seconds, "bytes_sent": found["bytes_sent"], "planned": found["planned_bytes"]}


def alone(args, flags, batch, steps, folder):
    """What ranks that never meet would take: two trainings at once, the slower of both."""
    flags = [str(batch // 2) if before == "--batch" else word for before, word in zip([""] + flags, flags)]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        starts = [pool.submit(convoy, args, "threads", flags, batch // 2, steps, f"{folder}/{i}") for i in range(2)]
        return max((start.result() for start in starts), key=lambda found: found["seconds"])


def ddp(args, net, mode, layout, batch, steps):
    command = [sys.executable, DDP, net, "--batch", batch, "--procs", 2, "--threads", 1, "--mode", mode, "--layout", layout,
               "--steps", 3 if steps < 10 else 10, "--max-seconds", 40, "--json"]
    found = run(command)
    return {"seconds": found["step_s"], "raw": found}


def measure(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "command.txt").write_text(" ".join(sys.argv) + "\n")
    machine.write(out)
    with tempfile.TemporaryDirectory() as folder, open(out / "raw.jsonl", "a") as raw:
        for round_ in range(args.rounds):
            for case, (flags, batch, steps, _, ways) in CASES.items():
                if args.only and args.only not in case:
                    continue
                for name, kind, more in ways:
                    if kind == "ddp":
                        found = ddp(args, *more, batch, steps)
                    elif kind == "alone":
                        found = alone(args, [*flags, *more], batch, steps, folder)
                    else:
                        found = convoy(args, kind, [*flags, *more], batch, steps, folder)
                    raw.write(json.dumps({"round": round_, "case": case, "way": name, **found}) + "\n")
                    raw.flush()
                    print(f"round {round_ + 1}: {case}: {name}: {found['seconds']:.4f} s", flush=True)


def summarise(folder):
    runs = [json.loads(line) for line in open(folder / "raw.jsonl")]
    lines = ["| case | way | seconds a step | times as fast as the base | base | rounds |", "|---|---|---|---|---|---|"]
    for case, (_, _, _, base, ways) in CASES.items():
        of = {name: [r["seconds"] for r in runs if r["case"] == case and r["way"] == name] for name, _, _ in ways}
        of = {name: seconds for name, seconds in of.items() if seconds}
        if not of:
            continue
        median = {name: statistics.median(seconds) for name, seconds in of.items()}
        if base == "best of DDP":
            base = min((name for name in median if name.startswith("DDP")), key=median.get)
        for name, seconds in median.items():
            lines.append(f"| {case} | {name} | {seconds:.4f} | {median[base] / seconds:.2f} | {base} | {len(of[name])} |")
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main(doc, measure, summarise, rounds):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convoy", default="target/release/convoy")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--only", help="cases with this in their name")
    parser.add_argument("--table", help="only the table of results that are there")
    args = parser.parse_args()
    if not args.table:
        if not args.out:
            parser.error("--out FOLDER is needed")
        measure(args)
    summarise(pathlib.Path(args.table or args.out))


if __name__ == "__main__":
    main(__doc__, measure, summarise, rounds=5)
