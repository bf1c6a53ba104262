"""What the PyTorch model of the same name makes of a model.safetensors, held against what `convoy predict` made of it.

    python outputs.py MODEL model.safetensors x.npy y.npy

Loads the weights strictly: every name and shape must be the torch model's own. Prints one JSON object: the largest output, the
largest difference between both sides' outputs, and how many terms are summed up on the way to an output.

Needs torch and numpy, nothing else: a safetensors file is a length, a JSON header, and bytes.
"""

import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)
        self.f1, self.f2 = nn.Linear(50 * 4 * 4, 500), nn.Linear(500, 10)

    def forward(self, x):
        for convolution in (self.c1, self.c2):
            x = F.max_pool2d(convolution(x), 2)
        return self.f2(F.relu(self.f1(torch.flatten(x, 1))))


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters: every second point, new channels zero on either side."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.stride, self.new = stride, width - channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        before = self.new // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new - before))
        return F.relu(self.body(x) + shortcut)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        widths = [16] * 3 + [32] * 3 + [64] * 3
        before = [16] + widths[:-1]
        self.blocks = nn.Sequential(*(Block(c, w, 1 if c == w else 2) for c, w in zip(before, widths)))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def read(path):
    """The tensors of a safetensors file, all of them 32-bit floats."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, tensor in header.items():
        assert tensor["dtype"] == "F32", name
        start, end = tensor["data_offsets"]
        values = np.frombuffer(data[start:end], "<f4").reshape(tensor["shape"])
        tensors[name] = torch.from_numpy(values.copy())
    return tensors


def main(model, weights, x, y):
    network = {"lenet": LeNet, "resnet20": ResNet20}[model]()
    network.load_state_dict(read(weights), strict=True)
    network.eval()
    with torch.no_grad():
        wanted = network(torch.from_numpy(np.load(x))).numpy()
    found = np.load(y)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    filters = [p for p in network.parameters() if p.dim() > 1]
    report = {
        "largest": float(np.abs(wanted).max()),
        "difference": float(np.abs(wanted - found).max()),
        "terms": sum(p[0].numel() for p in filters),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
