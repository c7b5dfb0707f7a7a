"""What ranks exchange besides sums: the root's state and errors, and who builds first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from cutlayer.clients.state import Owner
from cutlayer.core.devices import onto
from cutlayer.core.group import ProcessGroup
from cutlayer.engine.records import Global
from cutlayer.engine.spill import OwnedState, OwnedStates
from cutlayer.errors import CutlayerError, kinds

T = TypeVar("T")


def send(processes: ProcessGroup, state: Global, since: int = -1) -> None:
    """Send the root's state to the other ranks, with only those owned states that are newer than round `since`."""
    new = {owner: owned for owner, owned in state.owned.items() if owned.version > since}
    named = state.named()
    for owner, owned in new.items():
        named |= {f"{owner}//{name}": tensor for name, tensor in owned.open().items()}
    words = {
        "n": state.n,
        "owners": list(state.owned),
        "versions": {owner: owned.version for owner, owned in new.items()},
    }
    processes.from_root(words, named)


def fail(processes: ProcessGroup, error: CutlayerError) -> None:
    """Tell the other ranks that the root failed, so that they raise the same error."""
    processes.from_root({"failed": [type(error).__name__, str(error)]}, {})


def receive(processes: ProcessGroup, kept: OwnedStates, device: torch.device) -> Global:
    """Receive the root's state. `kept`: the owned states that this rank already has."""
    words, named = processes.from_root(None, {})
    if "failed" in words:
        kind, text = words["failed"]
        raise kinds()[kind](text)
    owners: dict[str, dict[str, Tensor]] = {}
    for key, tensor in named.items():
        owner, _, name = key.rpartition("//")
        owners.setdefault(owner, {})[name] = tensor
    new = {Owner(owner): OwnedState(v, owners.get(owner, {})) for owner, v in words["versions"].items()}
    here = {name: x if name.startswith("participations.") else onto(device, x) for name, x in owners[""].items()}
    return Global.read(words["n"], here, _still(words, {**kept, **new}))


def _still(words: Mapping[str, Any], kept: OwnedStates) -> OwnedStates:
    """Return the owned states that the root still has."""
    return {owner: kept[owner] for owner in words["owners"]}


def in_turn(processes: ProcessGroup, make: Callable[[], T]) -> T:
    """Call `make` at every rank: first at the root, so that the others find the data it decoded in the cache. If it
    fails at one rank, every rank raises."""
    made: list[T] = []
    for turn in (True, False) if processes.size > 1 else (True,):
        failed = None
        if processes.root == turn:
            try:
                made.append(make())
            except CutlayerError as error:
                failed = error
        _agree(processes, failed)
    return made[0]


def at_root(processes: ProcessGroup, act: Callable[[], T]) -> T | None:
    """Call `act` at the root only, while the other ranks wait. If it fails, every rank raises."""
    failed, done = None, None
    if processes.root:
        try:
            done = act()
        except CutlayerError as error:
            failed = error
    _agree(processes, failed)
    return done


def _agree(processes: ProcessGroup, failed: CutlayerError | None) -> None:
    if processes.size == 1 and failed is not None:
        raise failed
    for said in processes.everyones(None if failed is None else [type(failed).__name__, str(failed)]):
        if said is not None:
            raise failed or kinds()[said[0]](said[1])
