"""Messages lost, late, doubled and out of order, in any method: what comes out depends on who was lost, and on nothing
else; and where it is known what it must be, it is that."""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import torch

import cutlayer as cl
from cutlayer.errors import ContractError, RoundAbandoned
from cutlayer.experiment import checkpoint
from tests.clients.faulty import REPORT, Fault, FaultyCohort, What
from tests.equal import naive, test_lost, test_lost_split
from tests.equal.compare import EXACT
from tests.equal.naive import difference, part, small_clients, small_model
from tests.equal.test_schemes import OPTIMIZERS, SCHEMES, task_of
from tests.nightly.runs import POINTS
from tests.processes.harness import digest

ROUNDS = 3
KINDS = ("drop", "delay", "duplicate", "repeat")
SIZES = (5, 9, 13, 22, 3)
PARTS: dict[str, tuple[Any, ...]] = {
    "optimizer": (cl.SGD(lr=0.05, momentum=0.9), cl.NAG(lr=0.05, momentum=0.9), cl.Adam(lr=0.01), cl.AdamW(lr=0.01)),
    "update": (None, None, cl.FedAvgM(beta=0.3), cl.SlowMo(), cl.FedNAG()),
    "local": (None, None, cl.FedProx(mu=0.1), cl.FedNAR(max_norm=0.5), cl.FedNAR(max_norm=0.5, norm="half")),
    "labels": ("send", "send", "stay"),
    "shuffle": (True, False),
    "participation": (1.0, 0.6),
    "local_epochs": (1, 2),
    "local_steps": (None, None, 3),
    "last_batch": ("drop", "keep"),
}


def play(seed: int, folder: Path) -> None:
    dice = random.Random(seed)
    flavour = dice.choices((anything, restated, absent), (3, 1, 1))[0]
    flavour(dice, folder)


# ---- Any method ----------------------------------------------------------------------------------------------------


def anything(dice: random.Random, folder: Path) -> None:
    given = method(dice)
    faults = drawn(dice)
    only = [dataclasses.replace(fault, kind="drop") for fault in faults if fault.kind in ("drop", "delay")]
    first = played(given, faults, reorder=dice.randrange(99))
    what = f"{given}, {faults}"
    assert first.finite, f"no longer finite: {what}"
    assert played(given, faults, reorder=dice.randrange(99)).same(first), f"not the same twice: {what}"
    assert played(given, only).bits == first.bits, f"it matters how they were lost: {what}"
    if first.records:
        last = dice.randint(1, len(first.records))
        again = played(given, faults, stop=last, folder=folder)
        assert again.same(first), f"resumed after round {last}: {what}"


@dataclasses.dataclass(frozen=True)
class Played:
    """What came out: `bits` of all that lives on, and every record."""

    bits: str
    records: list[dict[str, Any]]
    finite: bool

    def same(self, other: Played) -> bool:
        return (self.bits, self.records) == (other.bits, other.records)


def played(
    given: dict[str, Any],
    faults: Sequence[Fault],
    reorder: int | None = None,
    stop: int | None = None,
    folder: Path | None = None,
) -> Played:
    """To the end, or to a round that nobody finished. `stop`: interrupted after it, and resumed from a checkpoint."""
    run, records = begun(given, faults, reorder), []
    while True:
        try:
            records.append(next(run))
        except (StopIteration, RoundAbandoned):
            break
        if folder is not None and run.state.n == stop:
            checkpoint.save(folder, run.state, checkpoint.About(""))
            run = begun(given, faults, reorder)
            found = checkpoint.load(folder, run.state, run.state.n + stop)
            assert found is not None and found.n == stop
            run.resume(found, records)
    finite = all(bool(torch.isfinite(vector).all()) for vector in run.state.W if vector.is_floating_point())
    return Played(digest(run), [asdict(record) | {"seconds": 0.0} for record in records], finite)


