"""A model of your own: a residual network as people write them, cut by name, trained into a folder, killed, resumed."""

import os
import signal
import subprocess
import sys
import tempfile

import torch
from torch import nn

import cutlayer as cl


class Block(nn.Module):
    def __init__(self, into, out, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.shortcut = nn.Identity() if (into, stride) == (out, 1) else nn.Conv2d(into, out, 1, stride)

    def forward(self, x):
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.layer1, self.layer2 = nn.Conv2d(1, 8, 3, 1, 1), Block(8, 8), Block(8, 16, 2)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.layer2(self.layer1(torch.relu(self.stem(x))))
        return self.head(x.mean((2, 3)))


def train(out, stop=None):
    torch.manual_seed(0)
    data = cl.dataset("digits", None)
    clients = [(data.x[j::8], data.y[j::8]) for j in range(8)]
    test = (data.x_test, data.y_test)
    run = cl.rounds(Net(), clients, test, cut="layer1", rounds=4, batch_size=16, local_epochs=1, out=out)
    for record in run:
        print(record)
        if record.n == stop:
            os.kill(os.getpid(), signal.SIGKILL)
    return run.model


if __name__ == "__main__" and len(sys.argv) > 1:
    train(sys.argv[1], stop=2)
elif __name__ == "__main__":
    with tempfile.TemporaryDirectory() as out:
        print("killed:", subprocess.run([sys.executable, __file__, out], check=False).returncode)  # noqa: S603
        model = train(out)  # goes on after round 2, and ends with the bits of a run that nothing happened to
        print(type(model).__name__, "trained:", cl.open(out))
