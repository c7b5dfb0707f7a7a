"""Traits: all that the engine, the clock and the checks must know of a scheme, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from cutlayer.clients.waves import Order
from cutlayer.errors import expect
from cutlayer.nn.macs import Shape
from cutlayer.simulation.clock import Clock, Timing, Work, seconds
from cutlayer.simulation.devices import Device

Carry = Literal["sync", "keep", "relay"]
Halves = Literal["one", "central", "spread"]
Meets = Literal["batch", "step", "epoch", "round"]
NeedsLabels = Literal["no", "loss", "counts", "rows"]
Histogram = Callable[[int], NDArray[np.float64]]
Copies = Callable[[int, int], float]


class Regulator(Protocol):
    """Sets the clients' batch sizes and learning rates, and may choose who takes part."""

    def batches(self, B: int, sizes: Mapping[int, int], cost: Mapping[int, float]) -> dict[int, int]:
        """d_j of each client, from |D_j| and u_j, its seconds per sample."""

    def choose(
        self, pool: Sequence[int], m: int, d: Mapping[int, int], participations: Mapping[int, int], histogram: Histogram
    ) -> list[int]:
        """Choose at most m of the pool, for a scheme that needs label counts; if none, the clients drawn take part.
        `participations`: how many rounds each has taken part in."""

    def rate(self, eta: float, d: int, B: int) -> float:
        """The learning rate of a client with batch size d."""


@dataclass(frozen=True)
class Traits:
    """What the engine must know of a scheme.

    order           in which waves clients step: "together", "by_epoch" or "one_by_one"
    carry           what happens to the fronts: averaged for all ("sync"), kept by each client ("keep"), or passed on
                    from client to client ("relay")
    halves          "one" server half for all clients; one for each, all in one process ("central"); or one for each, in
                    any process of the run ("spread": what the scheme sums over clients, it sums through
                    `server.processes`)
    meets           when clients first meet on the server: in one "batch", after a "step", after an "epoch", or not
                    before the end of the "round". In the last case a round may be trained in groups of clients, and
                    each client has a server optimizer of its own to the end
    own_gradient    every client gets the gradient of its own loss, as `Server.backward` gives it, and every server
                    gradient belongs to one client: what a joint norm needs, and what lets one backward pass go through
                    both halves where they share a process
    timing          how the seconds of the steps add up on simulated devices
    needs_labels    what the server must know of the labels: nothing ("no": they may stay with the clients), those of a
                    batch, to compute its "loss", how many of each a client has ("counts"), or those of all clients'
                    rows together ("rows")
    persists        the server's optimizer memory lives on between rounds, whatever the protocol
    fuses_clients   `Session.fuse` gets the clients' own momenta after every step
    common_steps    `Session.fuse` needs the clients' optimizers to have taken the same number of steps
    copies          (m, o) -> how many copies of the server half it holds for m clients and o moments of the optimizer:
                    weights, gradients, moments. None: 2 + o of them for every half
    regulator       sets batch sizes and learning rates; None: they are the same for all clients
    """

    order: Order
    carry: Carry
    halves: Halves
    meets: Meets
    own_gradient: bool
    timing: Timing
    needs_labels: NeedsLabels = "no"
    persists: bool = False
    fuses_clients: bool = False
    common_steps: bool = False
    copies: Copies | None = None
    regulator: Regulator | None = None

    def __post_init__(self) -> None:
        choices = {"order": Order, "carry": Carry, "halves": Halves, "meets": Meets, "needs_labels": NeedsLabels}
        for field, words in choices.items():
            known = get_args(words)
            expect(getattr(self, field) in known, field, getattr(self, field), f"one of {', '.join(known)}")
        for field in ("own_gradient", "persists", "fuses_clients", "common_steps"):
            expect(isinstance(getattr(self, field), bool), field, getattr(self, field), "True or False")
        expect(isinstance(self.timing, Timing), "timing", self.timing, "a Timing")
        one_by_one = self.order == "one_by_one"
        expect(one_by_one or self.carry != "relay", "order", self.order, "'one_by_one', where carry is 'relay'")
        expect(self.own_gradient or self.halves != "spread", "own_gradient", False, "True, where halves is 'spread'")
        expect(self.fuses_clients or not self.common_steps, "fuses_clients", False, "True, where common_steps is")

    @property
    def separate(self) -> bool:
        """Whether nothing passes between clients inside a round."""
        return self.meets == "round"

    @property
    def spread(self) -> bool:
        """Whether server halves may be in any process, together with their clients."""
        return self.halves == "spread"

    def seconds(
        self, clock: Clock, work: Work, devices: Sequence[Device], shape: Shape, p_s: float, front: int
    ) -> float:
        """The simulated seconds of a round; `front`: |Wc|, which is not sent where clients keep their fronts."""
        weights = 0 if self.carry == "keep" else front
        return seconds(clock, self.timing, work, devices, shape, p_s, weights)

    def server_copies(self, m: int, o: int) -> float:
        """Copies of the server half for m clients and o moments."""
        if self.copies is not None:
            return self.copies(m, o)
        return (1 if self.halves == "one" else m) * (2 + o)
