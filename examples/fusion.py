"""Momentum fusion inside your own loop: your models, your torch optimizers, one line changed.

-     for optimizer in optimizers: optimizer.step()
+     fusion.step()
"""

import copy

import torch
from torch import nn

import cutlayer as cl

torch.manual_seed(0)
x, y = torch.randn(4, 64, 8), torch.randint(0, 3, (4, 64))  # four clients
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
surrogates = [copy.deepcopy(model) for _ in range(4)]
optimizers = [torch.optim.SGD(s.parameters(), lr=0.1, momentum=0.9) for s in surrogates]
fusion = cl.MomentumFusion(optimizers, alpha=-0.1)

for step in range(20):
    active = [j for j in range(4) if step < (20, 15, 10, 5)[j]]  # some clients have less to do
    loss = 0.0
    for j in active:
        optimizers[j].zero_grad()
        batch = slice(8 * (step % 8), 8 * (step % 8) + 8)
        loss_j = nn.functional.cross_entropy(surrogates[j](x[j, batch]), y[j, batch])
        loss_j.backward()
        loss += float(loss_j.detach()) / len(active)
    fusion.step(active)
    if step % 5 == 0:
        print(f"step {step}: {len(active)} clients, mean loss {loss:.3f}")

fusion.reset()  # a new round begins with no momentum
