"""Data of your own in three forms, one training: a folder of files, a frame (or rows by name), and an iterable."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import cutlayer as cl

digits = cl.dataset("digits", None)
x, y = digits.x.flatten(1), digits.y


class Folder(Dataset):
    """A file for each sample, read when it is needed: CLASS-NUMBER.npy."""

    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.npy"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, row):
        return np.load(self.paths[row]), int(self.paths[row].name.split("-")[0])


class Sensor(IterableDataset):
    """Samples as they come, in order: only one is in memory at a time."""

    def __iter__(self):
        for row in range(400, 600):
            yield x[row], y[row]


def frame(rows):
    """A frame of pandas where it is installed; otherwise a list of dictionaries, which may come from anywhere."""
    try:
        import pandas
    except ImportError:
        return cl.rows([{"pixels": x[i], "digit": y[i]} for i in rows], inputs="pixels", target="digit")
    names = [f"pixel{i}" for i in range(x.shape[1])]
    table = pandas.DataFrame(x[rows].numpy(), columns=names).assign(digit=y[rows].numpy())
    return cl.rows(table, inputs=names, target="digit")


with tempfile.TemporaryDirectory() as folder:
    for i in range(200):
        np.save(Path(folder) / f"{y[i]}-{i:03}.npy", x[i])
    clients = [Folder(folder), frame(range(200, 400)), cl.rows(Sensor(), length=200)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 10))
    result = cl.train(model, clients, test=(digits.x_test.flatten(1), digits.y_test), cut=1, rounds=5, batch_size=20)
for round in result.history:
    print(f"round {round.n}: accuracy {round.accuracy:.3f}")
