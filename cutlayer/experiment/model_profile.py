"""What is known of a run's model, block by block, beside the run: enough to count its time again without the model.

blocks.json   shape and classes of the task; of each block its MACs, output elements and weights; the clients
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path

from cutlayer.clients.simulated import LocalCohort
from cutlayer.core.sealed import seal, unseal
from cutlayer.data.dataset import Dataset
from cutlayer.data.source import Population
from cutlayer.engine.run import Run
from cutlayer.errors import StoreError
from cutlayer.nn.macs import Shape

FILE = "blocks.json"


@dataclass(frozen=True)
class Blocks:
    """One number per block; `weights` of the front of a cut at L are the first L + 1 together."""

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
    """Of the labels, and of who holds which rows; "" where the run did not come from a stored data set."""
    cohort = run.setup.cohort
    held = cohort.sources if isinstance(cohort, LocalCohort) else None
    return held.digest() if isinstance(held, Population) else ""


def read(run: Path) -> Blocks:
    path = run / FILE
    try:
        return Blocks(**unseal(path.read_bytes(), older=True))
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such file; expected the folder of a run") from error
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path}: damaged: {error}") from error
