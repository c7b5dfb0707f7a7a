"""A run as a stream: stop when you have seen enough, look at whatever you like on the way."""

import torch
from torch import nn

import cutlayer as cl
from cutlayer.data.tasks import digits

data = digits()
clients = [(data.x[j::10], data.y[j::10]) for j in range(10)]
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

run = cl.rounds(model, clients, test=(data.x_test, data.y_test), cut=1, scheme="sflv2", rounds=50, batch_size=16)
for record in run:
    print(f"round {record.n}: accuracy {record.accuracy:.3f}, {record.bytes_up / 1e6:.2f} MB up")
    if record.accuracy > 0.9:
        break

print("trained:", run.model)
