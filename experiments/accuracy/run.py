#!/usr/bin/env python3
"""How near predicted step times are to measured ones, and what the planner's choices cost.

usage: run.py CONVOY RESULTS-FOLDER [--only LIST] [--seconds N] [--mpi]

Calibrates this computer (two minutes) and runs `convoy bench --validate`, with ranks that are threads. With --mpi instead: calibrates two
processes and runs cases under mpirun through `convoy train`, whose JSON has what was predicted and measured; CONVOY is then built
with `--features mpi`. Writes the calibration, raw.jsonl (a line for each case) and table.txt into the folder. Nothing else should run on
the computer meanwhile.
"""
import argparse, json, os, shutil, subprocess, sys

parser = argparse.ArgumentParser()
parser.add_argument("convoy")
parser.add_argument("folder")
parser.add_argument("--only", default="")
parser.add_argument("--seconds", default="5")
parser.add_argument("--calibrate-seconds", default="120")
parser.add_argument("--mpi", action="store_true")
args = parser.parse_args()
folder = os.path.abspath(args.folder)
os.makedirs(folder, exist_ok=True)
raw = os.path.join(folder, "raw.jsonl")
if os.path.exists(raw):
    sys.exit(f"{raw} is there already: results are never overwritten")
environment = dict(os.environ, XDG_CACHE_HOME=os.path.join(folder, "cache"))

def run(words):
    print(" ".join(words), file=sys.stderr)
    return subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True, cwd=folder).stdout

LAUNCH = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
calibrate = [args.convoy, "calibrate", "--seconds", args.calibrate_seconds]
text = run(LAUNCH + calibrate if args.mpi else calibrate)
if not args.mpi:
    words = [args.convoy, "bench", "--validate", "--seconds", args.seconds, "--out", raw]
    text += run(words + (["--only", args.only] if args.only else []))

# Two processes under mpirun.
MPI = [("resnet18-cifar", "3x32x32", 10, 64), ("resnet50", "3x224x224", 1000, 8), ("alexnet", "3x224x224", 1000, 16), ("unet", "1x256x256", None, 1)]
if args.mpi:
    rows = []
    for model, shape, classes, batch in MPI:
        for strategy in ["data", "spatial", "filter"]:
            if args.only and model not in args.only:
                continue
            job = [args.convoy, "train", "--model", model, "--data", f"synthetic:{shape}:{batch * 8}", "--batch", str(batch), "--steps", "6",
                   "--input-shape", shape, *(["--classes", str(classes)] if classes else []),
                   "--test-data", "none", "--threads", "1", "--strategy", strategy, "--folder", os.path.join(folder, "runs"),
                   "--checkpoint-every", "0", "--json"]
            out = run(LAUNCH + job)
            times = json.loads(out.strip().splitlines()[-1])["times"]
            predicted, measured = times["predicted_step_seconds"], times["measured_step_seconds"]
            row = {"network": model, "batch": batch, "ranks": 2, "threads": 1, "strategy": strategy, "transport": "mpi",
                   "predicted_seconds": predicted, "measured_seconds": measured, "accuracy_raw": 1 - abs(predicted - measured) / measured}
            rows.append(row)
            open(raw, "a").write(json.dumps(row) + "\n")
    mean = sum(row["accuracy_raw"] for row in rows) / max(len(rows), 1)
    text += "\nunder mpirun, two processes:\n"
    text += "".join(f'{r["network"]:16} {r["batch"]:4} {r["strategy"]:8} predicted {1e3 * r["predicted_seconds"]:9.2f} ms, measured '
                    f'{1e3 * r["measured_seconds"]:9.2f} ms, accuracy {100 * r["accuracy_raw"]:.1f} %\n' for r in rows)
    text += f"mean {100 * mean:.1f} %, least {100 * min((r['accuracy_raw'] for r in rows), default=0):.1f} %\n"
    shutil.rmtree(os.path.join(folder, "runs"), ignore_errors=True)

calibration = "machine-mpi.toml" if args.mpi else "machine.toml"
shutil.copy(os.path.join(folder, "cache", "convoy", calibration), os.path.join(folder, calibration))
shutil.rmtree(os.path.join(folder, "cache"))
text = text.replace(folder + os.sep, "")
open(os.path.join(folder, "table.txt"), "w").write(text)
print(text)
