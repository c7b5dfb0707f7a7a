"""A training under way: a stream of rounds, with the state and the model after the last one played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from cutlayer.core.lazy import Lazy
from cutlayer.engine.backend import refuse_unlike
from cutlayer.engine.players import player
from cutlayer.engine.progress import Display
from cutlayer.engine.records import Global, Round, counted
from cutlayer.engine.setup import Setup
from cutlayer.errors import RoundAbandoned
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import Layout, checked_blocks, device_of, unwrapped
from cutlayer.nn.flat import Half, Vectors


class Sink(Protocol):
    """Takes the rounds of a run as they are played, before the run passes them on."""

    def write(self, run: Run, record: Round) -> None:
        """Take a round that was played."""

    def failed(self, run: Run, error: BaseException) -> None:
        """Note that a round could not be played."""

    def close(self) -> None:
        """Let go of everything; nothing is written for a while."""


class Run(Iterator[Round]):
    """A training under way: iterating it plays the rounds; `state` and `model` are those after the last one played.

    `history`: the rounds played so far. `sink`: takes each of them before it is passed on.
    """

    def __init__(
        self, model: nn.Module, setup: Setup, state: Global, target: float | None, progress: bool = False
    ) -> None:
        self._model, self._target, self._reached = model, target, False
        self._progress = progress
        self._display: Display | None = None
        self._begun = False  # here, that is; it may have been resumed
        self._player = player(setup)
        self.setup, self.state = setup, state
        self.history: list[Round] = []
        self.sink: Sink | None = None

    def __repr__(self) -> str:
        s, (lo, hi) = self.setup, self.setup.cuts
        parts = [
            f"{self.state.n} of {counted(s.rounds, 'round')}",
            *(["finished"] if self.finished else []),
            type(s.scheme).__name__,
            counted(len(s.sizes), "client"),
            f"cut {lo}" if lo == hi else f"cut {lo} to {hi}",
            counted(len(self.state.W.w), "parameter"),
        ]
        return f"Run: {', '.join(parts)}"

    def __next__(self) -> Round:
        if self.finished:
            raise StopIteration
        if self._progress and self.setup.processes.root and self._display is None:
            label = getattr(self.setup.scheme, "name", type(self.setup.scheme).__name__)
            self._display = Display(str(label), self.setup.rounds, self.state.n)
        try:
            self.state, record = self._played()
            self._reached = self._at_target(record)
            self.history.append(record)
            if self.sink is not None:
                self.sink.write(self, record)
        except BaseException as error:
            if self.sink is not None:
                self.sink.failed(self, error)
            self.close()
            raise
        if self._display is not None:
            self._display.show(record)
        if self._reached or record.n >= self.setup.rounds:
            self.close()
        return record

    def close(self) -> None:
        """End the display, and let go of the folder, if there are any; iterating goes on with both."""
        if self._display is not None:
            self._display.close()
            self._display = None
        if self.sink is not None:
            self.sink.close()

    def _played(self) -> tuple[Global, Round]:
        """Play the next round. A cohort of remote clients allows another attempt after one that too few finished."""
        if not self._begun:
            refuse_unlike(self.setup.backend, self.setup.processes)
        self._begun = True
        cohort, attempt = self.setup.cohort, 0
        while True:
            try:
                return self._player.play(self.state, attempt)
            except RoundAbandoned as error:
                cohort.retry(error, attempt)
                attempt += 1

    @property
    def finished(self) -> bool:
        """Whether the last round is done, or the target reached."""
        return self._reached or self.state.n >= self.setup.rounds

    def resume(self, state: Global, history: Sequence[Round]) -> None:
        """Continue after `state`, the end of `history`, as if the run had never been interrupted."""
        self.state, self._reached = state, any(self._at_target(record) for record in history)
        self.history = list(history)

    def _at_target(self, record: Round) -> bool:
        return self._target is not None and record.accuracy is not None and record.accuracy >= self._target

    @property
    def model(self) -> nn.Module:
        """A copy of the global model; where clients keep their fronts, with the mean of these, weighted by size."""
        return unwrapped(self.in_blocks())

    def in_blocks(self, client: int | None = None) -> nn.Module:
        """Return a copy of the global model, or of one client's own, in the form that can be cut."""
        if client is not None:
            return with_weights(self._model, self.setup.layout, self._personal(client))
        keeps = self.setup.traits.carry == "keep"
        return with_weights(
            self._model, self.setup.layout, self.state.merged(self.setup.sizes) if keeps else self.state.W
        )

    @property
    def clients(self) -> Personal:
        """Each client's own model, where clients keep their fronts; otherwise empty."""
        return Personal(self)

    def personal(self, client: int) -> nn.Module:
        """Return the model of one client: the front it keeps (or would start with), joined to the back."""
        return unwrapped(self.in_blocks(client))

    def _personal(self, client: int) -> Vectors:
        own, W = self.state.front(client), self.state.W
        if own is None:
            return W
        _, W_s = W.split(self.setup.offsets[self.setup.cuts[0]])
        return Vectors(*(torch.cat(pair) for pair in zip(own, W_s, strict=True)))


def with_weights(model: nn.Module, layout: Layout, W: Vectors) -> nn.Module:
    """Return a copy of a model with these weights."""
    joined = twin(model)
    whole_of(joined, layout).write(W)
    return joined


def whole_of(model: nn.Module, layout: Layout) -> Half:
    """Return all blocks of a model as one half, which shares its weights."""
    blocks = checked_blocks(model)
    return Half([blocks[index] for index in layout.whole], device_of(blocks))


class Personal(Lazy[nn.Module]):
    """The clients' own models, each built on access; empty where clients do not keep their fronts."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._n = len(run.setup.sizes) if run.setup.traits.carry == "keep" else 0

    def __len__(self) -> int:
        return self._n

    def at(self, j: int) -> nn.Module:
        return self._run.personal(j)


@dataclass
class Result:
    """The result of a training. `clients[j]`: client j's own model, where clients keep their fronts."""

    model: nn.Module
    history: list[Round]
    clients: Sequence[nn.Module] = ()

    def __repr__(self) -> str:
        scored = [(record.accuracy, -record.n) for record in self.history if record.accuracy is not None]
        (best, n), (final, _) = max(scored, default=(0.0, 0)), scored[-1] if scored else (0.0, 0)
        parts = [
            counted(len(self.history), "round"),
            *([f"best accuracy {100 * best:.2f} % in round {-n}", f"final {100 * final:.2f} %"] if scored else []),
            counted(sum(weight.numel() for weight in self.model.parameters()), "parameter"),
            *([counted(len(self.clients), "personal model")] if len(self.clients) else []),
        ]
        return f"Result: {', '.join(parts)}"
