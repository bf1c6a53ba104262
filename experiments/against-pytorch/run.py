#!/usr/bin/env python3
"""Training steps of Convoy and of PyTorch, side by side on one machine.

    python3 run.py --convoy target/release/convoy --out results/<date>-<machine> [--rounds 5] [--nets lenet,resnet50]
    python3 run.py --table results/<date>-<machine>

In every round each network is run once by Convoy and once by PyTorch in every mode and layout named, one after the other,
each in a process of its own. The opponent is the mode and layout with the least median. Writes raw.jsonl (every run as it
was printed), machine.txt, table.md and plot.svg. Needs torch (requirements: `pip install torch`); torch.compile needs g++.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import machine

# Network, batch, and by how much Convoy is to be faster.
EVAL_CASES = [("resnet50", 16, 1.2), ("vgg16", 8, 1.2), ("mobilenet-v2", 32, 1.2)]
CASES = [
    ("resnet50", 16, 1.4),
    ("resnet18-cifar", 128, 2.2),
    ("vgg16", 8, 2.3),
    ("unet", 4, 2.5),
    ("alexnet", 64, 1.3),
    ("lenet", 128, 1.5),
    ("mobilenet-v2", 32, 1.5),
]
# Modes and layouts that were PyTorch's fastest, or within 10 % of it, in a sweep over all six on two Zen 3 cores, and over the first four on two
# Ice Lake cores: `--modes near` runs these.
NEAR = {
    "resnet50": ["eager/nhwc"],
    "resnet18-cifar": ["eager/nhwc"],
    "vgg16": ["eager/nchw", "eager/nhwc"],
    "unet": ["eager/nchw", "eager/nhwc"],
    "alexnet": ["eager/nhwc", "eager/nchw"],
    "lenet": ["eager/nhwc"],
    "mobilenet-v2": ["tuned/nhwc", "tuned/nchw"],
}
ALL_MODES = [f"{mode}/{layout}" for mode in ("plain", "eager", "tuned") for layout in ("nchw", "nhwc")]


def last_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def convoy(args, net, batch, threads):
    steps = str(args.steps if net != "lenet" else 40 * args.steps)
    command = [args.convoy, "bench", net, "--batch", str(batch), "--threads", str(threads), "--steps", steps, "--json"]
    command += ["--eval"] if args.eval else []
    found = last_json(command)
    return {"seconds": found["step_seconds"], "rss": found["peak_rss_bytes"], "gflops": found["gflops"],
            "peak_gflops": found["fma_peak_gflops"], "planned": found["planned_bytes"]}


def torch(args, net, batch, threads, mode):
    mode, layout = mode.split("/")
    command = [sys.executable, HERE / "bench_torch.py", net, "--batch", str(batch), "--threads", str(threads),
               "--steps", str(args.steps), "--warmup", str(args.warmup), "--max-seconds", "40", "--mode", mode, "--layout", layout, "--json"]
    command += ["--eval"] if args.eval else []
    found = last_json(command)
    return {"seconds": found["step_s"], "rss": int(found["peak_rss_mib"] * 2**20), "raw": found}


def measure(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "command.txt").write_text(" ".join(sys.argv) + "\n")
    machine.write(out)
    wanted = args.nets.split(",") if args.nets else [net for net, _, _ in CASES]
    with open(out / "raw.jsonl", "a") as raw:
        for round_ in range(args.rounds):
            for net, batch, _ in (case for case in (EVAL_CASES if args.eval else CASES) if case[0] in wanted):
                modes = NEAR[net] if args.modes == "near" else args.modes.split(",")
                for who in ["convoy"] + modes:
                    run = convoy(args, net, batch, args.threads) if who == "convoy" else torch(args, net, batch, args.threads, who)
                    line = {"round": round_, "net": net, "batch": batch, "threads": args.threads, "eval": args.eval, "who": who, **run}
                    raw.write(json.dumps(line) + "\n")
                    raw.flush()
                    print(f"round {round_ + 1}: {net} {who}: {run['seconds']:.4f} s", flush=True)


def summarise(folder):
    runs = [json.loads(line) for line in open(folder / "raw.jsonl")]
    evaluation = runs[0].get("eval", False)
    rows = []
    for net, batch, must in EVAL_CASES if evaluation else CASES:
        ours = [r for r in runs if r["net"] == net and r["who"] == "convoy"]
        if not ours:
            continue
        by_mode = {}
        for r in runs:
            if r["net"] == net and r["who"] != "convoy":
                by_mode.setdefault(r["who"], []).append(r)
        median = lambda rs, key: statistics.median(r[key] for r in rs)
        best = min(by_mode, key=lambda mode: median(by_mode[mode], "seconds"))
        rows.append({
            "net": net, "batch": batch, "must": must, "threads": ours[0]["threads"], "rounds": len(ours), "best": best,
            "convoy": median(ours, "seconds"), "torch": median(by_mode[best], "seconds"),
            "rss": median(ours, "rss"), "torch_rss": min(median(rs, "rss") for rs in by_mode.values()),
            "of_peak": median(ours, "gflops") / median(ours, "peak_gflops"),
        })
    what = "evaluation" if evaluation else "training step"
    head = f"| {what} | threads | Convoy s | % of FMA peak | PyTorch s | its best mode | times as fast | wanted | memory, Convoy / PyTorch | rounds |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        lines.append(f"| {r['net']}, batch {r['batch']} | {r['threads']} | {r['convoy']:.3f} | {100 * r['of_peak']:.0f} | {r['torch']:.3f} | {r['best']} "
                     f"| {r['torch'] / r['convoy']:.2f} | {r['must']} | {r['rss'] / 2**20:.0f} / {r['torch_rss'] / 2**20:.0f} MiB | {r['rounds']} |")
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    (folder / "plot.svg").write_text(plot(rows, what.capitalize()))
    print("\n".join(lines))


def plot(rows, what):
    """Bars: how many times as fast as PyTorch, with what was wanted as a tick."""
    width, line, left = 640, 34, 170
    most = max([r["torch"] / r["convoy"] for r in rows] + [r["must"] for r in rows]) * 1.1
    x = lambda value: left + (width - left - 60) * value / most
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{line * len(rows) + 50}" font-family="sans-serif" font-size="13">',
             f'<rect width="{width}" height="{line * len(rows) + 50}" fill="white"/>',
             f'<text x="10" y="20" font-weight="bold">{what}: PyTorch\'s time / Convoy\'s time (tick: wanted)</text>']
    for i, r in enumerate(rows):
        y, ratio = 34 + i * line, r["torch"] / r["convoy"]
        parts.append(f'<text x="10" y="{y + 16}">{r["net"]}, batch {r["batch"]}</text>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{x(ratio) - left:.1f}" height="18" fill="#3b6ea5"/>')
        parts.append(f'<line x1="{x(r["must"]):.1f}" x2="{x(r["must"]):.1f}" y1="{y}" y2="{y + 24}" stroke="#c0392b" stroke-width="2"/>')
        parts.append(f'<text x="{x(max(ratio, r["must"])) + 6:.1f}" y="{y + 16}">{ratio:.2f}</text>')
    parts.append(f'<line x1="{x(1):.1f}" x2="{x(1):.1f}" y1="30" y2="{34 + line * len(rows)}" stroke="#888" stroke-dasharray="4 3"/></svg>')
    return "\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convoy", default="target/release/convoy")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=2, help="steps of PyTorch that are not measured")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--eval", action="store_true", help="evaluation instead of training steps")
    parser.add_argument("--nets", help="some networks only, with commas")
    parser.add_argument("--modes", default=",".join(ALL_MODES), help="PyTorch's modes and layouts, with commas, or `near`")
    parser.add_argument("--table", help="only the table and the plot of results that are there")
    args = parser.parse_args()
    if args.table:
        return summarise(pathlib.Path(args.table))
    if not args.out:
        parser.error("--out FOLDER is needed")
    measure(args)
    summarise(pathlib.Path(args.out))


if __name__ == "__main__":
    main()
