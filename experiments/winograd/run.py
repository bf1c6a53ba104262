#!/usr/bin/env python3
"""Does the tile of Winograd convolutions change what a network learns?

    python3 run.py --convoy target/release/convoy --cifar DIR --out results/<date>-<machine> [--seeds 5] [--nets resnet20] [--tiles 4x4,off]
    python3 run.py --table results/<date>-<machine>

Trains resnet20 on CIFAR-10's binary files in DIR (any number of records) and unet on drawings of disks whose points are to be
told from the rest, with each setting of `--winograd` and each seed. Writes raw.jsonl (the last line of every run; those that are
there already are not repeated) and table.md: the accuracy's mean and standard error over the seeds. Differences are taken seed by seed. Needs numpy.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import tempfile

SETTINGS = ["4x4", "2x2", "off"]


def drawings(folder, part, count, seed):
    """Disks and bars over noise; a point's label says whether it belongs to a disk. 64 x 64."""
    import numpy as np

    random, size = np.random.default_rng(seed), 64
    y, x = np.mgrid[0:size, 0:size]
    images, labels = np.zeros((count, 1, size, size), np.float32), np.zeros((count, size, size), np.int64)
    for image, label in zip(images, labels):
        for _ in range(3):
            at = random.integers(0, size, 2)
            bar = (np.abs(y - at[0]) < random.integers(2, 6)) if random.random() < 0.5 else (np.abs(x - at[1]) < random.integers(2, 6))
            image[0][bar] += random.uniform(0.5, 1.0)
        for _ in range(3):
            cy, cx, r = random.integers(0, size, 2).tolist() + [random.integers(4, 12)]
            disk = (y - cy) ** 2 + (x - cx) ** 2 < r * r
            image[0][disk] += random.uniform(0.3, 0.8)
            label[disk] = 1
        image += random.normal(0, 0.4, image.shape)
    folder.mkdir(parents=True, exist_ok=True)
    images_at, labels_at = folder / f"{part}-images.npy", folder / f"{part}-labels.npy"
    np.save(images_at, images)
    np.save(labels_at, labels)
    return f"npy:{images_at},{labels_at}"


def cases(args, work):
    yield "resnet20", ["--model", "resnet20", "--data", f"cifar10:{args.cifar}", "--augment", "crop:4,flip", "--batch", "128",
                       "--epochs", str(args.epochs), "--lr", "0.1", "--weight-decay", "1e-4"]
    train, test = drawings(work, "train", 192, 1), drawings(work, "test", 64, 2)
    yield "unet", ["--model", "unet", "--data", train, "--test-data", test, "--input-shape", "1x64x64", "--classes", "2", "--batch", "8",
                   "--epochs", "3", "--lr", "0.01"]


def measure(args):
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    there = [json.loads(line) for line in open(out / "raw.jsonl")] if (out / "raw.jsonl").exists() else []
    done_before = {(r["net"], r["seed"], r["winograd"]) for r in there}
    with tempfile.TemporaryDirectory() as work, open(out / "raw.jsonl", "a") as raw:
        work = pathlib.Path(work)
        for seed in range(1, args.seeds + 1):
            for net, flags in (case for case in cases(args, work / "data") if case[0] in args.nets.split(",")):
                for tile in (tile for tile in args.tiles.split(",") if (net, seed, tile) not in done_before):
                    command = [args.convoy, "train", *flags, "--seed", str(seed), "--winograd", tile, "--folder", str(work / "runs"), "--json"]
                    done = subprocess.run(command, capture_output=True, text=True)
                    if done.returncode != 0:
                        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
                    found = json.loads(done.stdout.splitlines()[-1])
                    found["run"] = pathlib.Path(found["run"]).name
                    raw.write(json.dumps({"net": net, "seed": seed, "winograd": tile, **found}) + "\n")
                    raw.flush()
                    print(net, seed, tile, found["test_accuracy"], flush=True)


def summarise(folder):
    runs = [json.loads(line) for line in open(folder / "raw.jsonl")]
    lines = ["| network | tile | seeds | test accuracy, % | against off, points | final train loss |", "|---|---|---|---|---|---|"]
    error = lambda values: statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else float("nan")
    for net in dict.fromkeys(r["net"] for r in runs):
        of = {tile: {r["seed"]: r for r in runs if r["net"] == net and r["winograd"] == tile} for tile in SETTINGS}
        for tile in filter(of.get, SETTINGS):
            accuracy = [100 * r["test_accuracy"] for r in of[tile].values()]
            apart = [100 * (of[tile][seed]["test_accuracy"] - of["off"][seed]["test_accuracy"]) for seed in of[tile] if seed in of["off"]]
            loss = statistics.mean(r["train_loss"] for r in of[tile].values())
            lines.append(f"| {net} | {tile} | {len(accuracy)} | {statistics.mean(accuracy):.2f} ± {error(accuracy):.2f} "
                         + (f"| {statistics.mean(apart):+.2f} ± {error(apart):.2f} " if tile != "off" and apart else "| ") + f"| {loss:.4f} |")
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--convoy", default="target/release/convoy")
    parser.add_argument("--cifar", help="a folder with data_batch_1.bin and test_batch.bin")
    parser.add_argument("--out")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="of resnet20")
    parser.add_argument("--nets", default="resnet20,unet")
    parser.add_argument("--tiles", default=",".join(SETTINGS))
    parser.add_argument("--table", help="only the table of results that are there")
    args = parser.parse_args()
    if not args.table:
        if not args.out or not args.cifar:
            parser.error("--out FOLDER and --cifar DIR are needed")
        measure(args)
    summarise(pathlib.Path(args.table or args.out))


if __name__ == "__main__":
    main()
