"""A round is a sequence of waves: sets of clients that take one step together. A scheme names the order.

together     wave k = the clients with k < T_j
by_epoch     the same inside each local epoch, with a barrier between epochs
one_by_one   one client at a time, all its steps, then the next

Where gradients are accumulated, a step is several waves, one for each micro-batch. The steps of a wave's clients end
together: a step of fewer micro-batches begins later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Order = Literal["together", "by_epoch", "one_by_one"]


@dataclass(frozen=True)
class Wave:
    """Clients that step together, in order; `epoch` is the local epoch where the order has barriers, else 0.

    `on_other_ranks`: the clients that take this step in other processes of the run.
    `partial`: optimizers do not step yet, because more micro-batches of this step follow.
    """

    clients: tuple[int, ...]
    epoch: int = 0
    on_other_ranks: tuple[int, ...] = ()
    partial: bool = False


def waves(order: Order, epochs: Mapping[int, list[int]]) -> Iterator[Wave]:
    """Yield the waves of a round; `epochs` gives each client's number of steps in each local epoch."""
    if order == "one_by_one":
        for client, steps in epochs.items():
            yield from (Wave((client,)) for _ in range(sum(steps)))
    elif order == "together":
        totals = {client: sum(steps) for client, steps in epochs.items()}
        for k in range(max(totals.values(), default=0)):
            yield Wave(tuple(client for client, T in totals.items() if k < T))
    else:
        for e in range(max((len(steps) for steps in epochs.values()), default=0)):
            here = {client: steps[e] for client, steps in epochs.items() if e < len(steps)}
            for k in range(max(here.values())):
                yield Wave(tuple(client for client, steps in here.items() if k < steps), epoch=e)


def micro_waves(waves: Iterator[Wave], accumulate: int, pieces: Callable[[int, int], int]) -> Iterator[Wave]:
    """Divide every wave into one for each micro-batch; `pieces(j, k)` says how many the k-th step of client j has."""
    k: dict[int, int] = {}
    for wave in waves:
        many = {j: pieces(j, k.get(j, 0)) for j in wave.clients}
        k |= {j: k.get(j, 0) + 1 for j in wave.clients}
        for left in reversed(range(accumulate)):
            clients = tuple(j for j in wave.clients if left < many[j])
            if clients:
                yield Wave(clients, wave.epoch, partial=left > 0)
