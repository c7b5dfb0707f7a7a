"""Regression: a loss that is not cross entropy, and a metric that sees the test batch by batch.

442 patients, ten measurements each (scikit-learn's diabetes data), spread over eight clinics by age. Learning rates
rise in the first rounds and then fall along a cosine; gradients are clipped, and a step takes two batches.
"""

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn import functional

import cutlayer as cl

x, y = (torch.from_numpy(rows).float() for rows in load_diabetes(return_X_y=True))
x, y = 20 * x, ((y - y.mean()) / y.std())[:, None]
order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
test, train = order[:90], order[90:]
clinics = train[x[train, 0].argsort()].chunk(8)  # the first measurement is the age


class R2:
    """The share of the variance that the model explains, as a stream: 1 - sum (y - out)^2 / sum (y - mean)^2."""

    def __init__(self):
        self.n = self.sum = self.squares = self.errors = 0.0

    def update(self, outputs, labels):
        self.n += len(labels)
        self.sum += float(labels.sum())
        self.squares += float(labels.square().sum())
        self.errors += float((outputs - labels).square().sum())

    def compute(self):
        return 1 - self.errors / (self.squares - self.sum**2 / self.n)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
for scheme in ("fedavg", "smofi"):
    result = cl.train(
        model, [(x[rows], y[rows]) for rows in clinics], test=(x[test], y[test]), cut=1, scheme=scheme,
        loss=functional.mse_loss, metric=R2, optimizer=cl.SGD(lr=0.02, momentum=0.9, weight_decay=0.01),
        lr_schedule=cl.Cosine(rounds=10, warmup=2), clip=1.0, batch_size=5, accumulate=2, rounds=10, local_epochs=2,
    )  # fmt: skip
    print(f"{scheme}: R2 {' '.join(f'{round.metric:.2f}' for round in result.history)}")
