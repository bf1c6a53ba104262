#!/usr/bin/env python3
"""How near predicted step times are to measured ones, and what the planner's choices cost.

usage: run.py CONVOY RESULTS-FOLDER [--only LIST] [--seconds N] [--mpi CONVOY-WITH-MPI]

Calibrates this computer (two minutes), runs `convoy bench --validate` (ranks as threads), and with --mpi the cases of two ranks under
mpirun through `convoy train`, whose JSON has what was predicted and measured. Writes machine.toml, raw.jsonl (a line for each case) and
table.txt into the folder. Nothing else should run on the computer meanwhile.
"""
import argparse, json, os, shutil, subprocess, sys

parser = argparse.ArgumentParser()
parser.add_argument("convoy")
parser.add_argument("folder")
parser.add_argument("--only", default="")
parser.add_argument("--seconds", default="5")
parser.add_argument("--calibrate-seconds", default="120")
parser.add_argument("--mpi")
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

text = run([args.convoy, "calibrate", "--seconds", args.calibrate_seconds])
words = [args.convoy, "bench", "--validate", "--seconds", args.seconds, "--out", raw]
text += run(words + (["--only", args.only] if args.only else []))

# Two processes under mpirun: predicted with the same calibration, which knows messages between threads only.
MPI = [("resnet18-cifar", "3x32x32", 10, 64), ("resnet50", "3x224x224", 1000, 8), ("alexnet", "3x224x224", 1000, 16), ("unet", None, None, 1)]
if args.mpi:
    rows = []
    for model, shape, classes, batch in MPI:
        for strategy in ["data", "spatial", "filter"]:
            if shape is None or (args.only and model not in args.only):
                continue
            job = [args.mpi, "train", "--model", model, "--data", f"synthetic:{shape}:{batch * 8}", "--classes", str(classes), "--batch", str(batch),
                   "--steps", "6", "--test-data", "none", "--threads", "1", "--strategy", strategy, "--folder", os.path.join(folder, "runs"),
                   "--checkpoint-every", "0", "--json"]
            out = run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"] + job)
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

shutil.copy(os.path.join(folder, "cache", "convoy", "machine.toml"), os.path.join(folder, "machine.toml"))
shutil.rmtree(os.path.join(folder, "cache"))
open(os.path.join(folder, "table.txt"), "w").write(text)
print(text)
