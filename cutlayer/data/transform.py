"""Turn stored rows into a model's inputs. Random changes are drawn at an address, separately for each image."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from torch.nn import functional

from cutlayer.core.devices import onto
from cutlayer.errors import ContractError, expect, unknown

Draw = Callable[[], np.random.Generator]
"""Makes the generator at a batch's address; called only if something is drawn."""


class Transform(Protocol):
    """Turns stored rows into inputs."""

    @property
    def random(self) -> bool:
        """Whether training changes rows at random."""

    def __call__(self, x: Tensor, dtype: torch.dtype, draw: Draw | None) -> Tensor:
        """Return the inputs. `draw`: for random changes in training; None: make none."""


@dataclass(frozen=True)
class Pixels:
    """uint8 images to (x/255 - mean)/std by channel. In training, images are first shifted by up to `pad` pixels
    (filled with black) and, if `flip`, mirrored left to right with probability 1/2."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad: int = 0
    flip: bool = False

    @property
    def random(self) -> bool:
        return self.pad > 0 or self.flip

    def __call__(self, x: Tensor, dtype: torch.dtype, draw: Draw | None) -> Tensor:
        if draw is not None and self.random:
            x = _moved(x, self.pad, self.flip, draw())
        x = x.to(dtype) / 255
        if self.mean == (0.0,) and self.std == (1.0,):
            return x
        shift, scale = (_constant(v, dtype, x.device)[:, None, None] for v in (self.mean, self.std))
        return (x - shift) / scale


@dataclass(frozen=True)
class Codes:
    """Character codes to the integers an embedding takes."""

    random: ClassVar[bool] = False

    def __call__(self, x: Tensor, dtype: torch.dtype, draw: Draw | None) -> Tensor:
        return x.to(torch.int64)


@dataclass(frozen=True)
class Values:
    """Numbers as they are, or standardised: (x - mean)/std."""

    mean: float = 0.0
    std: float = 1.0
    random: ClassVar[bool] = False

    def __call__(self, x: Tensor, dtype: torch.dtype, draw: Draw | None) -> Tensor:
        x = x.to(dtype)
        return x if self.mean == 0 and self.std == 1 else (x - self.mean) / self.std


FURTHEST = 64  # pixels: the largest shift that a server may ask of a client
KINDS: dict[str, type[Pixels] | type[Codes] | type[Values]] = {"pixels": Pixels, "codes": Codes, "features": Values}


def encode(transform: Transform) -> dict[str, Any] | None:
    """Return a transform as plain data; None if it is not one of KINDS."""
    kind = next((name for name, made in KINDS.items() if type(transform) is made), None)
    return None if kind is None else {"kind": kind, **{f.name: getattr(transform, f.name) for f in fields(transform)}}  # type: ignore[arg-type]


def decode(words: Mapping[str, Any]) -> Transform:
    """Return the transform that `encode` wrote as plain data."""
    kind, numbers = str(words.get("kind")), {name: value for name, value in words.items() if name != "kind"}
    if kind not in KINDS:
        raise unknown("kind of rows", kind, KINDS)
    for name in numbers:
        if name not in (valid := [f.name for f in fields(KINDS[kind])]):
            raise unknown(f"number of {kind}", name, valid)
    try:
        found = TypeAdapter(KINDS[kind]).validate_python(numbers)
    except ValidationError as error:
        raise ContractError(f"rows seen as {dict(words)}: {error.errors()[0]['msg']}") from error
    if not isinstance(found, Codes):
        mean, std = np.atleast_1d(found.mean), np.atleast_1d(found.std)
        good = len(mean) == len(std) and np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()
        expect(bool(good), "rows seen with mean and std", (found.mean, found.std), "finite numbers, std above 0")
    if isinstance(found, Pixels):
        expect(0 <= found.pad <= FURTHEST, "rows seen with pad", found.pad, f"0 to {FURTHEST}")
    return found


@functools.lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers on a device, where they stay: they are the same for every batch."""
    return torch.tensor(values, dtype=dtype, device=device)


def _moved(x_BCHW: Tensor, pad: int, flip: bool, rng: np.random.Generator) -> Tensor:
    """Shift each image by its own whole number of pixels and, if `flip`, mirror it with probability 1/2."""
    B, C, H, W = x_BCHW.shape
    down, right = (torch.from_numpy(rng.integers(0, 2 * pad + 1, B)) for _ in range(2))
    rows_BH = down[:, None] + torch.arange(H)
    columns_BW = right[:, None] + torch.arange(W)
    if flip:
        mirrored = torch.from_numpy(rng.random(B) < 0.5)
        columns_BW = torch.where(mirrored[:, None], columns_BW.flip(1), columns_BW)
    padded = functional.pad(x_BCHW, [pad] * 4)
    image, channel = torch.arange(B)[:, None, None, None], torch.arange(C)[None, :, None, None]
    index = (image, channel, rows_BH[:, None, :, None], columns_BW[:, None, None, :])
    return padded[*(onto(padded.device, where) for where in index)]
