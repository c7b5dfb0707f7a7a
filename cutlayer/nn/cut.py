"""Cut a model in two.

A model is an ordered list of blocks: an `nn.Sequential`, any module with a `blocks` attribute whose forward applies
them in order, or what `cl.blocks` makes of a model of another kind. `cut=L` gives the client blocks 0..L (block 0 is
the stem) and the server the rest. Where labels stay with the client (the U-shape), the last block is the client's too,
and the server holds the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from cutlayer.core.randomness import OwnRandomness
from cutlayer.errors import ContractError, expect, is_whole, unknown
from cutlayer.nn.copies import twin
from cutlayer.nn.nested import Inputs, each, length
from cutlayer.nn.state import kind_of, tensors_of

Cut = int | str | tuple[int | str, int | str]
"""One block, by its index or name; or (lo, hi), both included: a new one is drawn every round."""


class Blocks(nn.Module):
    """A model of any kind, together with blocks that compute the same, one after another, and share its parameters.

    `aliases`: the names of each block's end, the outermost submodule first. `whole`: several inputs are passed to the
    model as one argument, and not by name.
    """

    def __init__(
        self, model: nn.Module, blocks: Sequence[nn.Module], aliases: Sequence[Sequence[str]], whole: bool = True
    ) -> None:
        super().__init__()
        self.model, self.blocks = model, nn.ModuleList(blocks)
        self.aliases, self.whole = [list(names) for names in aliases], whole

    @property
    def names(self) -> list[str]:
        """The name of each block's end."""
        return [names[0] for names in self.aliases]

    def forward(self, x: Inputs) -> Any:
        return self.model(x) if self.whole or isinstance(x, Tensor) else self.model(**x)

    def in_order(self, x: Inputs) -> Any:
        """Compute the same, block after block."""
        return in_order(list(self.blocks), x)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return a model of the user's own class."""
    return model.model if isinstance(model, Blocks) else model


def has_blocks(model: nn.Module) -> bool:
    return isinstance(model, nn.Sequential) or hasattr(model, "blocks")


def block_names(model: nn.Module) -> list[list[str]]:
    """The names by which each block can be called."""
    if isinstance(model, Blocks):
        return model.aliases
    by_id = {id(module): name for name, module in model.named_modules()}
    return [[by_id.get(id(block), str(index))] for index, block in enumerate(blocks_of(model))]


def checked_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model that `blocks_of` has checked, or of a copy of it, in order."""
    return list(model if isinstance(model, nn.Sequential) else cast(Iterable[nn.Module], model.blocks))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model, in order; refuse a model that has none, or parameters outside them."""
    given = model if isinstance(model, nn.Sequential) else getattr(model, "blocks", None)
    if not isinstance(given, Iterable):
        raise ContractError(
            f"model = {type(model).__name__}: expected an nn.Sequential, a module with a `blocks` attribute, or "
            "cl.blocks(model, example=x)"
        )
    blocks = list(given)
    expect(len(blocks) >= 2, "model", f"{type(model).__name__} of {len(blocks)} block(s)", "at least 2 blocks to cut")
    known = {id(p) for p in model.parameters()}
    registered = all(id(p) in known for b in blocks for p in b.parameters())
    expect(registered, "model.blocks", type(given).__name__, "an nn.ModuleList, so that its parameters are the model's")
    held = {id(t) for b in blocks for t in (*b.parameters(), *b.buffers())}
    whole = (*model.named_parameters(), *model.named_buffers())
    if isinstance(model, Blocks):  # whatever is constant may be anywhere in the user's model
        whole = tuple((name, p) for name, p in model.named_parameters() if p.requires_grad)
    stray = [name for name, t in whole if id(t) not in held]
    expect(not stray, "model", stray, "every parameter and buffer inside one of the blocks")
    return blocks