def begun(given: dict[str, Any], faults: Sequence[Fault], reorder: int | None, without: Collection[int] = ()) -> cl.Run:
    model = small_model()
    clients = [rows for j, rows in enumerate(small_clients(SIZES)) if j not in without]
    tests: Any = clients if given["protocol"] == "cyclesl" else clients[-1]
    plain = cl.rounds(
        model, clients, test=tests, cut=1, rounds=ROUNDS, batch_size=4, backend="loop", threads=1, **given
    )
    setup = dataclasses.replace(plain.setup, cohort=FaultyCohort(plain.setup.cohort, faults, reorder))
    return cl.Run(copy.deepcopy(model), setup, plain.state, None)


def method(dice: random.Random) -> dict[str, Any]:
    """Parts that go together."""
    while True:
        scheme, protocol = dice.choice(POINTS)
        drawn: dict[str, Any] = {name: dice.choice(values) for name, values in PARTS.items()}
        drawn |= {"scheme": scheme, "protocol": protocol, "seed": dice.randrange(1000)}
        if scheme == "smofi" and dice.random() < 0.3:
            drawn["scheme"] = cl.SMoFi(fuse_clients=True)
        try:
            begun(drawn, (), None)
        except ContractError:
            continue
        return drawn


def drawn(dice: random.Random) -> list[Fault]:
    """Here and there, or nearly everywhere; some name messages that are never sent."""
    found, often = [], dice.choice((0.1, 0.3, 0.8))
    for n, j in itertools.product(range(1, ROUNDS + 1), range(len(SIZES))):
        if dice.random() < often:
            step = dice.choice((REPORT, 0, 0, 1, 2, 3, 5))
            what: What = "step" if step == REPORT else dice.choice(("step", *get_args(What)))
            found.append(Fault(dice.choice(KINDS), n, j, step, what))  # type: ignore[arg-type]
    return found


# ---- What it must be -----------------------------------------------------------------------------------------------


def restated(dice: random.Random, folder: Path) -> None:
    """Clients lost at any step of any round, against the naive restatement."""
    name, optimizer = dice.choice((*test_lost.LOSSY, *test_lost_split.LOSSY)), dice.choice(list(OPTIMIZERS))
    split = name in test_lost_split.LOSSY
    ours, rule = OPTIMIZERS[optimizer]
    task = test_lost_split.whole(name, optimizer) if split else task_of(rule)
    steps = {j: len(part(task, j, None).steps) for j in range(len(task.clients))}
    begins = [j for j, n in steps.items() if n]
    lost = {
        (n, j): dice.randrange(steps[j])
        for n in range(1, task.rounds + 1)
        for j in dice.sample(begins, dice.randrange(len(begins)))
    }
    faults = [Fault(dice.choice(("drop", "delay")), n, j, step) for (n, j), step in lost.items()]
    task = dataclasses.replace(task, lost=lost)
    scheme = name if split else SCHEMES[name][0]
    run, cohort = test_lost.disturbed(task, scheme, ours, faults, dice.choice((None, 1)))
    assert len(list(run)) == task.rounds and not cohort.unfired
    right = test_lost_split.LOSSY[name](task)[0] if split else naive.train(task, SCHEMES[name][1]())
    gap = difference(run.model, right)
    assert gap <= EXACT, f"{name}, {optimizer}, {faults}: {gap}"


def absent(dice: random.Random, folder: Path) -> None:
    """Clients that never deliver a step, against a training without them."""
    given = method(dice) | {"shuffle": False, "participation": 1.0}
    if given["scheme"] in ("sglr", "cyclesglr"):  # whose share counts them
        given["scheme"] = "psl"
    gone = set(dice.sample(range(len(SIZES)), dice.randint(1, 3)))
    faults = [Fault("drop", n, j, 0) for n in range(1, ROUNDS + 1) for j in gone]
    try:
        runs = begun(given, faults, None), begun(given, (), None, gone)
        for run in runs:
            collections.deque(run, maxlen=0)
    except (ContractError, RoundAbandoned):  # another scheme, other parts; or nobody is left
        return
    gap = difference(runs[0].model, runs[1].model)
    assert gap <= EXACT, f"{given}, without {gone}: {gap}"
