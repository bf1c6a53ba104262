#!/usr/bin/env python3
"""Whether workers that keep to one core each are faster: training steps with and without, on one machine.

    python3 run.py --out results/<date>-<machine> [--rounds 5] [--nets lenet,resnet50]
    python3 run.py --table results/<date>-<machine>

Builds with cargo and runs from the repository's root, on Linux with two cores or more; ../beside.py says how, and what is written. Workers are
bound from outside, as soon as they are there.
"""
import os
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent))
import beside

# Network, batch, steps that are measured.
CASES = [("lenet", 128, 300), ("resnet18-cifar", 128, 4), ("resnet50", 16, 4), ("mobilenet-v2", 32, 6)]
WAYS = ["left to the system", "a core each"]
CORES = sorted(os.sched_getaffinity(0))[:2]


def name(task):
    try:
        return (task / "comm").read_text()
    except OSError:
        return "gone"


def workers(process):
    """Thread numbers of a program's workers: the first thread of the process is one of them."""
    tasks = pathlib.Path(f"/proc/{process.pid}/task")
    return [process.pid] + [int(task.name) for task in tasks.iterdir() if name(task).startswith("worker")]


def bind(process):
    while process.poll() is None:
        threads = workers(process)
        if len(threads) == len(CORES):
            for thread, core in zip(threads, CORES):
                os.sched_setaffinity(thread, {core})
            return
        time.sleep(0.001)
    raise SystemExit("the program ended before its workers were found")


def run(net, batch, steps, way):
    return beside.steps(net, batch, steps, started=bind if way == WAYS[1] else lambda process: None)


def by_round(free, bound):
    each = sorted(a / b for a, b in zip(beside.seconds(free), beside.seconds(bound)))
    return f"{each[0]:.2f} to {each[-1]:.2f}"


COLUMNS = {
    "times as fast": lambda free, bound: f"{beside.median(free) / beside.median(bound):.2f}",
    "least and most of a round": by_round,
}

if __name__ == "__main__":
    if len(CORES) < 2:
        raise SystemExit("two cores are needed")
    beside.main(__doc__, CASES, WAYS, run, COLUMNS)
