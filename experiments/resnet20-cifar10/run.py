#!/usr/bin/env python3
"""Trains resnet20 with PyTorch and with Convoy from the same weights, on the same images in the same order.

    python3 run.py --data DIR --convoy target/release/convoy --epochs 6 --out results/<date>-<machine>

DIR holds CIFAR-10's binary files (data_batch_1.bin, test_batch.bin; any number of records). Needs torch and numpy.
Writes raw.csv (every step's loss of both), epochs.csv, curves.svg and command.txt.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def conv_bn(cin, cout, stride):
    return [nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)]


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.body = nn.Sequential(*conv_bn(cin, cout, stride), nn.ReLU(), *conv_bn(cout, cout, 1))
        self.stride, self.extra = stride, cout - cin

    def forward(self, x):
        short = x[:, :, :: self.stride, :: self.stride]
        short = F.pad(short, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return F.relu(self.body(x) + short)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, 16, 1), nn.ReLU())
        blocks, c = [], 16
        for stage, width in enumerate((16, 32, 64)):
            for i in range(3):
                blocks.append(Block(c, width, 2 if stage > 0 and i == 0 else 1))
                c = width
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(64, 10)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


def read(path):
    records = np.fromfile(path, np.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32) / 255, records[:, 0].astype(np.int64)


def philox(key, counters):
    """Philox 4x32-10 over rows of counters, as crates/kernels/src/philox.rs."""
    a, b, c, d = (counters[:, i].astype(np.uint64) for i in range(4))
    k0, k1 = key
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p, q = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (q >> np.uint64(32)) ^ b ^ np.uint64(k0), q & low, (p >> np.uint64(32)) ^ d ^ np.uint64(k1), p & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return a, b


def order(seed, epoch, n):
    """Convoy's order of samples: crates/train/src/data/order.rs; the purpose is number 1."""
    counters = np.zeros((n, 4), np.uint64)
    counters[:, 0], counters[:, 2], counters[:, 3] = np.arange(n), epoch, 1 << 16
    low, high = philox((seed & 0xFFFFFFFF, seed >> 32), counters)
    all_ = list(range(n))
    for last in range(n - 1, 0, -1):
        at = ((int(high[last]) << 32 | int(low[last])) * (last + 1)) >> 64
        all_[last], all_[at] = all_[at], all_[last]
    return all_


def save(path, state):
    """Safetensors by hand: header length, JSON, bytes."""
    header, data = {}, b""
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked"):
            continue
        raw = tensor.detach().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def torch_run(net, args, images, labels, test_images, test_labels):
    optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
    per_epoch = -(-len(images) // args.batch)
    total = per_epoch * args.epochs
    losses, tests, step = [], [], 0
    for epoch in range(args.epochs):
        net.train()
        begin = time.time()
        samples = order(args.seed, epoch, len(images))
        for start in range(0, len(images), args.batch):
            for group in optimizer.param_groups:
                group["lr"] = args.lr * 0.5 * (1 + np.cos(np.pi * step / total))
            at = samples[start:start + args.batch]
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images[at]), labels[at])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
        net.eval()
        with torch.inference_mode():
            found = torch.cat([net(test_images[i:i + 500]).argmax(1) for i in range(0, len(test_images), 500)])
        tests.append((found == test_labels).float().mean().item())
        print(f"torch epoch {epoch + 1}: loss {np.mean(losses[-per_epoch:]):.4f}, test {tests[-1]:.4f}, {time.time() - begin:.0f} s", flush=True)
    return losses, tests


def convoy_run(args, weights, runs):
    command = [args.convoy, "train", "--model", "resnet20", "--data", f"cifar10:{args.data}", "--batch", str(args.batch),
               "--epochs", str(args.epochs), "--seed", str(args.seed), "--optimizer", "sgd",
               "--momentum", "0.9", "--weight-decay", "5e-4", "--schedule", "cosine", "--lr", str(args.lr), "--augment", "",
               "--json", "--weights", str(weights), "--folder", str(runs)]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip().splitlines()
    run = pathlib.Path(json.loads(out[-1])["run"])
    losses, tests = [], []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        if line["kind"] == "step":
            losses.append(line["loss"])
        if line["kind"] == "epoch":
            tests.append(line["test"]["top1"])
            print(f"convoy epoch {line['epoch']}: loss {line['train']['loss']:.4f}, test {tests[-1]:.4f}, {line['seconds']:.0f} s")
    return losses, tests, command


