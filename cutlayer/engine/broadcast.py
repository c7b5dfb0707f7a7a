"""What ranks share besides sums: the root's state, its errors, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from cutlayer.clients.state import Owner
from cutlayer.core.group import ProcessGroup
from cutlayer.engine.records import Global
from cutlayer.engine.spill import Kept, OwnedState
from cutlayer.errors import CutlayerError, kinds
from cutlayer.nn.flat import Vectors

T = TypeVar("T")


def send(processes: ProcessGroup, state: Global, since: int = -1) -> None:
    """The root's part: all of it, but only those owned states that are newer than round `since`."""
    new = {owner: owned for owner, owned in state.kept.items() if owned.version > since}
    named: dict[str, Tensor] = {f"W//{kind}": v for kind, v in state.W._asdict().items()}
    named |= {f"update//{name}": tensor for name, tensor in state.update.items()}
    for owner, owned in new.items():
        named |= {f"kept/{owner}//{name}": tensor for name, tensor in owned.open().items()}
    words = {
        "n": state.n,
        "participations": list(state.participations.items()),
        "owners": list(state.kept),
        "versions": {owner: owned.version for owner, owned in new.items()},
    }
    processes.from_root(words, named)


def fail(processes: ProcessGroup, error: CutlayerError) -> None:
    """The root's part when it cannot go on: the others end with the same error."""
    processes.from_root({"failed": [type(error).__name__, str(error)]}, {})


def receive(processes: ProcessGroup, kept: Kept) -> Global:
    """The others' part. `kept`: the owned states that this rank has already."""
    words, named = processes.from_root(None, {})
    if "failed" in words:
        kind, text = words["failed"]
        raise kinds()[kind](text)
    owners: dict[str, dict[str, Tensor]] = {}
    for key, tensor in named.items():
        owner, _, name = key.rpartition("//")
        owners.setdefault(owner, {})[name] = tensor
    W, update = Vectors(**owners.pop("W")), owners.pop("update", {})
    new = {Owner(owner): OwnedState(v, owners.get(f"kept/{owner}", {})) for owner, v in words["versions"].items()}
    return Global(words["n"], W, update, _still(words, {**kept, **new}), dict(words["participations"]))


def _still(words: Mapping[str, Any], kept: Kept) -> Kept:
    """Only what the root has too."""
    return {owner: kept[owner] for owner in words["owners"]}


def in_turn(processes: ProcessGroup, make: Callable[[], T]) -> T:
    """The same made at every rank: at the root first, which leaves what it decodes in the cache for the others. What
    goes wrong at one goes wrong at all."""
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
    """Done at the root alone, while the others wait."""
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
