#!/usr/bin/env python3
"""How near predicted step times are to measured ones, and what the planner's choices cost.

usage: run.py CONVOY RESULTS-FOLDER [--only LIST] [--seconds N] [--mpi]

Calibrates this computer (two minutes) and runs `convoy bench --validate`, with ranks that are threads; with --mpi both under mpirun, two processes
and then one, and CONVOY is built with `--features mpi`. Writes the calibration, raw.jsonl (a line for each case) and table.txt into the folder.
Nothing else should run on the computer meanwhile.
"""
import argparse, os, shutil, subprocess, sys

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

def launch(processes):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(processes)] if args.mpi else []

text = run(launch(2) + [args.convoy, "calibrate", "--seconds", args.calibrate_seconds])
words = [args.convoy, "bench", "--validate", "--seconds", args.seconds, "--out", raw] + (["--only", args.only] if args.only else [])
for processes in [2, 1] if args.mpi else [1]:
    text += run(launch(processes) + words)

calibration = "machine-mpi.toml" if args.mpi else "machine.toml"
shutil.copy(os.path.join(folder, "cache", "convoy", calibration), os.path.join(folder, calibration))
shutil.rmtree(os.path.join(folder, "cache"))
text = text.replace(folder + os.sep, "")
open(os.path.join(folder, "table.txt"), "w").write(text)
print(text)
