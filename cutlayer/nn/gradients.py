"""Gradients in flat rows: found by torch, and put where they belong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cutlayer.nn.flat import Views

LARGE = 2**18
"""Numbers in a matrix: to copy fewer costs less than to look at every operation of a backward pass."""


def differentiate(
    out: Tensor,
    parts: Sequence[Views],
    grad: Tensor | None = None,
    inputs: Sequence[Tensor] = (),
    again: bool = False,
) -> list[Tensor]:
    """Write the gradients of `out` into the gradient rows of `parts`, replacing what was there; return those of
    `inputs`. `again`: keep the graph for another backward pass."""
    twice = [pair for part in parts for pair in part.again]
    wanted = [*(leaf for part in parts for leaf in part.w), *(leaf for leaf, _ in twice), *inputs]
    if any(not t.requires_grad for t in inputs):  # a frozen front needs none
        assert len(inputs) == 1, "one tensor crosses a cut with a gradient"
        return [*differentiate(out, parts, grad, (), again), torch.zeros_like(inputs[0])]
    places = [place for part in parts for place in part.g]
    learns = wanted and out.requires_grad  # a front may have no parameters
    large = [t for t in places if t.dim() == 2 and t.numel() >= LARGE and t.is_contiguous() and t.device.type == "cpu"]
    with _InPlace(large) if large else nullcontext():
        found = torch.autograd.grad(out, wanted, grad, again, allow_unused=True) if learns else [None] * len(wanted)
    fresh = [torch.zeros_like(like) if g is None else g for like, g in zip(wanted, found, strict=True)]
    if large:
        fresh = _apart(fresh, places)
    left = [pair for pair in zip(places, fresh, strict=False) if not large or not _same(*pair)]
    if left:
        torch._foreach_copy_([place for place, _ in left], [g for _, g in left])
    for (_, place), g in zip(twice, fresh[len(places) :], strict=False):
        place += g
    return fresh[len(places) + len(twice) :]


class _InPlace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets a matrix product write the gradient of a large weight into its row, instead of a buffer that is copied.

    Which product is a gradient shows only afterwards. So a product of the right shape, whose left factor lies column by
    column as a layer's gradients do (their transpose times its inputs), is written into the row of such a weight, the
    last weight's first, and each row is written once. Where it was another product, the gradient is copied over it when
    the backward pass has ended.
    """

    def __init__(self, places: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: dict[tuple[torch.dtype, torch.Size], list[Tensor]] = defaultdict(list)
        for place in places:
            self.places[place.dtype, place.shape].append(place)

    def __torch_dispatch__(
        self,
        operation: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if operation is torch.ops.aten.mm.default and args[0].stride(0) == 1:
            a, b = args
            some = self.places.get((a.dtype, torch.Size((a.shape[0], b.shape[1]))))
            if some:
                return torch.mm(a, b, out=some.pop()).detach()
        return operation(*args, **(kwargs or {}))


def _same(place: Tensor, g: Tensor) -> bool:
    """Whether a gradient was written where it belongs."""
    return place.data_ptr() == g.data_ptr() and place.shape == g.shape and place.stride() == g.stride()


def _apart(fresh: Sequence[Tensor], places: Sequence[Tensor]) -> list[Tensor]:
    """Copy what was written into the row of another weight, before that row is written."""
    rows = {place.untyped_storage().data_ptr() for place in places}
    own = [*places, *[None] * (len(fresh) - len(places))]
    return [
        g.clone() if g.untyped_storage().data_ptr() in rows and (place is None or not _same(place, g)) else g
        for g, place in zip(fresh, own, strict=True)
    ]
