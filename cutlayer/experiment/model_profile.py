"""The numbers of a run's model and scheme: enough to count simulated time again without either.

model_profile.json   shape and classes of the task; of each block its MACs, output elements and weights; the
                     number of clients; a digest of the data; how the scheme's seconds add up, and on which devices;
                     the name, shape and type of every tensor of the model
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cutlayer.core.sealed import seal, unseal
from cutlayer.data.source import digest_of
from cutlayer.data.views import Population
from cutlayer.engine.run import Run
from cutlayer.errors import ContractError, StoreError
from cutlayer.nn.macs import Shape
from cutlayer.nn.state import frozen_digest
from cutlayer.simulation.clock import Timing
from cutlayer.simulation.devices import Device, Fleet

FILE = "model_profile.json"
Named = list[tuple[str, list[int], str]]
"""The name, shape and type of each tensor of a model."""


@dataclass(frozen=True)
class Blocks:
    """One number per block; the front of a cut at L has the first L + 1 `weights` together."""

    input: list[int]
    classes: int
    clients: int
    macs: list[int]
    elements: list[int]
    weights: list[int]
    data: str = ""  # a digest of the labels and of who holds which rows
    timing: dict[str, Any] | None = None  # the scheme's, and whether fronts travel
    devices: list[tuple[float, float]] | None = None  # those that were given one by one
    tensors: Named = field(default_factory=list)
    frozen: str = ""  # a digest of the weights that are not trained

    @property
    def shape(self) -> Shape:
        return Shape(self.macs, self.elements)


def dump(run: Run, shape: Sequence[int], classes: int) -> bytes:
    s = run.setup
    ends = [0, *(end[0] for end in s.offsets)]
    weights = [b - a for a, b in itertools.pairwise(ends)]
    given = None if isinstance(s.devices, Fleet) else [(d.seconds, d.kbps) for d in s.devices]
    timing = {**asdict(s.traits.timing), "fronts": s.traits.carry != "keep"}
    about = Blocks(
        list(shape),
        classes,
        len(s.sizes),
        s.shape.macs,
        s.shape.elements,
        weights,
        digest(run),
        timing,
        given,
        tensors_of(run),
        frozen_digest(run.model),
    )
    return seal(asdict(about), indent=None).encode()


def tensors_of(run: Run) -> Named:
    return [(name, list(t.shape), str(t.dtype)[6:]) for name, t in run.model.state_dict().items()]


def digest(run: Run) -> str:
    """Return a digest of the rows, and of who holds which; "" where the clients are on other machines."""
    held = run.setup.sources
    if isinstance(held, Population):
        return held.digest()
    tests = () if run.setup.evaluator is None else run.setup.evaluator.tests
    return digest_of([*held, *tests]) if len(held) else ""


def timing_of(blocks: Blocks) -> tuple[Timing, bool] | None:
    """Return how the scheme's seconds add up, and whether fronts travel; None in files of older versions."""
    if blocks.timing is None:
        return None
    return Timing(blocks.timing["composition"], blocks.timing["server_epochs"]), blocks.timing["fronts"]


def devices_of(blocks: Blocks) -> list[Device] | None:
    """Return the devices, if they were given one by one."""
    return None if blocks.devices is None else [Device(*one) for one in blocks.devices]


def refuse_other(out: Path, run: Run) -> None:
    """Refuse a model whose tensors are not those of the run in this folder."""
    try:
        known = read(out).tensors
    except StoreError:
        return  # damaged: it is written again later, and the checkpoints know the model's sizes
    before, now = ([(str(n), list(s), str(t)) for n, s, t in named] for named in (known, tensors_of(run)))
    for old, new in itertools.zip_longest(before, now):
        if before and old != new:
            was, is_ = ("nothing" if one is None else f"{one[0]} {tuple(one[1])} {one[2]}" for one in (old, new))
            raise ContractError(f"{out}: it holds a run of another model: where that has {was}, this one has {is_}")


def refuse_other_base(out: Path, run: Run) -> None:
    """Refuse a model whose frozen weights are not those of the run in this folder."""
    try:
        known = read(out).frozen
    except StoreError:
        return
    now = frozen_digest(run.model) if known else ""
    if known != now:
        raise ContractError(
            f"{out}: the weights of its model that are not trained have changed: their digest was {known[:16]}, and is "
            f"{now[:16] or 'that of nothing'}"
        )


def read(run: Path) -> Blocks:
    path = run / FILE
    try:
        return Blocks(**unseal(path.read_bytes(), older=True))
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such file; expected the folder of a run") from error
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path}: damaged: {error}") from error
