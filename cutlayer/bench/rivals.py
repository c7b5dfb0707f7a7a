"""What we compare ourselves with: centralised training, plain and tuned, and clients as research code simulates them.

Each is written as its users would write it, in plain PyTorch; only the cut is made with our `halves`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cutlayer.clients.messages import Loss
from cutlayer.nn.cut import halves
from cutlayer.nn.nested import parted

RATE, MOMENTUM, DECAY = 0.01, 0.9, 5e-4
Data = Sequence[tuple[Tensor, Tensor]]


class Centralised:
    """One model, one optimizer, one batch after another; `tuned`: channels_last and a fused optimizer."""

    def __init__(self, model: nn.Module, data: Data, batch: int, tuned: bool, loss: Loss = cross_entropy) -> None:
        self.model, self.data, self.batch, self.tuned = copy.deepcopy(model).train(), data, batch, tuned
        self.loss = loss
        if tuned:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, fused=tuned or None)

    def __call__(self) -> None:
        """Take as many steps, on the same samples, as all clients take in a round."""
        for start in range(0, len(self.data[0][1]), self.batch):
            for x, y in self.data:
                rows = torch.randperm(self.batch, device=x.device) + start
                x_b, y_b = x[rows], y[rows]
                if self.tuned and x_b.ndim == 4:
                    x_b = x_b.contiguous(memory_format=torch.channels_last)
                self.optimizer.zero_grad()
                out = self.model(x_b)
                self.loss(getattr(out, "logits", out), y_b).backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()


class Naive:
    """A module and an optimizer for every client and every surrogate; momentum averaged through state dicts."""

    def __init__(self, model: nn.Module, cut: int, data: Data, batch: int, loss: Loss = cross_entropy) -> None:
        self.data, self.batch, self.loss = data, batch, loss
        self.front, self.back = halves(model, cut)

    def __call__(self) -> None:
        """Run a round of SMoFi: copy the halves, train the copies, and average them."""
        n = len(self.data)
        fronts, backs = ([copy.deepcopy(part).train() for _ in range(n)] for part in (self.front, self.back))
        of_fronts, of_backs = ([self._optimizer(part) for part in parts] for parts in (fronts, backs))
        for start in range(0, len(self.data[0][1]), self.batch):
            for j, (x, y) in enumerate(self.data):
                rows = torch.randperm(self.batch) + start
                of_fronts[j].zero_grad()
                of_backs[j].zero_grad()
                a, _ = parted(fronts[j](x[rows]))
                smashed = a.detach().clone().requires_grad_()
                self.loss(backs[j](smashed), y[rows]).backward()  # type: ignore[no-untyped-call]
                of_backs[j].step()
                if a.requires_grad:
                    a.backward(smashed.grad)  # type: ignore[no-untyped-call]
                of_fronts[j].step()
            self._fuse(of_backs)
        for part, parts in ((self.front, fronts), (self.back, backs)):
            states = [trained.state_dict() for trained in parts]
            mean = {
                key: torch.stack([s[key].double() for s in states]).mean(dim=0).to(states[0][key].dtype)
                for key in states[0]
            }
            part.load_state_dict(mean)

    @staticmethod
    def _optimizer(part: nn.Module) -> torch.optim.Optimizer:
        trained = [p for p in part.parameters() if p.requires_grad]
        return torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)

    @staticmethod
    def _fuse(optimizers: Sequence[torch.optim.Optimizer]) -> None:
        states = [optimizer.state_dict() for optimizer in optimizers]
        for key in states[0]["state"]:
            mean = torch.stack([state["state"][key]["momentum_buffer"] for state in states]).mean(dim=0)
            for state in states:
                state["state"][key]["momentum_buffer"] = mean.clone()
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.load_state_dict(state)
