"""What stays the same over a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cutlayer.clients.cohort import Cohort
from cutlayer.core.group import ProcessGroup
from cutlayer.data.schedule import BatchSchedule
from cutlayer.data.source import Source
from cutlayer.engine.backend import Backend
from cutlayer.engine.evaluate import Evaluator
from cutlayer.engine.memory_limit import Need
from cutlayer.engine.spill import SpillCache
from cutlayer.nn.cut import Layout
from cutlayer.nn.flat import Half
from cutlayer.nn.macs import Shape
from cutlayer.optim.local import Local
from cutlayer.optim.lr_schedule import LRSchedule
from cutlayer.optim.optimizer import Optimizer, rate
from cutlayer.optim.update import Update
from cutlayer.schemes.autograd import Loss
from cutlayer.schemes.base import Scheme, Traits
from cutlayer.schemes.traits import Histogram
from cutlayer.simulation.clock import Clock
from cutlayer.simulation.devices import Device


@dataclass(frozen=True)
class Setup:
    """The parts of a run, and its numbers."""

    scheme: Scheme
    local: Local | None
    update: Update
    cohort: Cohort
    sizes: Sequence[int]  # |D_j| of every client
    cuts: tuple[int, int]
    layout: Layout
    offsets: Sequence[tuple[int, int, int]]  # where the client's part of the flat vectors ends, for each cut
    back: Callable[[int], Half]
    schedule: BatchSchedule
    optimizer: Optimizer
    server_optimizer: Optimizer
    lr_schedule: LRSchedule | None
    persists: bool  # whether optimizer memory lives on between rounds, on both sides
    noise: float
    calibrate: float  # tau of calibrated logits
    loss: Loss
    select: int  # |J_n|
    evaluator: Evaluator | None
    evaluate_every: int
    rounds: int
    shape: Shape
    row: tuple[int, ...]  # the shape of a row; of several inputs, that of the first
    classes: int | None
    devices: Sequence[Device]
    clock: Clock
    histogram: Histogram
    spill_cache: SpillCache
    backend: Backend
    stack: int | None  # clients in one graph, where a resumed run must be told: it was asked for, or fits free memory
    processes: ProcessGroup
    trains: ProcessGroup  # that train server halves: all, or the root alone, whose cohort spans all ranks
    sources: Sequence[Source]  # what the clients of this process hold; () where they are on other machines
    group: int | None  # how many clients train at a time; None: all of the round
    need: Callable[[], Need]  # what a round of this process needs in memory
    seed: int
    device: torch.device
    torch_threads: int  # inside one operation
    detail: bool = False  # whether records say what the round was for each client

    @property
    def traits(self) -> Traits:
        """What the scheme says of itself."""
        return self.scheme.traits

    def eta(self, n: int, k: int = 0) -> float:
        """The clients' learning rate in step k of round n."""
        return rate(self.optimizer, n) * self._factor(n, k)

    def eta_server(self, n: int, k: int = 0) -> float:
        """The server's learning rate in step k of round n."""
        return rate(self.server_optimizer, n) * self._factor(n, k)

    def _factor(self, n: int, k: int) -> float:
        return 1.0 if self.lr_schedule is None else self.lr_schedule(n, k)

    @property
    def by_step(self) -> bool:
        """Whether learning rates change within a round."""
        return self.lr_schedule is not None and self.lr_schedule.by_step

    def rates(self, n: int) -> str:
        """Return the learning rates of a round, for error messages."""
        client, server = self.eta(n), self.eta_server(n)
        return f"with learning rate {client:g}" + ("" if client == server else f" (server {server:g})")
