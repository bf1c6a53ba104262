#!/usr/bin/env python3
"""Simulation beside published results: Dryden et al. 2019 (strong scaling) and ParaDL 2021 (seconds of an epoch).

usage: run.py CONVOY RESULTS-FOLDER
Writes mesh1k.toml (the network of the first paper), raw.csv and table.md into the folder. plot.py plots them.
"""
import csv, json, os, subprocess, sys

convoy, folder = sys.argv[1], sys.argv[2]
os.makedirs(folder, exist_ok=True)

def simulate(net, batch, ranks, strategy, machine):
    words = [convoy, "simulate", net, "--batch", batch, "--ranks", ranks, "--strategy", strategy, "--machine", machine,
             "--collectives", "cheapest", "--json"]
    out = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=900)
    if out.returncode != 0:
        print(" ".join(map(str, words)), out.stderr, file=sys.stderr)
        return None
    return json.loads(out.stdout.strip().splitlines()[-1])

# Dryden's 1K mesh model: every convolution is followed by ReLU and batch norm.
mesh = os.path.join(folder, "mesh1k.toml")
lines = ['name = "mesh1k"', "input = [18, 1024, 1024]", "", "[loss]", 'kind = "mean-squared-error"']
def layer(name, kind, **fields):
    lines.append(f'\n[[layer]]\nname = "{name}"\nkind = "{kind}"')
    lines.extend(f"{k} = {json.dumps(v)}" for k, v in fields.items())
def conv(name, filters, kernel, stride):
    layer(name, "convolution", filters=filters, kernel=[kernel, kernel], stride=[stride, stride], padding=[kernel // 2] * 2, bias=False)
    layer(name + ".relu", "activation", function="relu")
    layer(name + ".norm", "batch-norm")
blocks = [([128] + [256] * 4, 5, 2), ([384] * 5, 3, 2), ([512] * 5, 3, 2), ([384] * 5, 3, 2), ([384] * 5, 3, 2), ([128] * 5, 3, 1)]
for b, (filters, kernel, stride) in enumerate(blocks):
    for i, f in enumerate(filters):
        conv(f"conv{b + 1}_{i + 1}", f, kernel if (b, i) == (0, 0) else 3, stride if i == 0 else 1)
layer("head", "convolution", filters=1024, kernel=[1, 1])
layer("sigmoid", "activation", function="sigmoid")
open(mesh, "w").write("\n".join(lines) + "\n")

rows = []
def scaling(net, batch, cases, published):
    first = None
    for (ranks, strategy), wanted in zip(cases, published):
        found = simulate(net, batch, ranks, strategy, "v100-cluster")
        if found is None:
            continue
        first = first or found["step_seconds"]
        rows.append(["Dryden 2019, speed-up", os.path.basename(net), batch, ranks, strategy, wanted, round(first / found["step_seconds"], 2)])

scaling(mesh, 1, [(1, "data"), (2, "spatial:2"), (4, "spatial:4"), (8, "spatial:8"), (16, "spatial:16")], [1.0, 2.0, 3.3, 4.4, 6.1])
scaling("resnet50", 32, [(1, "data"), (2, "spatial:2"), (4, "spatial:4")], [1.0, 1.4, 1.8])

SAMPLES = 1_280_000
paradl = {"resnet50": {"ds": [481, 244, 136, 73], "df": [763, 395, 233, 124]}, "vgg16": {"ds": [11393, 5691, 2950, 1533], "df": [2307, 1156, 607, 313]}}
for net, table in paradl.items():
    for name, axis in [("ds", "spatial:2x2"), ("df", "filter:4")]:
        for gpus, measured in zip([32, 64, 128, 256], table[name]):
            batch = 8 * gpus
            found = simulate(net, batch, gpus, f"data:{gpus // 4},{axis}", "abci")
            if found is not None:
                epoch = found["step_seconds"] * SAMPLES / batch
                rows.append([f"ParaDL 2021, epoch seconds, {name}", net, batch, gpus, f"data:{gpus // 4},{axis}", measured, round(epoch, 1)])

with open(os.path.join(folder, "raw.csv"), "w", newline="") as out:
    writer = csv.writer(out)
    writer.writerow(["what", "net", "batch", "ranks", "strategy", "published", "simulated"])
    writer.writerows(rows)
text = ["| what | net | batch | ranks | strategy | published | simulated | ratio |", "|---|---|---|---|---|---|---|---|"]
text += ["| " + " | ".join(map(str, r)) + f" | {r[6] / r[5]:.2f} |" for r in rows]
open(os.path.join(folder, "table.md"), "w").write("\n".join(text) + "\n")
print("\n".join(text))
