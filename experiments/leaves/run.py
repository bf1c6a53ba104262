#!/usr/bin/env python3
"""What sums over leaves cost: training steps with eight leaves beside steps with one, on one machine.

    python3 run.py --out results/<date>-<machine> [--rounds 5] [--nets lenet,resnet50]
    python3 run.py --table results/<date>-<machine>

Builds with cargo and runs from the repository's root; ../beside.py says how, and what is written.
"""
import pathlib
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import beside

# Network, batch, steps that are measured.
CASES = [
    ("lenet", 128, 120),
    ("resnet18-cifar", 128, 3),
    ("resnet50", 16, 3),
    ("vgg16", 8, 3),
    ("unet", 4, 3),
    ("alexnet", 64, 3),
    ("mobilenet-v2", 32, 3),
]
WAYS = {"1 leaf": "1", "8 leaves": "8"}


def run(net, batch, steps, way):
    return beside.steps(net, batch, steps, "--leaves", WAYS[way])


def more(one, eight):
    return 100 * (eight - one) / eight


def by_round(one, eight):
    each = sorted(map(more, beside.seconds(one), beside.seconds(eight)))
    return f"{each[0]:.1f} to {each[-1]:.1f}"


def adding(_, eight):
    """Seconds of all threads, of the threads' time."""
    return f"{100 * statistics.median(run['fold_seconds'] / run['threads'] / run['step_seconds'] for run in eight):.1f}"


COLUMNS = {
    "more, % of the step": lambda one, eight: f"{more(beside.median(one), beside.median(eight)):.1f}",
    "least and most of a round, %": by_round,
    "of these, adding leaves in memory, %": adding,
}

if __name__ == "__main__":
    beside.main(__doc__, CASES, list(WAYS), run, COLUMNS, kept=("step_seconds", "step_seconds_all", "fold_seconds", "threads", "planned_bytes"))