@dataclass(frozen=True)
class Layout:
    """Which blocks are the client's and which the server's, in the order of their weights in the flat vector: the
    client's come first, so that a cut is an offset.

    `n` blocks, of which the last `tail` are the client's too: 1 where labels stay with the client, otherwise 0.
    """

    n: int
    tail: int = 0

    @property
    def whole(self) -> list[int]:
        return [*range(self.n - self.tail, self.n), *range(self.n - self.tail)]

    def client(self, cut: int) -> list[int]:
        return self.whole[: self.tail + cut + 1]

    def server(self, cut: int) -> list[int]:
        return self.whole[self.tail + cut + 1 :]


def cut_range(cut: Cut, layout: Layout, names: Sequence[Sequence[str]] = ()) -> tuple[int, int]:
    """Return `cut` as an inclusive range of block indices; refuse one that leaves the server without a block. `names`:
    those of the blocks, in case the cut is given by name."""
    given, last = tuple(cut) if isinstance(cut, tuple | list) else (cut, cut), layout.n - layout.tail - 2
    named = [isinstance(end, str) and not end.isdecimal() for end in given]
    ends = tuple(_index(str(end), names) if by_name else end for end, by_name in zip(given, named, strict=True))
    numbers = [end for end in ends if not isinstance(end, str) and is_whole(end)]
    whole = len(ends) == 2 == len(numbers)
    stays = " (the last block stays with the client, and the server has at least one)" if layout.tail else ""
    expect(last >= 0, "model", f"{layout.n} blocks", "at least 3 for labels that stay: front, middle and last block")
    fits = whole and 0 <= numbers[0] <= numbers[1] <= last
    expect(fits, "cut", cut, f"block indices from 0 to {last}{stays}, or names")
    return int(numbers[0]), int(numbers[1])


def _index(name: str, names: Sequence[Sequence[str]]) -> int:
    for index, known in enumerate(names):
        if name in known:
            return index
    raise unknown("cut", name, [known[0] for known in names[:-1]])


def refuse_shared(model: nn.Module, lo: int, hi: int, tail: int = 0) -> None:
    """Refuse a parameter or buffer that client and server would share with a cut in lo..hi; the last `tail` blocks are
    the client's. Constants, such as frozen parameters, may be shared."""
    own = unwrapped(model)
    names = {id(t): name for name, t in (*own.named_parameters(), *own.named_buffers())}
    users: dict[int, list[int]] = {}
    blocks = blocks_of(model)
    for index, block in enumerate(blocks):
        for module, name, tensor in tensors_of(block):
            if kind_of(module, name, tensor) is not None:
                users.setdefault(id(tensor), []).append(index)
    for number, found in users.items():
        for cut in range(lo, hi + 1):
            sides = {index <= cut or index >= len(blocks) - tail for index in found}
            if len(sides) > 1:
                where = lo if lo == hi else (lo, hi)
                raise ContractError(
                    f"model: {names[number]!r} is shared by blocks {found[0]} and {found[-1]}, on both sides of "
                    f"cut = {where}; expected it frozen, or both blocks on one side"
                    + ("" if tail else ' (labels="stay" gives the client the last block too)')
                )


def learns(model: nn.Module, cut: int) -> bool:
    """Whether the front has trainable parameters, so that a client needs the gradient at the cut."""
    return any(weight.requires_grad for block in checked_blocks(model)[: cut + 1] for weight in block.parameters())


def device_of(blocks: Sequence[nn.Module]) -> torch.device:
    """The device of the blocks' first tensor; the CPU if they have none."""
    first = next((t for block in blocks for t in (*block.parameters(), *block.buffers())), None)
    return torch.device("cpu") if first is None else first.device


def in_order(blocks: Sequence[nn.Module], x: Inputs) -> Inputs:
    """Apply the blocks one after another."""
    out: Any = x
    for block in blocks:
        out = block(out)
    return cast(Inputs, out)


