"""The numbers of a run's model, block by block: enough to count simulated time again without the model.

model_profile.json   shape and classes of the task; of each block its MACs, output elements and weights; the
                     number of clients; a digest of the data
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path

from cutlayer.core.sealed import seal, unseal
from cutlayer.data.dataset import Dataset
from cutlayer.data.source import Population
from cutlayer.engine.run import Run
from cutlayer.errors import StoreError
from cutlayer.nn.macs import Shape

FILE = "model_profile.json"


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

    @property
    def shape(self) -> Shape:
        return Shape(self.macs, self.elements)


def dump(run: Run, data: Dataset) -> bytes:
    s = run.setup
    ends = [0, *(end[0] for end in s.offsets)]
    weights = [b - a for a, b in itertools.pairwise(ends)]
    shape = list(data.shape)
    about = Blocks(shape, data.classes, len(s.sizes), s.shape.macs, s.shape.elements, weights, digest(run))
    return seal(asdict(about), indent=None).encode()


def digest(run: Run) -> str:
    """Return a digest of the labels and of who holds which rows; "" where the data are not a stored data set."""
    held = run.setup.sources
    return held.digest() if isinstance(held, Population) else ""


def read(run: Path) -> Blocks:
    path = run / FILE
    try:
        return Blocks(**unseal(path.read_bytes(), older=True))
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such file; expected the folder of a run") from error
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path}: damaged: {error}") from error
