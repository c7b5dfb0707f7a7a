"""Damage to folders that are no simulated run: a comparison, a run whose clients are elsewhere, and one of those."""

from __future__ import annotations

import functools
import gc
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from cutlayer.clients.state import ClientState
from cutlayer.errors import ContractError
from cutlayer.experiment import checkpoint, compare, comparison, description, pool, server_directory
from cutlayer.experiment import config as text
from cutlayer.experiment.comparison import Comparison
from cutlayer.experiment.description import Changes
from cutlayer.experiment.experiment import Experiment
from cutlayer.experiment.methods import method
from cutlayer.network.client.store import ClientStore
from cutlayer.network.protocol.settings import Net
from cutlayer.nn.flat import Vectors
from tests.nightly.damage import damage, drawn_file
from tests.nightly.runs import BASE, Ended, config, ended, same, scratch

T = TypeVar("T")
SCHEMES = ("psl", "smofi", "ssl")
NAMES = ["ward-1", "ward-2", "ward-10"]


def undone(resume: Callable[[Changes], T]) -> T:
    """Resume, and undo what was changed if that is asked for."""
    try:
        return resume("refuse")
    except ContractError as error:
        if "it has changed since the run began" not in str(error):
            raise
    return resume("undo")


# ---- A comparison --------------------------------------------------------------------------------------------------


def compared(out: Path, dice: random.Random) -> str:
    """A comparison with a run that is complete and one that is not, and damage to one of its files."""
    shutil.copytree(comparison_of(dice.choice(SCHEMES), os.getpid())[0], out)
    path = drawn_file(out, dice)
    return f"comparison, {path.relative_to(out)}: {damage(path, dice)}"


def compared_again(out: Path) -> None:
    both = undone(lambda changes: _trained(out, changes))
    whole, expected = comparison_of(both.methods[1].label.lower(), os.getpid())
    assert both.dump() == comparison.read(whole).dump() == comparison.read(out).dump(), "another comparison"
    for (m, seed), right in zip(both.runs(), expected, strict=True):
        same(ended(comparison.folder(out, m, seed)), right)


def _trained(out: Path, changes: Changes) -> Comparison:
    """As `compare.train_all` does it, without processes."""
    both, lock = compare.resume(out, changes)
    with lock:
        for m, seed in both.runs():
            path = comparison.folder(out, m, seed)
            if not pool.done(path):
                pool._work(text.dump(both.config(m, seed)), str(path))
    return both


@functools.cache
def comparison_of(scheme: str, owner: int) -> tuple[Path, list[Ended]]:
    """FedAvg is complete, the other one interrupted after a round; and what both end with."""
    out = Path(tempfile.mkdtemp(dir=scratch()))
    both = Comparison({**BASE, "rounds": 3}, [method("fedavg"), method(scheme)], [4])
    compare.start(both, out, False).close()
    compare.copy(both, out)
    found = []
    for m, seed in both.runs():
        path = comparison.folder(out, m, seed)
        pool._work(text.dump(both.config(m, seed)), str(path))
        found.append(ended(path))
    shutil.rmtree(path)
    next(iter(Experiment.start(both.config(m, seed), path)))
    gc.collect()
    return out, found


# ---- A server ------------------------------------------------------------------------------------------------------


def served(out: Path, dice: random.Random) -> str:
    shutil.copytree(server_of(dice.choice(SCHEMES), os.getpid())[0], out)
    path = drawn_file(out, dice)
    return f"server, {path.relative_to(out)}: {damage(path, dice)}"


def served_again(out: Path) -> None:
    assert description.serves(out, checkpoint.config(out)), "it is no server any more"
    experiment, service = undone(lambda changes: server_directory.resume(out, changes))
    _, run = server_of(experiment.config.scheme["name"], os.getpid())
    assert service.run_id == run and service.roster.names == NAMES
    assert experiment.run.state.n == 0


@functools.cache
def server_of(scheme: str, owner: int) -> tuple[Path, str]:
    """A server whose clients have come, before its first round; and its name."""
    out = Path(tempfile.mkdtemp(dir=scratch()))
    given = config(scheme, "smofi", clients=None, participation=1.0, backend="loop")
    experiment, service = server_directory.start(given, Net("127.0.0.1:0", min_clients=2, deadline=240.0), out)
    for name in NAMES:
        session: Any = SimpleNamespace(name=name, alive=True)
        service.roster.enrol(session, 9)
    service.roster.fix()
    run = str(service.run_id)
    del experiment, service
    gc.collect()
    return out, run


# ---- A client of it ------------------------------------------------------------------------------------------------

STATES = {n: ClientState(Vectors(torch.full((7,), float(n)), torch.empty(0), torch.tensor([n]))) for n in (1, 2)}


def keeping(out: Path, dice: random.Random) -> str:
    """What a client has kept of the round that counts, and of the one after it."""
    own = ClientStore(out)
    for n, state in STATES.items():
        own.keep(n, state, n - 1)
    path = drawn_file(out, dice)
    return f"client, {path.name}: {damage(path, dice)}"


def keeping_again(out: Path) -> None:
    for n, state in STATES.items():
        found, expected = ClientStore(out).load(n).named(), state.named()
        assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


OTHERS: dict[str, tuple[Callable[[Path, random.Random], str], Callable[[Path], None]]] = {
    "comparison": (compared, compared_again),
    "server": (served, served_again),
    "client": (keeping, keeping_again),
}
"""By name: make one and damage it, saying how; and what must still hold."""
