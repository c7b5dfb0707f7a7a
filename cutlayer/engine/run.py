"""A training under way: a stream of rounds, with the state and the model after the last one played."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from cutlayer.core.lazy import Lazy
from cutlayer.engine.players import player
from cutlayer.engine.progress import Display
from cutlayer.engine.records import Global, Round, counted
from cutlayer.engine.setup import Setup
from cutlayer.errors import RoundAbandoned
from cutlayer.nn.copies import twin
from cutlayer.nn.cut import blocks_of, device_of
from cutlayer.nn.flat import Half, Vectors


class Run(Iterator[Round]):
    """A training under way: iterating it plays the rounds; `state` and `model` are those after the last one played."""

    def __init__(
        self, model: nn.Module, setup: Setup, state: Global, target: float | None, progress: bool = False
    ) -> None:
        self._model, self._target, self._reached = model, target, False
        self._progress = progress
        self._display: Display | None = None
        self._player = player(setup)
        self.setup, self.state = setup, state

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
        except BaseException:
            self._close()
            raise
        self._reached = self._at_target(record)
        if self._display is not None:
            self._display.show(record)
        if self._reached or record.n >= self.setup.rounds:
            self._close()
        return record

    def _close(self) -> None:
        if self._display is not None:
            self._display.close()

    def _played(self) -> tuple[Global, Round]:
        """Play the next round. A cohort of remote clients allows another attempt after one that too few finished."""
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

    def _at_target(self, record: Round) -> bool:
        return self._target is not None and record.accuracy is not None and record.accuracy >= self._target

    @property
    def model(self) -> nn.Module:
        """A copy of the global model; where clients keep their fronts, with the mean of these, weighted by size."""
        keeps = self.setup.traits.carry == "keep"
        return self._joined(self.state.merged(self.setup.sizes) if keeps else self.state.W)

    @property
    def clients(self) -> Personal:
        """Each client's own model, where clients keep their fronts; otherwise empty."""
        return Personal(self)

    def personal(self, client: int) -> nn.Module:
        """Return the model of one client: the front it keeps (or would start with), joined to the back."""
        own = self.state.front(client)
        W = self.state.W
        if own is not None:
            _, W_s = W.split(self.setup.offsets[self.setup.cuts[0]])
            W = Vectors(*(torch.cat(pair) for pair in zip(own, W_s, strict=True)))
        return self._joined(W)

    def _joined(self, W: Vectors) -> nn.Module:
        joined = twin(self._model)
        blocks = blocks_of(joined)
        Half([blocks[index] for index in self.setup.layout.whole], device_of(blocks)).write(W)
        return joined


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
