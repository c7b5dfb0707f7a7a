"""Rounds on several ranks with one server model: the root plays them, the other ranks compute for their clients."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Protocol

import torch

from cutlayer.core.threads import torch_threads
from cutlayer.engine import broadcast
from cutlayer.engine.records import Global, Round
from cutlayer.engine.round import Engine, Trained
from cutlayer.engine.score import scored, shared
from cutlayer.engine.setup import Setup
from cutlayer.errors import CutlayerError
from cutlayer.processes.cohort import OwnParts, dismiss, serve


class Player(Protocol):
    """Plays rounds."""

    def play(self, state: Global, attempt: int = 0) -> tuple[Global, Round]:
        """Play round state.n + 1."""


def player(setup: Setup) -> Player:
    """Return the player for this process."""
    if setup.processes.size == setup.trains.size:
        return Engine(setup)
    return Leader(setup) if setup.processes.root else Follower(setup)


class Leader(Engine):
    """The root: plays rounds, and tells the other ranks how each one ended."""

    def _train(self, state: Global, attempt: int) -> Trained:
        processes, parts = self.setup.processes, _parts(self.setup)
        try:
            trained = super()._train(state, attempt)
        except CutlayerError as error:
            dismiss(processes, parts)
            broadcast.fail(processes, error)
            raise
        dismiss(processes, parts)
        broadcast.send(processes, trained.after, since=state.n)
        return trained


class Follower:
    """Another rank: serves its clients, receives the state after the round, and evaluates its share.

    It knows neither the scheme nor the server model.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def play(self, state: Global, attempt: int = 0) -> tuple[Global, Round]:
        s, began = self.setup, time.perf_counter()
        with torch_threads(s.torch_threads), torch.no_grad():
            serve(s.cohort, s.processes, _parts(s))
            after = broadcast.receive(s.processes, state.owned, s.device)
            scored(s, after, ())
            record = shared(s.processes, None)
        s.spill_cache.trim(after.owned)
        return after, replace(record, seconds=time.perf_counter() - began)


def _parts(s: Setup) -> OwnParts:
    return OwnParts(s.optimizer, s.local, s.loss if s.layout.tail else None, s.device)