def halves(model: nn.Module, cut: int | str) -> tuple[nn.Sequential, nn.Sequential]:
    """Return stand-alone copies of the front (blocks 0..cut) and of the back; frozen parameters are not copied."""
    blocks = blocks_of(model)
    lo, hi = cut_range(cut, Layout(len(blocks)), block_names(model))
    refuse_shared(model, lo, hi)
    copies = [twin(nn.Sequential(*part)) for part in (blocks[: lo + 1], blocks[lo + 1 :])]
    for half in copies:  # each side has its own key-value cache, in which its layers are counted from 0
        for place, block in enumerate(block for block in half if hasattr(block, "renumber")):
            cast(Any, block).renumber(place)
    if hasattr(copies[0][0], "counts"):
        cast(Any, copies[0][0]).counts = len(copies[0]) == 1
    return copies[0], copies[1]


def joined(front: nn.Sequential, back: nn.Sequential) -> nn.Sequential:
    """Return the two halves as one model again, which shares their parameters."""
    return nn.Sequential(*front, *back)


class Probed(NamedTuple):
    """A model's output on a few rows, and the names of the tensors that cross each cut, where there are several."""

    out: Tensor
    crossings: dict[int, tuple[str, ...]]


@torch.no_grad()
def probe(model: nn.Module, x: Inputs, lo: int, hi: int, tail: int = 0) -> Probed:
    """Try a few rows in inference mode; refuse a model that a cut in lo..hi would change or break."""
    mine, names = twin(model).eval(), dict[int, tuple[str, ...]]()
    with OwnRandomness():
        whole = None if type(mine) is nn.Sequential else mine(each(x, torch.clone))
    with OwnRandomness():
        out: Any = each(x, torch.clone)
        blocks = checked_blocks(mine)
        for index, block in enumerate(blocks):
            out = block(out)
            if lo <= index <= hi:
                _crosses(index, out, length(x))
                _one_gradient(index, out, blocks, x)
                names |= {index: tuple(map(str, out))} if isinstance(out, dict) else {}
            elif tail and index == len(blocks) - tail - 1 and not (_floating(out) or takes_beside(blocks[-1])):
                raise ContractError(f"cut = {index}: block {index} gives {_kind(out)}, expected one floating tensor")
    whole = out if type(mine) is nn.Sequential else whole  # its forward is its blocks in order
    if not isinstance(whole, Tensor) or not isinstance(out, Tensor) or whole.shape != out.shape:
        raise ContractError("model: expected one tensor out of the last block, the same as out of the model")
    if not torch.allclose(whole, out, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise ContractError("model: its forward is not its blocks applied in order, so a cut would change it")
    return Probed(whole, names)


def _crosses(index: int, out: Any, rows: int) -> None:
    """Refuse what cannot cross a cut: one floating tensor can, and beside it others of as many rows, by name, that have
    no gradient."""
    first, more = (out, {}) if not isinstance(out, dict) or not out else (next(iter(out.values())), dict(out))
    if not _floating(first):
        raise ContractError(f"cut = {index}: block {index} gives {_kind(first)}, expected one floating tensor first")
    for name, tensor in list(more.items())[1:]:
        fits = isinstance(tensor, Tensor) and tensor.ndim > 0 and len(tensor) == rows
        what = _kind(tensor) + (f" {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else "")
        expect(fits, f"cut = {index}: {name!r}, beside the activations", what, "a tensor with a row for each sample")


def _one_gradient(index: int, out: Any, blocks: Sequence[nn.Module], x: Inputs) -> None:
    """Refuse tensors beside the activations that have a gradient too."""
    if not isinstance(out, dict) or len(out) < 2:
        return
    with torch.enable_grad():
        crossing: dict[str, Tensor] = twin(nn.Sequential(*blocks[: index + 1]))(each(x, torch.clone))
    for name, tensor in list(crossing.items())[1:]:
        if tensor.requires_grad:
            raise ContractError(
                f"cut = {index}: {name!r} crosses it with a gradient, and so do the activations; expected one of them"
            )


def takes_beside(block: nn.Module) -> bool:
    """Whether the client's last block takes what crossed the cut beside the activations, too."""
    return bool(getattr(block, "takes_beside", False))


def _floating(out: Any) -> bool:
    return isinstance(out, Tensor) and out.is_floating_point()


def _kind(out: Any) -> str:
    return str(out.dtype) if isinstance(out, Tensor) else type(out).__name__
