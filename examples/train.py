"""Train a small network over unevenly spread clients, cut after its first block, with SMoFi."""

import torch
from torch import nn

import cutlayer as cl

data = cl.dataset("digits", None)
parts = cl.partition.dirichlet(data.y, clients=20, gamma=0.2)  # who holds which rows

torch.manual_seed(0)
model = nn.Sequential(
    nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()),  # block 0: with cut=0, the client's
    nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),  # the rest: the server's
    nn.Sequential(nn.Flatten(), nn.Linear(256, 10)),
)

result = cl.train(
    model,
    parts.clients(data),
    test=(data.x_test, data.y_test),
    cut=0,
    scheme=cl.SMoFi(alpha=-0.1),
    update=cl.FedAvgM(beta=0.3),
    optimizer=cl.SGD(lr=0.05, momentum=0.9),
    rounds=5,
    participation=0.5,
    batch_size=8,
)
for record in result.history:
    print(f"round {record.n}: accuracy {record.accuracy:.3f}, server drift {record.drift_server:.3f}")

front, back = cl.halves(result.model, cut=0)  # for split inference
print("split inference agrees:", bool((back(front(data.x_test)) == result.model(data.x_test)).all()))
