"""The first messages on a stream: a client's Hello and the server's Welcome. Each side checks the other's."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from torch import nn

from cutlayer.core.randomness import Randomness
from cutlayer.errors import ContractError, FrameError, expect
from cutlayer.network.transport import Code, plain
from cutlayer.network.transport.frames import DTYPES, VERSION
from cutlayer.nn.cut import Layout, blocks_of, unwrapped
from cutlayer.nn.state import frozen_digest


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's greeting. `name` is used only without certificates; a certificate holds the client's name."""

    version: int = VERSION
    name: str = ""


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client must know before its first plan.

    `run`: the run's id. `model`: its name and parameters, where both sides can build it from them. `front`: a digest of
    the client's blocks. `seen`: how stored rows become the model's inputs. `class_names`: what the labels stand for.
    The last two only where the task defines them.
    """

    run: str
    cuts: tuple[int, int]
    labels: Literal["send", "stay"]
    dtype: str
    front: str
    randomness: Randomness
    code: Code
    zstd: bool
    model: dict[str, Any] | None = None
    shape: tuple[int, ...] = ()
    classes: int | None = None
    task: str | None = None
    seen: dict[str, Any] | None = None
    class_names: tuple[str, ...] = ()
    version: int = VERSION

    def __post_init__(self) -> None:
        """Check the values: a client names a folder after the run, and writes some of them to files."""
        for field, good in (
            ("run", re.fullmatch("[A-Za-z0-9]{1,64}", self.run) is not None),
            ("cuts", 0 <= self.cuts[0] <= self.cuts[1]),
            ("dtype", self.dtype in DTYPES),
            ("shape", len(self.shape) < 8 and all(1 <= side < 2**31 for side in self.shape)),
            ("classes", self.classes is None or 1 <= self.classes < 2**31),
        ):
            if not good:
                raise ValueError(f"{field} = {getattr(self, field)!r}")
        json.dumps([self.model, self.seen])  # a TypeError for anything but plain values


def read(words: dict[str, Any], kind: type[Any]) -> Any:
    """Parse the plain values of a frame as a Hello or a Welcome."""
    if words.get("version") != VERSION:
        raise FrameError(f"protocol version {words.get('version')!r}, expected {VERSION}: install the same cutlayer")
    try:
        return msgspec.convert(words, kind)
    except msgspec.ValidationError as error:
        raise FrameError(f"an invalid {kind.__name__}: {error}") from error


def words(said: Hello | Welcome) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(said)
    return found


def digest(model: nn.Module, layout: Layout, cut: int) -> str:
    """A digest of the client's blocks: of their text, and their tensors' names, shapes and types. Where the model has
    frozen weights, which are not sent, a digest of these follows."""
    blocks = blocks_of(model)
    found = hashlib.blake2b(digest_size=8)
    for index in layout.client(cut):
        tensors: Sequence[Any] = [*blocks[index].named_parameters(), *blocks[index].named_buffers()]
        shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors]
        found.update(repr((index, str(blocks[index]), shapes)).encode())
    frozen = frozen_digest(unwrapped(model))
    return found.hexdigest() + (f" {frozen}" if frozen else "")


def refuse_other(mine: str, theirs: str) -> None:
    """Refuse a model that is not the server's, given the digests of both."""
    (blocks, _, frozen), (others, _, other) = mine.partition(" "), theirs.partition(" ")
    if blocks == others and frozen != other:
        shown = [one[:16] or "of none" for one in (frozen, other)]
        raise ContractError(f"model: its frozen weights have the digest {shown[0]}, the server's {plain(shown[1])}")
    expect(blocks == others, "model", f"front {blocks}", f"the server's, {plain(others)}: the same blocks")