def plot(path, curves, per_epoch):
    """Loss by step, smoothed over 20 steps, as SVG."""
    width, height, top = 720, 360, max(max(c) for _, c, _ in curves)
    x = lambda i, n: 50 + i * (width - 70) / (n - 1)
    y = lambda v: height - 30 - v * (height - 50) / top
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for tick in np.arange(0, top, 0.5):
        parts.append(f'<line x1="50" x2="{width - 20}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>'
                     f'<text x="15" y="{y(tick) + 4:.1f}">{tick:.1f}</text>')
    n = len(curves[0][1])
    for epoch in range(0, n + 1, per_epoch):
        parts.append(f'<text x="{x(min(epoch, n - 1), n):.1f}" y="{height - 8}" text-anchor="middle">{epoch // per_epoch}</text>')
    for i, (name, curve, colour) in enumerate(curves):
        smooth = np.convolve(curve, np.ones(20) / 20, "valid")
        line = " ".join(f"{x(k + 10, n):.1f},{y(v):.1f}" for k, v in enumerate(smooth))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{3 - i * 1.5}"/>'
                     f'<text x="{width - 130}" y="{30 + 18 * i}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{width / 2}" y="14" text-anchor="middle">resnet20, training loss (mean of 20 steps) by epoch</text></svg>')
    pathlib.Path(path).write_text("\n".join(parts))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--convoy", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    images, labels = read(f"{args.data}/data_batch_1.bin")
    test_images, test_labels = read(f"{args.data}/test_batch.bin")
    mean, deviation = images.mean((0, 2, 3), keepdims=True), images.std((0, 2, 3), keepdims=True, dtype=np.float64).astype(np.float32)
    images, test_images = ((torch.from_numpy((x - mean) / deviation)) for x in (images, test_images))
    labels, test_labels = torch.from_numpy(labels), torch.from_numpy(test_labels)
    torch.manual_seed(args.seed)
    net = ResNet20()
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / "start.safetensors"
        save(weights, net.state_dict())
        ours, our_tests, command = convoy_run(args, weights, pathlib.Path(folder) / "runs")
    theirs, their_tests = torch_run(net, args, images, labels, test_images, test_labels)
    rows = ["step,torch,convoy"] + [f"{i + 1},{a!r},{b!r}" for i, (a, b) in enumerate(zip(theirs, ours))]
    (out / "raw.csv").write_text("\n".join(rows) + "\n")
    rows = ["epoch,torch_test,convoy_test"] + [f"{i + 1},{a:.4f},{b:.4f}" for i, (a, b) in enumerate(zip(their_tests, our_tests))]
    (out / "epochs.csv").write_text("\n".join(rows) + "\n")
    plain = ["convoy" if part == args.convoy else "cifar10:DIR" if part.startswith("cifar10:") else part for part in command]
    (out / "command.txt").write_text(" ".join(repr(word) if not word else word for word in plain[:plain.index("--weights")]) + " --weights start.safetensors\n")
    per_epoch = -(-len(images) // args.batch)
    plot(out / "curves.svg", [("PyTorch", theirs, "#d95f02"), ("Convoy", ours, "#1b3a93")], per_epoch)
    first = max(abs(a - b) for a, b in zip(theirs[:20], ours[:20]))
    print(f"largest difference of the first 20 losses: {first:.2e}; last epoch's mean loss: "
          f"torch {np.mean(theirs[-per_epoch:]):.4f}, convoy {np.mean(ours[-per_epoch:]):.4f}")


if __name__ == "__main__":
    sys.exit(main())
